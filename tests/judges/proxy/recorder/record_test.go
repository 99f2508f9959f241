package nftables

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// recording is of the proxier that the last call of NewFakeProxier made.
type recording struct {
	proxier *Proxier
	// objects by kind, namespace and name.
	objects map[string]map[string]any
}

var recorded *recording

func init() {
	observe = func(kind string, before, after any) {
		if recorded == nil {
			return
		}
		if name, _ := decoded(kind, before); name != "" {
			delete(recorded.objects, name)
		}
		if name, object := decoded(kind, after); name != "" {
			recorded.objects[name] = object
		}
	}
}

func begin(proxier *Proxier) {
	recorded = &recording{proxier: proxier, objects: map[string]map[string]any{}}
}

// decoded is an object of Kubernetes as it is in JSON, with its kind, and its unique name.
func decoded(kind string, object any) (string, map[string]any) {
	if object == nil || reflect.ValueOf(object).IsNil() {
		return "", nil
	}
	text, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		panic(err)
	}
	fields["kind"] = kind
	metadata := fields["metadata"].(map[string]any)
	return kind + "/" + metadata["namespace"].(string) + "/" + metadata["name"].(string), fields
}

// record appends a line to the file RECORD: the objects of the proxier, and the packets that the test
// is about to send through its rules.
func record(t *testing.T, nodeIPs []string, cases []packetFlowTest) {
	proxier := recorded.proxier
	names := []string{}
	for name := range recorded.objects {
		names = append(names, name)
	}
	slices.Sort(names)
	objects := []any{}
	for _, name := range names {
		objects = append(objects, recorded.objects[name])
	}
	packets := []map[string]any{}
	for _, one := range cases {
		packets = append(packets, map[string]any{
			"name": one.name, "source": one.sourceIP, "protocol": one.protocol,
			"destination": one.destIP, "port": one.destPort, "output": one.output, "masquerade": one.masq,
		})
	}
	// That of NewFakeProxier.
	clusterCIDR := "10.0.0.0/8"
	if proxier.ipFamily == v1.IPv6Protocol {
		clusterCIDR = "fd00:10::/64"
	}
	if !proxier.localDetector.IsImplemented() {
		clusterCIDR = ""
	}
	addresses, err := proxier.nodePortAddresses.GetNodeIPs(proxier.networkInterfacer)
	if err != nil {
		t.Fatal(err)
	}
	nodePortAddresses := []string{}
	for _, address := range addresses {
		nodePortAddresses = append(nodePortAddresses, address.String())
	}
	line, err := json.Marshal(map[string]any{
		"test": t.Name(), "family": proxier.ipFamily, "masqueradeAll": proxier.masqueradeAll,
		"clusterCidr": clusterCIDR, "nodeIPs": nodeIPs, "nodePortAddresses": nodePortAddresses,
		"serviceCIDRs": proxier.serviceCIDRs, "objects": objects, "packets": packets,
	})
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(os.Getenv("RECORD"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Write(append(line, '\n')); err != nil {
		t.Fatal(err)
	}
}
