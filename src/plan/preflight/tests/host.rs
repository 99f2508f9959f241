//! A host without a flaw, what a node needs of it, and functions that change it.

use tweed_netlink::nftables::{FilterChain, TableFamily};

use super::super::cni::{Cni, CniConfig, PluginFolder};
use super::super::*;
use crate::model::entry::{Condition, LinkName, Match, Rule, Verdict};
use crate::model::node::Interface;
use crate::model::node::tests::interface;
use crate::model::policy::Forward;
use crate::model::prefix::{Family, Prefix};

pub(super) use crate::model::node::tests::address;

/// A tunnel over `eth0`, and a thousand peers on the link.
pub(super) fn needs() -> Needs {
    Needs {
        families: Family::ALL.into(),
        networks: vec![prefix("10.244.0.0/16"), prefix("fd00:10:244::/56")],
        subnets: vec![prefix("10.244.1.0/24"), prefix("fd00:10:244:1::/64")],
        underlay: Some(LinkName::new("eth0")),
        tunnels: vec![LinkName::new("flannel.1"), LinkName::new("flannel-v6.1")],
        routing: Routing::Asymmetric,
        nexthops: true,
        ports: vec![Port::Tunnel(8472), Port::Probes(8475)],
        neighbours: Family::ALL.map(|family| (family, 1000)).into(),
        pod_mtu: Some(1430),
        forward: Forward::Leave,
    }
}

/// A host without a flaw.
pub(super) fn host() -> Host {
    let sysctls = [
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv6/conf/all/forwarding", "1"),
        ("net/ipv4/conf/all/rp_filter", "1"),
        ("net/ipv4/conf/eth0/rp_filter", "2"),
        ("net/ipv4/conf/flannel.1/rp_filter", "2"),
        // It filters no packets of IPv6.
        ("net/ipv4/conf/flannel-v6.1/rp_filter", "1"),
        ("net/ipv4/neigh/default/gc_thresh2", "2048"),
        ("net/ipv4/neigh/default/gc_thresh3", "4096"),
    ];
    let networks = [
        unit(
            "10-tweed.network",
            "[Match]\nName=flannel.* flannel-v6.* cni0\n[Link]\nUnmanaged=yes",
        ),
        unit("50-all.network", "[Match]\nName=*\n[Network]\nDHCP=yes"),
    ];
    let links = [
        unit("10-tweed.link", "[Match]\nOriginalName=flannel*\n[Link]\nMACAddressPolicy=none"),
        unit("99-default.link", "[Match]\nOriginalName=*\n[Link]\nMACAddressPolicy=persistent"),
    ];
    let foreign = "[Network]\nManageForeignRoutes=no\nManageForeignNextHops=no";
    Host {
        sysctls: sysctls.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        links: vec![
            link("eth0", 1500),
            link("flannel.1", 1450),
            link("flannel-v6.1", 1430),
            link("cni0", 1430),
        ],
        sockets: vec![
            Socket { port: 8472, owner: Owner::Unknown },
            Socket { port: 8475, owner: Owner::Tweed },
        ],
        chains: vec![forward(Verdict::Accept, [])],
        systemd: Systemd {
            version: Some(256),
            networkd: Some(unit("networkd.conf", foreign)),
            networks: networks.into(),
            links: links.into(),
        },
        cni: cni(&[FLANNEL, ("87-podman-bridge.conflist", r#"{"type":"bridge"}"#)]),
        ..Host::default()
    }
}

pub(super) const FLANNEL: (&str, &str) = ("10-flannel.conf", r#"{"type":"flannel"}"#);

/// These configs, and all plugins that they need.
pub(super) fn cni(configs: &[(&str, &str)]) -> Cni {
    let config = |(name, text): &(&str, &str)| CniConfig::parse(format!("/etc/{name}"), text);
    let configs = configs.iter().map(config).collect();
    Cni { configs, folders: plugins(&[&["flannel", "loopback"]]) }
}

/// A folder for each list of plugins.
pub(super) fn plugins(folders: &[&[&str]]) -> Vec<PluginFolder> {
    let folders = folders.iter().enumerate().map(|(number, plugins)| PluginFolder {
        path: format!("/folder{number}"),
        plugins: plugins.iter().map(ToString::to_string).collect(),
    });
    folders.collect()
}

pub(super) fn unread(obstacle: Obstacle) -> Unread {
    let (what, place) = ("rules of nftables", "nft list ruleset".to_owned());
    Unread { what, place, obstacle }
}

pub(super) fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

pub(super) fn link(name: &str, mtu: u32) -> Interface {
    Interface { mtu, ..interface(name, &[]) }
}

/// Gives `link` the address that a bridge of pods of `subnet` has.
pub(super) fn bridge(host: &mut Host, link: &str, subnet: &str) {
    let subnet = prefix(subnet);
    let own = address(&format!("{}/{}", subnet.gateway(), subnet.prefix_len()));
    let link = host.links.iter_mut().find(|known| known.name == LinkName::new(link));
    link.unwrap().addresses.push(own);
}

pub(super) fn unit(name: &str, text: &str) -> Unit {
    Unit::parse(format!("/etc/systemd/network/{name}"), [text])
}

pub(super) fn forward(policy: Verdict, rules: impl IntoIterator<Item = Rule>) -> FilterChain {
    FilterChain {
        family: TableFamily::Only(Family::V4),
        table: "filter".to_owned(),
        name: "FORWARD".to_owned(),
        policy: Some(policy),
        rules: rules.into_iter().collect(),
    }
}

pub(super) fn chain(name: &str, rules: impl IntoIterator<Item = Rule>) -> FilterChain {
    FilterChain { name: name.to_owned(), policy: None, ..forward(Verdict::Accept, rules) }
}

pub(super) fn any(then: Verdict) -> Rule {
    Rule::of([], then)
}

pub(super) fn from(network: &str, then: Verdict) -> Rule {
    Rule::of([Condition::source(Match::Is, prefix(network))], then)
}

pub(super) fn to(network: &str, then: Verdict) -> Rule {
    Rule::of([Condition::destination(Match::Is, prefix(network))], then)
}

pub(super) fn set(host: &mut Host, name: &str, value: &str) {
    host.sysctls.insert(name.to_owned(), value.to_owned());
}

pub(super) fn mtu(host: &mut Host, name: &str, mtu: u32) {
    let link = host.links.iter_mut().find(|link| link.name == LinkName::new(name));
    link.unwrap().mtu = mtu;
}
