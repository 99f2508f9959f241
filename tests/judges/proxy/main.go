// The nftables mode of kube-proxy without an API server. Each line of standard input is a list of all
// Services and EndpointSlices. When they are programmed, it answers with a line: the nanoseconds that
// this took.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/proxy/nftables"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"
)

type objects struct {
	services map[string]*v1.Service
	slices   map[string]*discovery.EndpointSlice
}

func main() {
	family := flag.String("family", "IPv4", "IPv4 or IPv6")
	node := flag.String("hostname-override", "", "name of this node")
	nodeIP := flag.String("node-ip", "", "first internal address of this node")
	clusterCIDR := flag.String("cluster-cidr", "", "network of pods")
	serviceCIDRs := flag.String("service-cidr", "", "ranges of cluster IPs, separated by commas")
	nodePorts := flag.String("nodeport-addresses", "primary", "networks of addresses with node ports")
	masqueradeAll := flag.Bool("masquerade-all", false, "masquerade all connections to cluster IPs")
	// It would write about each service without a health check node port.
	klog.InitFlags(nil)
	for name, value := range map[string]string{"logtostderr": "false", "stderrthreshold": "FATAL"} {
		if err := flag.Set(name, value); err != nil {
			fail(err)
		}
	}
	flag.Parse()
	klog.SetOutput(io.Discard)
	local := proxyutil.NewNoOpLocalDetector()
	if *clusterCIDR != "" {
		local = proxyutil.NewDetectLocalByCIDR(*clusterCIDR)
	}
	proxier, err := nftables.NewProxier(context.Background(), v1.IPFamily(*family), time.Hour, 0,
		*masqueradeAll, 14, local, *node, net.ParseIP(*nodeIP), &events.FakeRecorder{}, nil,
		strings.Split(*nodePorts, ","), false)
	if err != nil {
		fail(err)
	}
	if *serviceCIDRs != "" {
		proxier.OnServiceCIDRsChanged(strings.Split(*serviceCIDRs, ","))
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<30)
	known := objects{map[string]*v1.Service{}, map[string]*discovery.EndpointSlice{}}
	proxier.OnEndpointSlicesSynced()
	for lines.Scan() {
		next, err := parse(lines.Bytes())
		if err != nil {
			fail(err)
		}
		changes := between(proxier, known, next)
		begun := time.Now()
		for _, change := range changes {
			change()
		}
		// It programs what has changed before it returns.
		proxier.OnServiceSynced()
		fmt.Println(time.Since(begun).Nanoseconds())
		known = next
	}
	if err := lines.Err(); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func parse(line []byte) (objects, error) {
	found := objects{map[string]*v1.Service{}, map[string]*discovery.EndpointSlice{}}
	var all []json.RawMessage
	if err := json.Unmarshal(line, &all); err != nil {
		return found, err
	}
	for _, text := range all {
		var kind struct {
			Kind string `json:"kind"`
		}
		if err := json.Unmarshal(text, &kind); err != nil {
			return found, err
		}
		switch kind.Kind {
		case "Service":
			var service v1.Service
			if err := json.Unmarshal(text, &service); err != nil {
				return found, err
			}
			found.services[service.Namespace+"/"+service.Name] = &service
		case "EndpointSlice":
			var slice discovery.EndpointSlice
			if err := json.Unmarshal(text, &slice); err != nil {
				return found, err
			}
			found.slices[slice.Namespace+"/"+slice.Name] = &slice
		}
	}
	return found, nil
}

// between is the calls by which kube-proxy learns what is different.
func between(proxier *nftables.Proxier, before, after objects) []func() {
	changes := []func(){}
	for name, service := range before.services {
		if after.services[name] == nil {
			changes = append(changes, func() { proxier.OnServiceDelete(service) })
		}
	}
	for name, service := range after.services {
		if known := before.services[name]; known == nil {
			changes = append(changes, func() { proxier.OnServiceAdd(service) })
		} else if !reflect.DeepEqual(known, service) {
			changes = append(changes, func() { proxier.OnServiceUpdate(known, service) })
		}
	}
	for name, slice := range before.slices {
		if after.slices[name] == nil {
			changes = append(changes, func() { proxier.OnEndpointSliceDelete(slice) })
		}
	}
	for name, slice := range after.slices {
		if known := before.slices[name]; known == nil {
			changes = append(changes, func() { proxier.OnEndpointSliceAdd(slice) })
		} else if !reflect.DeepEqual(known, slice) {
			changes = append(changes, func() { proxier.OnEndpointSliceUpdate(known, slice) })
		}
	}
	return changes
}
