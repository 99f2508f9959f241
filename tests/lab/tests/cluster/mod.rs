//! A cluster whose paths are programmed by commands instead of a daemon.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    dead_code,
    reason = "for tests, and not every test binary uses all of it"
)]

use tweed_lab::{Family, Lab, Node, Pod, Segment, SubnetEnv};

pub(crate) struct Cluster {
    pub(crate) lab: Lab,
    pub(crate) segment: Segment,
    pub(crate) nodes: Vec<Node>,
    pub(crate) pods: Vec<Pod>,
}

/// `count` nodes on one segment with a pod each, and no path between them yet.
pub(crate) fn islands(count: usize) -> Cluster {
    let lab = Lab::bare().unwrap();
    let segment = lab.segment("10.99.1.0/24").unwrap();
    let node = |number| lab.node(&format!("n{number}"), &segment).unwrap();
    let nodes: Vec<_> = (1..=count).map(node).collect();
    let pods = (1..).zip(&nodes).map(|(number, node)| node.pod_in(&env(number)).unwrap()).collect();
    Cluster { lab, segment, nodes, pods }
}

/// Like [`islands`], with a direct path from every node to every other one.
pub(crate) fn direct(count: usize) -> Cluster {
    let cluster = islands(count);
    for (from, to) in ordered_pairs(count) {
        cluster.route_directly(from, to);
    }
    cluster
}

pub(crate) fn ordered_pairs(count: usize) -> impl Iterator<Item = (usize, usize)> {
    let all = (0..count).flat_map(move |from| (0..count).map(move |to| (from, to)));
    all.filter(|(from, to)| from != to)
}

/// The lease of node number 1, 2, ….
pub(crate) fn env(number: usize) -> SubnetEnv {
    SubnetEnv {
        networks: vec!["10.244.0.0/16".parse().unwrap()],
        gateways: vec![format!("10.244.{number}.1/24").parse().unwrap()],
        mtu: 1450,
        masquerade: false,
    }
}

pub(crate) fn subnet(index: usize) -> String {
    format!("10.244.{}.0/24", index + 1)
}

impl Cluster {
    /// Replaces any existing path.
    pub(crate) fn route_directly(&self, from: usize, to: usize) {
        let gateway = self.nodes[to].address(Family::V4).unwrap();
        let route = format!("route replace {} via {gateway} proto 241", subnet(to));
        self.nodes[from].ip(route).unwrap();
    }

    /// Drops packets on an existing path; without an error, as the default route would return, and
    /// which ends a stream.
    pub(crate) fn cut(&self, from: usize, to: usize) {
        self.nodes[from].ip(format!("route del {}", subnet(to))).unwrap();
        self.nodes[from].ip(format!("route add blackhole {}", subnet(to))).unwrap();
    }

    /// Gives every node a VXLAN device and entries for every peer, but no routes.
    pub(crate) fn prepare_tunnels(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            let (mac, local) = (mac(index), node.address(Family::V4).unwrap());
            let vxlan = format!("vxlan id 1 dev eth0 local {local} dstport 8472 nolearning");
            node.ip(format!("link add flannel.1 address {mac} mtu 1450 type {vxlan}")).unwrap();
            node.ip(format!("address add {}/32 dev flannel.1", base(index))).unwrap();
            node.ip("link set flannel.1 up").unwrap();
        }
        for (from, to) in ordered_pairs(self.nodes.len()) {
            let (node, mac) = (&self.nodes[from], mac(to));
            let remote = self.nodes[to].address(Family::V4).unwrap();
            node.bridge(format!("fdb add {mac} dev flannel.1 dst {remote} self permanent"))
                .unwrap();
            node.ip(format!("neighbour add {} lladdr {mac} dev flannel.1", base(to))).unwrap();
        }
    }

    /// Replaces any existing path.
    pub(crate) fn route_through_tunnel(&self, from: usize, to: usize) {
        let words = format!("via {} dev flannel.1 onlink proto 241", base(to));
        self.nodes[from].ip(format!("route replace {} {words}", subnet(to))).unwrap();
    }
}

pub(crate) fn base(index: usize) -> String {
    format!("10.244.{}.0", index + 1)
}

pub(crate) fn mac(index: usize) -> String {
    format!("02:00:00:00:00:{:02x}", index + 1)
}
