// In a suite of another plugin: calls ours, as a runtime does.

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

func callPlugin(verb string, args *skel.CmdArgs, config []byte) error {
	command := exec.Command(os.Getenv("PLUGIN"))
	command.Stdin = bytes.NewReader(config)
	command.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+args.ContainerID, "CNI_NETNS="+args.Netns,
		"CNI_IFNAME="+args.IfName, "CNI_ARGS="+args.Args, "CNI_PATH="+os.Getenv("PLUGINS"))
	output, err := command.Output()
	if err != nil {
		answer := &types.Error{}
		if json.Unmarshal(output, answer) != nil {
			return err
		}
		return answer
	}
	_, err = os.Stdout.Write(output)
	return err
}
