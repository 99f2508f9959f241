//! Faults of a node: reboots, other addresses, blocked traffic.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Context, Result};
use ipnetwork::IpNetwork;

use crate::network::address::Family;
use crate::network::namespace::Namespace;
use crate::network::segment::Segment;
use crate::node::Node;

/// Whether `subnet.env` and the files next to it are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    Kept,
    Lost,
}

impl Node {
    /// Removes what a reboot removes: `flannel.*` with its entries, and all routes into the pod
    /// network.
    ///
    /// Pods and their bridge stay, so that they can be probed. Needs a `subnet.env`; stop the
    /// daemon first.
    pub fn wipe(&self, files: Files) -> Result<()> {
        let networks = self.subnet_env()?.networks;
        for link in self.links()?.into_iter().filter(|link| link.name.starts_with("flannel")) {
            self.ip(format!("link del {}", link.name))?;
        }
        // `ip route flush` cannot remove routes that refer to a nexthop object.
        self.ip("nexthop flush protocol 241")?;
        networks.into_iter().try_for_each(|network| self.flush(network))?;
        match files {
            Files::Kept => Ok(()),
            Files::Lost => self.empty_folder(),
        }
    }

    /// Replaces the address of `eth0` by another one of the same prefix.
    pub fn renumber(&self, address: IpAddr) -> Result<()> {
        let old = self.underlay_address(Family::of(address))?;
        let new = IpNetwork::new(address, old.prefix())?;
        // Otherwise the addresses added later are removed with the first one.
        self.namespace().set_sysctl("net.ipv4.conf.eth0.promote_secondaries", "1")?;
        self.ip(format!("address add {new} dev eth0 nodad"))?;
        self.ip(format!("address del {old} dev eth0")).map(drop)
    }

    /// Changes the MAC address of a device while it is up.
    pub fn change_mac(&self, dev: &str, mac: &str) -> Result<()> {
        self.ip(format!("link set {dev} address {mac}")).map(drop)
    }

    /// All routes except the kernel's own, which belong to addresses.
    fn flush(&self, network: IpNetwork) -> Result<()> {
        let family = Family::of(network.ip());
        let inside = |destination: &str| {
            destination.parse::<IpNetwork>().is_ok_and(|it| network.contains(it.ip()))
        };
        let routes = self.routes(family)?.into_iter().filter(|route| inside(&route.destination));
        let protocols: BTreeSet<_> = routes.filter_map(|route| route.protocol).collect();
        protocols.iter().filter(|protocol| *protocol != "kernel").try_for_each(|protocol| {
            let routes = format!("root {network} protocol {protocol}");
            self.ip(format!("{} route flush {routes}", family.flag())).map(drop)
        })
    }

    fn empty_folder(&self) -> Result<()> {
        let folder = self.folder();
        std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        std::fs::create_dir(&folder).with_context(|| folder.display().to_string())
    }
}

impl Segment {
    /// Drops packets between its wires, by a selector of `nft(8)`: `ip saddr 10.244.0.0/16`.
    pub fn filter(&self, selector: &str) -> Result<()> {
        let hook = "type filter hook forward priority 0;";
        let rules = format!("table bridge lab {{ chain lab {{ {hook} {selector} drop; }}; }}");
        self.switch().run("nft", &[&rules]).map(drop)
    }

    /// Undoes every [`filter`](Self::filter).
    pub fn unfilter(&self) -> Result<()> {
        self.switch().run("nft", &["delete table bridge lab"]).map(drop)
    }
}

impl Namespace {
    /// Drops packets that it sends or forwards, by a selector of `ip rule`: `ipproto udp dport
    /// 8472`.
    ///
    /// Packets addressed to the namespace itself still arrive.
    pub fn block(&self, selector: &str) -> Result<()> {
        self.ip(&format!("{} rule add {selector} blackhole", family(selector))).map(drop)
    }

    /// Undoes [`block`](Self::block) with the same selector.
    pub fn unblock(&self, selector: &str) -> Result<()> {
        self.ip(&format!("{} rule del {selector} blackhole", family(selector))).map(drop)
    }
}

/// Without an address, the family is IPv4.
fn family(selector: &str) -> &'static str {
    if selector.contains(':') { Family::V6.flag() } else { Family::V4.flag() }
}
