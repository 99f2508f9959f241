// Package cni lets the libraries of container runtimes call the CNI plugin, in a chain with the newest plugins.
package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	containerd "github.com/containerd/go-cni"
	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/testutils"
)

const (
	network  = "cbr0"
	greeting = "hello from a pod"
	hostPort = 8080
	podPort  = 80
)

// A node: what the daemon writes, and where runtimes look for plugins and configs.
type node struct {
	*testing.T
	version string
	folder  string
	bin     string
	dual    bool
}

func newNode(t *testing.T, version string, dual bool) *node {
	n := &node{T: t, version: version, folder: t.TempDir(), dual: dual}
	n.bin = filepath.Join(n.folder, "bin")
	for _, folder := range []string{n.bin, n.file("net.d")} {
		n.must(os.MkdirAll(folder, 0o755))
	}
	plugins, err := filepath.Glob(filepath.Join(os.Getenv("PLUGINS"), "*"))
	n.must(err)
	for _, plugin := range append(plugins, os.Getenv("PLUGIN")) {
		n.must(os.Symlink(plugin, filepath.Join(n.bin, filepath.Base(plugin))))
	}
	subnet := "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.7.1/24\n"
	if dual {
		subnet += "FLANNEL_IPV6_NETWORK=fd00:244::/48\nFLANNEL_IPV6_SUBNET=fd00:244:0:7::1/64\n"
	}
	subnet += "FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	n.must(os.WriteFile(n.file("subnet.env"), []byte(subnet), 0o644))
	n.must(os.WriteFile(n.file("net.d/10-flannel.conflist"), n.config(), 0o644))
	return n
}

func (n *node) file(name string) string { return filepath.Join(n.folder, name) }

func (n *node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// The config of flannel's manifest, with further plugins.
func (n *node) config() []byte {
	plugins := []map[string]any{
		{
			"type": "flannel", "subnetFile": n.file("subnet.env"), "dataDir": n.file("data"),
			"ipam":     map[string]any{"dataDir": n.file("networks")},
			"delegate": map[string]any{"hairpinMode": true, "isDefaultGateway": true},
		},
		{"type": "portmap", "capabilities": map[string]any{"portMappings": true}},
		{"type": "bandwidth", "capabilities": map[string]any{"bandwidth": true}},
		{"type": "tuning", "sysctl": map[string]any{"net.ipv4.conf.all.log_martians": "1"}},
	}
	// The plugin firewall does not support older versions.
	if n.version != "0.3.1" {
		plugins = append(plugins, map[string]any{"type": "firewall"})
	}
	config := map[string]any{"name": network, "cniVersion": n.version, "plugins": plugins}
	bytes, err := json.Marshal(config)
	n.must(err)
	return bytes
}

func (n *node) addresses() int {
	if n.dual {
		return 2
	}
	return 1
}

// A network namespace that serves a page, as a container would.
type pod struct {
	ns.NetNS
	id string
}

func (n *node) pod(id string) *pod {
	namespace, err := testutils.NewNS()
	n.must(err)
	n.Cleanup(func() {
		_ = namespace.Close()
		_ = testutils.UnmountNS(namespace)
	})
	// As runtimes do: their libraries, or they themselves.
	n.must(namespace.Do(func(ns.NetNS) error { return exec.Command("ip", "link", "set", "lo", "up").Run() }))
	return &pod{namespace, id}
}

func (n *node) serve(p *pod) {
	for _, family := range []string{"tcp4", "tcp6"} {
		n.must(p.Do(func(ns.NetNS) error {
			listener, err := net.Listen(family, fmt.Sprintf(":%d", podPort))
			if err != nil {
				return err
			}
			n.Cleanup(func() { _ = listener.Close() })
			go greet(listener)
			return nil
		}))
	}
}

func greet(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(connection, greeting)
		_ = connection.Close()
	}
}

// Fails unless a connection to the address gets the greeting.
func answers(address string, port int) error {
	connection, err := net.DialTimeout("tcp", net.JoinHostPort(address, fmt.Sprint(port)), 5*time.Second)
	if err != nil {
		return err
	}
	defer connection.Close()
	text, err := io.ReadAll(connection)
	if err == nil && string(text) != greeting {
		err = fmt.Errorf("%s answers %q", address, text)
	}
	return err
}

// Pods reach each other and are reached by the host, and by its port.
func (n *node) network(addresses [][]string, pods ...*pod) {
	n.Helper()
	for index, p := range pods {
		n.serve(p)
		if len(addresses[index]) != n.addresses() {
			n.Fatalf("%s has the addresses %v", p.id, addresses[index])
		}
	}
	for index := range pods {
		for _, address := range addresses[index] {
			n.must(answers(address, podPort))
			for _, from := range pods {
				n.must(from.Do(func(ns.NetNS) error { return answers(address, podPort) }))
			}
		}
	}
	n.must(exec.Command("sh", "-c", "ip link show host0 || { ip link add host0 type veth peer name host1 && "+
		"ip address add 192.0.2.1/24 dev host0 && ip link set host0 up && ip link set host1 up; }").Run())
	n.must(answers("192.0.2.1", hostPort))
	if len(n.remains()) == 0 {
		n.Fatal("nothing is found of running pods")
	}
}

// What plugins keep of pods: reservations, records, results and interfaces.
func (n *node) remains() []string {
	var found []string
	for _, pattern := range []string{"networks/*/[0-9f]*", "data/[^.]*", "cache/results/*"} {
		paths, err := filepath.Glob(n.file(pattern))
		n.must(err)
		found = append(found, paths...)
	}
	ports, err := exec.Command("ip", "-brief", "link", "show", "master", "cni0").Output()
	n.must(err)
	found = append(found, strings.Fields(string(ports))...)
	rules, err := exec.Command("sh", "-c", "iptables-save; ip6tables-save; nft list ruleset").Output()
	n.must(err)
	for _, line := range strings.Split(string(rules), "\n") {
		isOfPod := strings.Contains(line, "10.244.7.") && !strings.Contains(line, "10.244.7.0/24")
		if isOfPod || strings.Contains(line, "fd00:244:0:7::") && !strings.Contains(line, "fd00:244:0:7::/64") {
			found = append(found, line)
		}
	}
	return found
}

func (n *node) nothingRemains() {
	n.Helper()
	if found := n.remains(); len(found) > 0 {
		n.Fatalf("left over: %s", strings.Join(found, "\n"))
	}
}

func each(t *testing.T, judge func(n *node)) {
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		for name, dual := range map[string]bool{"IPv4": false, "dual stack": true} {
			t.Run(version+" "+name, func(t *testing.T) {
				n := newNode(t, version, dual)
				// A host of its own; the goroutine stays on its thread.
				host := n.pod("host")
				n.must(host.Do(func(ns.NetNS) error {
					judge(n)
					return nil
				}))
			})
		}
	}
}

// TestLibcni is what CRI-O and podman do: both call this library.
func TestLibcni(t *testing.T) {
	each(t, func(n *node) {
		ctx := context.Background()
		cni := libcni.NewCNIConfigWithCacheDir([]string{n.bin}, n.file("cache"), nil)
		list, err := libcni.ConfListFromBytes(n.config())
		n.must(err)
		first, second := n.pod("first"), n.pod("second")
		runtime := func(p *pod) *libcni.RuntimeConf {
			capabilities := map[string]any{"bandwidth": map[string]any{"ingressRate": 100_000_000, "ingressBurst": 10_000_000}}
			if p == first {
				mapping := map[string]any{"hostPort": hostPort, "containerPort": podPort, "protocol": "tcp"}
				capabilities["portMappings"] = []any{mapping}
			}
			return &libcni.RuntimeConf{ContainerID: p.id, NetNS: p.Path(), IfName: "eth0", CapabilityArgs: capabilities}
		}
		add := func(p *pod) []string {
			result, err := cni.AddNetworkList(ctx, list, runtime(p))
			n.must(err)
			current, err := types100.NewResultFromResult(result)
			n.must(err)
			var addresses []string
			for _, ip := range current.IPs {
				addresses = append(addresses, ip.Address.IP.String())
			}
			return addresses
		}
		if n.version == "1.1.0" {
			n.must(cni.GetStatusNetworkList(ctx, list))
		}
		n.network([][]string{add(first), add(second)}, first, second)
		if n.version != "0.3.1" {
			n.must(cni.CheckNetworkList(ctx, list, runtime(first)))
			n.must(cni.CheckNetworkList(ctx, list, runtime(second)))
		}
		if n.version == "1.1.0" {
			valid := []types.GCAttachment{{ContainerID: second.id, IfName: "eth0"}}
			n.must(cni.GCNetworkList(ctx, list, &libcni.GCArgs{ValidAttachments: valid}))
			n.must(cni.CheckNetworkList(ctx, list, runtime(second)))
			if err := cni.CheckNetworkList(ctx, list, runtime(first)); err == nil {
				n.Fatal("CHECK accepts what GC has removed")
			}
		}
		for _, p := range []*pod{first, second, second} {
			n.must(cni.DelNetworkList(ctx, list, runtime(p)))
		}
		n.nothingRemains()
	})
}

// TestContainerd is what containerd does.
func TestContainerd(t *testing.T) {
	each(t, func(n *node) {
		ctx := context.Background()
		cni, err := containerd.New(containerd.WithPluginDir([]string{n.bin}),
			containerd.WithPluginConfDir(n.file("net.d")), containerd.WithMinNetworkCount(2))
		n.must(err)
		n.must(cni.Load(containerd.WithLoNetwork, containerd.WithDefaultConf))
		n.must(cni.Status())
		first, second := n.pod("first"), n.pod("second")
		options := func(p *pod) []containerd.NamespaceOpts {
			limit := containerd.BandWidth{IngressRate: 100_000_000, IngressBurst: 10_000_000}
			options := []containerd.NamespaceOpts{containerd.WithCapabilityBandWidth(limit)}
			if p == first {
				mapping := containerd.PortMapping{HostPort: hostPort, ContainerPort: podPort, Protocol: "tcp"}
				options = append(options, containerd.WithCapabilityPortMap([]containerd.PortMapping{mapping}))
			}
			return options
		}
		setup := func(p *pod) []string {
			result, err := cni.SetupSerially(ctx, p.id, p.Path(), options(p)...)
			n.must(err)
			var addresses []string
			for _, ip := range result.Interfaces["eth0"].IPConfigs {
				addresses = append(addresses, ip.IP.String())
			}
			return addresses
		}
		n.network([][]string{setup(first), setup(second)}, first, second)
		// Not CHECK: this library asks it for the loopback, too, whose config is older than CHECK.
		for _, p := range []*pod{first, second, second} {
			n.must(cni.Remove(ctx, p.id, p.Path(), options(p)...))
		}
		n.nothingRemains()
	})
}

// TestCnitool is the command line of the CNI project.
func TestCnitool(t *testing.T) {
	each(t, func(n *node) {
		p := n.pod("tool")
		tool := func(verb string) ([]byte, error) {
			command := exec.Command(os.Getenv("CNITOOL"), verb, network, p.Path())
			mapping := fmt.Sprintf(`{"portMappings":[{"hostPort":%d,"containerPort":%d,"protocol":"tcp"}]}`, hostPort, podPort)
			command.Env = append(os.Environ(), "NETCONFPATH="+n.file("net.d"), "CNI_PATH="+n.bin, "CAP_ARGS="+mapping)
			output, err := command.CombinedOutput()
			if err != nil {
				err = fmt.Errorf("%s: %w: %s", verb, err, output)
			}
			return output, err
		}
		output, err := tool("add")
		n.must(err)
		var result struct{ Ips []struct{ Address string } }
		n.must(json.Unmarshal(output, &result))
		var addresses []string
		for _, ip := range result.Ips {
			addresses = append(addresses, strings.Split(ip.Address, "/")[0])
		}
		n.network([][]string{addresses}, p)
		if n.version != "0.3.1" {
			_, err = tool("check")
			n.must(err)
		}
		if n.version == "1.1.0" {
			_, err = tool("status")
			n.must(err)
		}
		for range 2 {
			_, err = tool("del")
			n.must(err)
		}
		n.nothingRemains()
	})
}
