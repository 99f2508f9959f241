// In the suite of the plugin bridge: its config, written as one of flannel, goes to our plugin.

package main

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/onsi/ginkgo/v2"

	"github.com/containernetworking/cni/pkg/skel"
)

func cmdAdd(args *skel.CmdArgs) error   { return call("ADD", args) }
func cmdDel(args *skel.CmdArgs) error   { return call("DEL", args) }
func cmdCheck(args *skel.CmdArgs) error { return call("CHECK", args) }

func call(verb string, args *skel.CmdArgs) error {
	if debugPostIPAMError != nil {
		ginkgo.Skip("the suite lets a function in Go fail")
	}
	config, err := asFlannel(args.StdinData)
	if err != nil {
		return err
	}
	return callPlugin(verb, args, config)
}

func asFlannel(stdin []byte) ([]byte, error) {
	delegate := map[string]any{}
	if err := json.Unmarshal(stdin, &delegate); err != nil {
		return nil, err
	}
	if delegate["vlan"] != nil && !kernelFiltersVlans() {
		ginkgo.Skip("this kernel does not filter VLANs; the plugin bridge, which gets such a config, fails as well")
	}
	if delegate["ipMasq"] == true && delegate["ipMasqBackend"] == nil {
		ginkgo.Skip("by default, tweed masquerades with nftables, without a program")
	}
	ipam, _ := delegate["ipam"].(map[string]any)
	if ipam["type"] != "host-local" {
		ginkgo.Skip("flannel always gives addresses")
	}
	folder, _ := ipam["dataDir"].(string)
	if folder == "" {
		folder = os.TempDir()
	}
	flannel := map[string]any{
		"name": delegate["name"], "cniVersion": delegate["cniVersion"], "type": "flannel", "delegate": delegate,
		"subnetFile": filepath.Join(folder, "subnet.env"), "dataDir": filepath.Join(folder, "records"),
	}
	if err := os.WriteFile(filepath.Join(folder, "subnet.env"), subnets(ipam), 0o644); err != nil {
		return nil, err
	}
	for _, key := range []string{"runtimeConfig", "RuntimeConfig", "prevResult"} {
		if value, ok := delegate[key]; ok {
			flannel[strings.ToLower(key[:1])+key[1:]] = value
			delete(delegate, key)
		}
	}
	for _, key := range []string{"name", "cniVersion", "ipam"} {
		delete(delegate, key)
	}
	// Without these, flannel takes them from subnet.env.
	for key, value := range map[string]any{"isGateway": false, "ipMasq": false} {
		if _, ok := delegate[key]; !ok {
			delegate[key] = value
		}
	}
	for _, key := range []string{"type", "subnet", "gateway", "ranges"} {
		delete(ipam, key)
	}
	flannel["ipam"] = ipam
	return json.Marshal(flannel)
}

var kernelFiltersVlans = sync.OnceValue(func() bool {
	defer func() { _ = exec.Command("ip", "link", "delete", "vlans").Run() }()
	return exec.Command("ip", "link", "add", "vlans", "type", "bridge", "vlan_filtering", "1").Run() == nil
})

// The subnets of a config of host-local, as the daemon writes them.
func subnets(ipam map[string]any) []byte {
	var all []any
	if ipam["subnet"] != nil {
		all = append(all, ipam)
	}
	ranges, _ := ipam["ranges"].([]any)
	for _, set := range ranges {
		set, _ := set.([]any)
		if len(set) != 1 {
			ginkgo.Skip("a node of flannel has one subnet in each family")
		}
		all = append(all, set[0])
	}
	text := "FLANNEL_MTU=1500\nFLANNEL_IPMASQ=true\n"
	seen := map[string]bool{}
	for _, one := range all {
		one, _ := one.(map[string]any)
		subnet, _ := one["subnet"].(string)
		_, network, err := net.ParseCIDR(subnet)
		if err != nil {
			ginkgo.Skip("subnet.env holds only valid subnets")
		}
		first := append(net.IP{}, network.IP...)
		first[len(first)-1]++
		if gateway, ok := one["gateway"].(string); ok && !net.ParseIP(gateway).Equal(first) {
			ginkgo.Skip("the gateway of flannel is the first address of its subnet")
		}
		family, wide := "", net.CIDRMask(8, 32)
		if first.To4() == nil {
			family, wide = "IPV6_", net.CIDRMask(16, 128)
		}
		if seen[family] {
			ginkgo.Skip("a node of flannel has one subnet in each family")
		}
		seen[family] = true
		length := strings.Split(network.String(), "/")[1]
		whole := net.IPNet{IP: network.IP.Mask(wide), Mask: wide}
		text += "FLANNEL_" + family + "NETWORK=" + whole.String() + "\n"
		text += "FLANNEL_" + family + "SUBNET=" + first.String() + "/" + length + "\n"
	}
	return []byte(text)
}
