//! Peers without a node: their leases, and their entries in the kernel.

use std::net::Ipv4Addr;

use serde_json::{Value, json};
use tweed_lab::Backend;

/// The network of the pods; its first subnets are for nodes that exist.
pub(crate) const NETWORK: &str = "10.128.0.0/9";
/// The subnet of the one node that exists, in the form of a key of etcd.
pub(crate) const OWN_SUBNET: &str = "10.128.1.0-24";
const FIRST_SUBNET: u32 = 0x0a81_0000;
/// The prefix of the segment, on which all peers are; its first addresses are for nodes that exist.
pub(crate) const UNDERLAY: &str = "10.64.0.0/10";
const FIRST_ADDRESS: u32 = 0x0a41_0000;

pub(crate) const CONFIG: &str = "/coreos.com/network/config";
pub(crate) const SUBNETS: &str = "/coreos.com/network/subnets";

/// Peer number `number`, counted from zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    number: u32,
}

pub(crate) fn peers(numbers: std::ops::Range<u32>) -> impl Iterator<Item = Peer> {
    numbers.map(|number| Peer { number })
}

impl Peer {
    /// The first address of its `/24`.
    pub(crate) fn base(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(FIRST_SUBNET + self.number * 256)
    }

    pub(crate) fn address(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(FIRST_ADDRESS + self.number)
    }

    pub(crate) fn mac(self) -> String {
        let [_, high, middle, low] = self.number.to_be_bytes();
        format!("02:00:00:{high:02x}:{middle:02x}:{low:02x}")
    }

    /// Key and value in etcd.
    pub(crate) fn lease(self, backend: Backend) -> (String, String) {
        let (base, address, mac) = (self.base(), self.address(), self.mac());
        let data = match backend {
            Backend::Vxlan => format!(r#","BackendData":{{"VNI":1,"VtepMAC":"{mac}"}}"#),
            Backend::HostGw => String::new(),
        };
        let ip = format!(r#""PublicIP":"{address}","PublicIPv6":null"#);
        let name = backend.name();
        (format!("{SUBNETS}/{base}-24"), format!(r#"{{{ip},"BackendType":"{name}"{data}}}"#))
    }

    /// Name and object in Kubernetes, as large as that of a machine with fifty images.
    pub(crate) fn node(self) -> (String, Value) {
        let (name, base) = (format!("node-{:05}", self.number), self.base());
        let data = format!(r#"{{"VNI":1,"VtepMAC":"{}"}}"#, self.mac());
        let annotations = json!({
            "flannel.alpha.coreos.com/backend-data": data,
            "flannel.alpha.coreos.com/backend-type": "vxlan",
            "flannel.alpha.coreos.com/kube-subnet-manager": "true",
            "flannel.alpha.coreos.com/public-ip": self.address().to_string(),
            "node.alpha.kubernetes.io/ttl": "300",
        });
        let image = |number| {
            let tag = format!("registry.example.org/team/service-{number}");
            json!({ "names": [format!("{tag}@sha256:{:064x}", number), format!("{tag}:1.2.3")], "sizeBytes": 1 })
        };
        let condition = |kind| {
            json!({
                "type": kind, "status": "False", "reason": "KubeletHasSufficientMemory",
                "message": "kubelet has sufficient memory available",
                "lastHeartbeatTime": "2026-11-21T23:18:21Z", "lastTransitionTime": "2026-11-21T23:18:21Z",
            })
        };
        let conditions = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"].map(condition);
        let cidr = format!("{base}/24");
        let object = json!({
            "kind": "Node",
            "apiVersion": "v1",
            "metadata": { "annotations": annotations, "labels": { "kubernetes.io/hostname": name } },
            "spec": { "podCIDR": cidr, "podCIDRs": [cidr] },
            "status": {
                "conditions": conditions,
                "images": (0..50).map(image).collect::<Vec<_>>(),
            },
        });
        (name, object)
    }

    /// A line for `ip -batch`, to be put after `route add` or `route replace`.
    pub(crate) fn route(self, backend: Backend) -> String {
        let (base, address) = (self.base(), self.address());
        match backend {
            Backend::Vxlan => format!("{base}/24 via {base} dev flannel.1 onlink"),
            Backend::HostGw => format!("{base}/24 via {address} dev eth0"),
        }
    }

    /// An element of a set, for `nft -f`.
    pub(crate) fn admission(self) -> String {
        self.address().to_string()
    }

    /// A line for `ip -batch`.
    pub(crate) fn neighbour(self) -> String {
        let (base, mac) = (self.base(), self.mac());
        format!("neighbour add {base} lladdr {mac} dev flannel.1 nud permanent")
    }

    /// A line for `bridge -batch`.
    pub(crate) fn fdb(self) -> String {
        let (address, mac) = (self.address(), self.mac());
        format!("fdb add {mac} dev flannel.1 dst {address} self permanent")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipnetwork::Ipv4Network;

    fn last() -> Peer {
        Peer { number: 20_199 }
    }

    #[test]
    fn all_peers_fit_into_their_networks() {
        let network: Ipv4Network = NETWORK.parse().unwrap();
        let underlay: Ipv4Network = UNDERLAY.parse().unwrap();
        assert!(network.contains(last().base()) && underlay.contains(last().address()));
    }

    #[test]
    fn the_entries_match_the_lease() {
        let (key, value) = last().lease(Backend::Vxlan);
        let value: serde_json::Value = serde_json::from_str(&value).unwrap();
        let text = |field: &serde_json::Value| field.as_str().unwrap().to_owned();
        let (address, mac) = (text(&value["PublicIP"]), text(&value["BackendData"]["VtepMAC"]));
        assert_eq!(key, format!("{SUBNETS}/{}-24", last().base()));
        assert!(last().route(Backend::HostGw).contains(&address));
        assert!(last().fdb().contains(&address) && last().fdb().contains(&mac));
        assert!(last().neighbour().contains(&mac));
    }

    #[test]
    fn a_direct_peer_has_no_data_of_a_tunnel() {
        let (_, value) = last().lease(Backend::HostGw);
        assert!(value.contains("host-gw") && !value.contains("BackendData"));
    }
}
