//! Emulates flanneld on a node: sends the same requests to kernel and store, without the program.

mod lease;
mod store;

use anyhow::{Context, Result, ensure};
use ipnetwork::IpNetwork;
use tweed_lab::{Family, Node, SubnetEnv};

pub use lease::Lease;
pub use store::Store;

use crate::peer::Peer;
use crate::scene::{Iptables, network, write_flannels_rules};
use crate::table::Backend;

/// Of the underlay; the tunnel of each family subtracts its overhead.
const MTU: u32 = 1500;
const OVERHEAD: u32 = 50;

/// Runs on one node, with `--ip-masq`.
pub struct Flanneld<'a> {
    pub node: &'a Node,
    pub store: &'a Store,
    /// Has no `Mixed`.
    pub backend: Backend,
}

impl Flanneld<'_> {
    /// A whole start, until it has read the leases of the other nodes.
    ///
    /// `drawn` are the subnets it allocates if the store has none for this node.
    pub fn start(&self, drawn: &[IpNetwork]) -> Result<Lease> {
        let subnets = self.store.subnets_of(self.node)?.unwrap_or_else(|| drawn.to_vec());
        let ends = subnets.into_iter().map(|subnet| self.end(subnet));
        let lease = Lease { backend: self.backend, ends: ends.collect::<Result<_>>()? };
        self.store.publish(self.node, &lease)?;
        for subnet in lease.subnets() {
            let network = network(Family::of(subnet.ip()));
            write_flannels_rules(self.node, Iptables::Nft, network, subnet)?;
        }
        std::fs::write(self.node.subnet_file(), self.subnet_env(&lease)?.to_string())?;
        self.hear()?;
        Ok(lease)
    }

    /// Handles every lease that is written, new or known.
    pub fn hear(&self) -> Result<()> {
        let own = self.node.subnet_env()?.subnets();
        for lease in self.store.leases(self.node)? {
            ensure!(lease.backend == self.backend, "flannel ignores {lease:?}");
            if lease.subnets() != own {
                lease.ends.iter().try_for_each(|end| self.reach(end))?;
            }
        }
        Ok(())
    }

    /// Handles a lease that was removed.
    pub fn forget(&self, lease: &Lease) -> Result<()> {
        lease.ends.iter().try_for_each(|peer| {
            let (base, mac, dev) = (peer.subnet.network(), &peer.mac, peer.device());
            if self.backend == Backend::Vxlan {
                self.node.ip(format!("neighbour del {base} lladdr {mac} dev {dev}"))?;
                let ip = peer.public_ip;
                self.node.bridge(format!("fdb del {mac} dev {dev} dst {ip} self"))?;
            }
            self.node.ip(format!("route del {}", self.route(peer))).map(drop)
        })
    }

    fn end(&self, subnet: IpNetwork) -> Result<Peer> {
        let public_ip = self.node.address(Family::of(subnet.ip()))?;
        let mut end = Peer { subnet, public_ip, mac: String::new() };
        if self.backend == Backend::Vxlan {
            end.mac = self.device(&end)?;
        }
        Ok(end)
    }

    /// Creates the device if it is missing; returns its MAC address, which is random.
    fn device(&self, end: &Peer) -> Result<String> {
        let (node, dev, ip) = (self.node, end.device(), end.public_ip);
        if node.link(dev)?.is_some() {
            keeps_its_device(node, end)?;
        } else {
            let kind = format!("vxlan id 1 local {ip} dev eth0 dstport 8472 nolearning");
            let mtu = MTU - OVERHEAD;
            node.ip(format!("link add {dev} mtu {mtu} txqueuelen 0 type {kind}"))?;
            node.namespace().set_sysctl(&format!("net/ipv6/conf/{dev}/accept_ra"), "0")?;
        }
        let wanted = IpNetwork::from(end.subnet.network());
        let held = node.addresses(dev)?.into_iter().map(|it| it.address);
        let mut held = held.filter(|address| end.subnet.contains(address.ip()));
        if held.all(|address| address != wanted) {
            node.ip(format!("address add {wanted} dev {dev}"))?;
        }
        node.ip(format!("link set {dev} up"))?;
        Ok(node.link(dev)?.context("the device has gone")?.mac)
    }

    fn subnet_env(&self, lease: &Lease) -> Result<SubnetEnv> {
        let (mut networks, mut gateways) = (Vec::new(), Vec::new());
        for subnet in lease.subnets() {
            networks.push(network(Family::of(subnet.ip())).parse()?);
            let first = subnet.iter().nth(1).context("a subnet without addresses")?;
            gateways.push(IpNetwork::new(first, subnet.prefix())?);
        }
        let overhead = if self.backend == Backend::Vxlan { OVERHEAD } else { 0 };
        Ok(SubnetEnv { networks, gateways, mtu: MTU - overhead, masquerade: true })
    }

    fn reach(&self, peer: &Peer) -> Result<()> {
        let (base, mac, dev) = (peer.subnet.network(), &peer.mac, peer.device());
        if self.backend == Backend::HostGw {
            return self.reach_directly(peer);
        }
        self.node.ip(format!("neighbour replace {base} dev {dev} lladdr {mac} nud permanent"))?;
        let ip = peer.public_ip;
        self.node.bridge(format!("fdb replace {mac} dev {dev} dst {ip} self permanent"))?;
        self.node.ip(format!("route replace {}", self.route(peer))).map(drop)
    }

    /// A correct route stays; the first wrong one is deleted before another is added.
    fn reach_directly(&self, peer: &Peer) -> Result<()> {
        let is_right = |route: &tweed_lab::Route| {
            route.gateway == Some(peer.public_ip) && route.dev.as_deref() == Some("eth0")
        };
        let found = self.node.route_to(peer.subnet)?;
        if found.as_ref().is_some_and(is_right) {
            return Ok(());
        }
        ensure!(found.is_none(), "flannel would delete this route first: {found:?}");
        self.node.ip(format!("route add {}", self.route(peer))).map(drop)
    }

    /// Without a protocol, `ip` uses `boot`, as flannel does.
    fn route(&self, peer: &Peer) -> String {
        let (subnet, base) = (peer.subnet, peer.subnet.network());
        match self.backend {
            Backend::Vxlan => format!("{subnet} via {base} dev {} onlink", peer.device()),
            Backend::HostGw => format!("{subnet} via {} dev eth0", peer.public_ip),
        }
    }
}

/// The attributes that flannel compares before it keeps a device.
fn keeps_its_device(node: &Node, end: &Peer) -> Result<()> {
    let device = node.link(end.device())?.context("no device")?;
    let vxlan = device.vxlan.context("no vxlan device")?;
    let settings = (vxlan.id, vxlan.port, vxlan.learning, vxlan.link.as_deref(), vxlan.local);
    ensure!(settings == (1, 8472, false, Some("eth0"), Some(end.public_ip)), "{settings:?}");
    let details = node.ip(format!("-details link show {}", end.device()))?;
    let mut settings = details.lines().filter(|line| line.trim_start().starts_with("vxlan"));
    let settings = settings.next().context("no settings")?;
    let unwanted = ["l2miss", "l3miss", "gbp", "group", "remote", "proxy", "rsc"];
    let found = settings.split_whitespace().find(|word| unwanted.contains(word));
    ensure!(found.is_none(), "{found:?}: {settings}");
    Ok(())
}
