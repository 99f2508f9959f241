//! Pod networks that overlap other networks of the host.

use std::net::IpAddr;

use super::Facts;
use crate::model::entry::{LinkName, POD_BRIDGE};
use crate::model::prefix::{Prefix, is_link_local};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Network {network} overlaps {with}")]
pub struct Overlap {
    pub network: Prefix,
    pub with: Overlapped,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Overlapped {
    /// A prefix of the external interface.
    #[error("{1}, the prefix of {0}")]
    Underlay(LinkName, Prefix),
    /// The service address of the Kubernetes API server, the first of the service range.
    #[error("the service range of {0}")]
    Service(IpAddr),
}

impl Overlap {
    /// The overlaps of `networks` with these prefixes of the underlay and with the service range.
    pub fn of(
        networks: impl IntoIterator<Item = Prefix>,
        underlay: &[(&LinkName, Prefix)],
        service: Option<IpAddr>,
    ) -> Vec<Self> {
        let on = |network: Prefix| {
            let on_link = underlay.iter().filter(move |(_, prefix)| network.overlaps(*prefix));
            let on_link =
                on_link.map(|(link, prefix)| Overlapped::Underlay((*link).clone(), *prefix));
            let service = service.filter(|service| network.contains(*service));
            let all = on_link.chain(service.map(Overlapped::Service));
            all.map(move |with| Self { network, with }).collect::<Vec<_>>()
        };
        networks.into_iter().flat_map(on).collect()
    }
}

impl Facts {
    /// The addresses of this host, each as a host prefix, and the prefixes of its links: no new
    /// subnet of pods may overlap them. Links of pods are excluded.
    pub fn occupied(&self) -> Vec<Prefix> {
        let links = self.interfaces.iter().filter(|link| !is_of_pods(&link.name));
        let addresses = links.flat_map(|link| &link.addresses);
        let addresses = addresses.filter(|address| !is_link_local(address.address));
        let prefixes = addresses.flat_map(|address| {
            let on_link = Prefix::holding(address.address, address.prefix_len);
            on_link.into_iter().chain([Prefix::host(address.address)])
        });
        prefixes.collect()
    }
}

/// Whether the addresses of `link` belong to the current or a former subnet of this node: those of
/// the tunnel device, the bridge, and the loopback, where they outlive the device. They do not
/// block a subnet: without a lease and a checkpoint, the same subnet is the best choice.
fn is_of_pods(link: &LinkName) -> bool {
    link.is_tunnel() || link.is_loopback() || link.as_str() == POD_BRIDGE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::node::tests::interface;

    #[test]
    fn addresses_of_the_host_are_occupied_and_those_of_its_pods_are_not() {
        let interfaces = vec![
            interface("lo", &["127.0.0.1/8", "::1/128", "10.5.7.1/32"]),
            interface("eth0", &["10.0.0.5/24", "fe80::1/64"]),
            interface("cni0", &["10.5.7.1/24"]),
            interface("flannel.1", &["10.5.7.0/32"]),
            interface("flannel-v6.1", &["fd00:5::/128"]),
        ];
        let facts = Facts { interfaces, ..Facts::default() };
        let occupied: Vec<String> = facts.occupied().iter().map(ToString::to_string).collect();
        assert_eq!(occupied, ["10.0.0.0/24", "10.0.0.5/32"]);
    }

    #[test]
    fn a_network_that_contains_the_underlay_or_the_services_is_reported() {
        let eth0 = LinkName::new("eth0");
        let prefix = |text: &str| text.parse::<Prefix>().unwrap();
        let reported = |networks: &[&str]| {
            let networks = networks.iter().map(|text| prefix(text));
            let underlay = [(&eth0, prefix("10.0.0.0/24")), (&eth0, prefix("fd00:5::/64"))];
            let service = Some("10.96.0.1".parse().unwrap());
            let overlaps = Overlap::of(networks, &underlay, service);
            overlaps.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(reported(&["10.244.0.0/16", "fd00:10:244::/56"]), [""; 0]);
        assert_eq!(
            reported(&["10.0.0.0/8", "fd00::/16"]),
            [
                "Network 10.0.0.0/8 overlaps 10.0.0.0/24, the prefix of eth0",
                "Network 10.0.0.0/8 overlaps the service range of 10.96.0.1",
                "Network fd00::/16 overlaps fd00:5::/64, the prefix of eth0",
            ]
        );
    }
}
