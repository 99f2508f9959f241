//! Whether a packet arrives, by the state of the kernels that it passes.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use tweed::mac::MacAddr;
use tweed::model::entry::{
    Base, ChainName, Entry, Iptables, KernelState, Key, Link, LinkKind, LinkName, Route, RouteKind,
    Setting, SettingKind,
};
use tweed::model::path::Path;
use tweed::model::prefix::{Family, Prefix};
use tweed_model::ModelKernel;

use crate::packets::stack::{Pods, UNDERLAY, address, router, segment_len, tunnel};

/// A host as packets see it.
#[derive(Clone, Debug)]
pub struct Host {
    pub kernel: ModelKernel,
    /// The last byte of its addresses on the segment.
    pub address: u8,
    /// Whether it is switched on, with its cable plugged in.
    pub is_up: bool,
    /// Where its pods are.
    pub pods: Option<Pods>,
}

impl Host {
    pub(crate) fn address(&self, family: Family) -> IpAddr {
        address(family, self.address)
    }
}

/// All hosts, on one segment.
#[derive(Debug, Default)]
pub struct Segment {
    pub hosts: Vec<Host>,
    /// From which host nothing arrives at which other one.
    pub cut: BTreeSet<(usize, usize)>,
    /// From which host nothing with addresses of pods arrives at which other one.
    pub cut_direct: BTreeSet<(usize, usize)>,
    /// Whether it drops packets with addresses of pods, as clouds do.
    pub drops_pods: bool,
}

/// Where a packet is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    NoRoute,
    NoNeighbour,
    NoForwardingEntry,
    /// The host is off, or the segment is cut.
    Segment,
    /// `FORWARD` of iptables drops it.
    Forwarded,
    /// The underlay drops packets with addresses of pods.
    Underlay,
    /// The tunnel device sends from an address that its host does not have.
    OtherSource,
    /// The receiver has no such tunnel device.
    NoTunnel,
    /// The tunnel device of the receiver has another MAC address.
    OtherMac,
    /// The receiver does not let this sender into its tunnel.
    Guard,
    /// The reverse-path filter of the receiver.
    Filter,
    /// It arrives at a host that does not have its destination.
    Elsewhere,
}

/// Where a packet arrives, and by which path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub host: usize,
    pub path: Path,
}

/// How a packet leaves its sender.
pub(crate) enum Exit {
    /// From the address of the tunnel device to this host, and there to the tunnel device with this MAC
    /// address.
    Tunnel {
        source: IpAddr,
        to: IpAddr,
        mac: MacAddr,
    },
    Direct(IpAddr),
}

impl Exit {
    const fn path(&self) -> Path {
        match self {
            Self::Tunnel { .. } => Path::Tunnel,
            Self::Direct(_) => Path::Direct,
        }
    }

    /// The link that it leaves by.
    pub(crate) fn link(&self) -> LinkName {
        match self {
            Self::Tunnel { to, .. } => tunnel(Family::of(*to)),
            Self::Direct(_) => LinkName::new(UNDERLAY),
        }
    }
}

/// The number of a pod's address in the subnet of its node.
const POD: u128 = 2;

/// All that decides about a packet, but kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    hosts: Vec<(u8, bool, Option<Pods>)>,
    cut: BTreeSet<(usize, usize)>,
    cut_direct: BTreeSet<(usize, usize)>,
    drops_pods: bool,
}

impl Segment {
    pub fn outline(&self) -> Outline {
        let Self { hosts, cut, cut_direct, drops_pods } = self;
        let hosts = hosts.iter().map(|host| (host.address, host.is_up, host.pods)).collect();
        let (cut, cut_direct) = (cut.clone(), cut_direct.clone());
        Outline { hosts, cut, cut_direct, drops_pods: *drops_pods }
    }

    /// Whether it passes all packets.
    pub fn is_whole(&self) -> bool {
        self.cut.is_empty() && self.cut_direct.is_empty() && !self.drops_pods
    }

    /// Whether direct packets from one host to the other are lost.
    pub fn drops_directly(&self, path: (usize, usize)) -> bool {
        self.drops_pods || self.cut_direct.contains(&path)
    }

    /// Ends all faults.
    pub fn heal(&mut self) {
        self.cut.clear();
        self.cut_direct.clear();
        self.drops_pods = false;
        self.hosts.iter_mut().for_each(|host| host.is_up = true);
    }

    /// How a packet between pods arrives, by the routes of the sender's kernel.
    ///
    /// # Errors
    /// Where it is lost.
    pub fn pod_to_pod(&self, (from, to): (usize, usize), family: Family) -> Result<Arrival, Lost> {
        let (source, destination) = (self.pod(from, family)?, self.pod(to, family)?);
        self.forward(from, family)?;
        let arrival = self.send(from, (source, destination))?;
        self.forward(arrival.host, family)?;
        let there = self.host(arrival.host)?.pods.and_then(|pods| pods.of(family));
        let is_there = there.is_some_and(|it| it.contains(destination));
        if is_there { Ok(arrival) } else { Err(Lost::Elsewhere) }
    }

    /// Whether a host forwards packets from or to pods.
    fn forward(&self, at: usize, family: Family) -> Result<(), Lost> {
        let (kernel, name) = (&self.host(at)?.kernel, forwarded(family));
        let accepts = || {
            kernel.read_state(|state| match state.get(&Key::Chain(name)) {
                Some(Entry::Chain(chain)) => !chain.rules.is_empty(),
                _ => false,
            })
        };
        if !kernel.drops(name) || accepts() { Ok(()) } else { Err(Lost::Forwarded) }
    }

    /// The address of a pod on a host.
    pub(crate) fn pod(&self, index: usize, family: Family) -> Result<IpAddr, Lost> {
        let pods = self.host(index)?.pods.and_then(|pods| pods.of(family));
        Ok(pods.ok_or(Lost::NoRoute)?.nth(POD))
    }

    /// Where a packet arrives that a host sends by the routes of its kernel.
    pub(crate) fn send(
        &self,
        from: usize,
        (source, destination): (IpAddr, IpAddr),
    ) -> Result<Arrival, Lost> {
        let exit = self.exit(from, destination)?;
        let (host, link) = self.carry(from, &exit)?;
        self.host(host)?.kernel.read_state(|state| filter(state, source, &link))?;
        Ok(Arrival { host, path: exit.path() })
    }

    /// How a packet leaves a host.
    pub(crate) fn exit(&self, from: usize, destination: IpAddr) -> Result<Exit, Lost> {
        self.host(from)?.kernel.read_state(|state| exit(state, destination))
    }

    /// The fate of a probe from the daemon of a host to that of the host with `destination`.
    ///
    /// # Errors
    /// Where it is lost.
    pub fn probe(
        &self,
        from: usize,
        (source, destination): (IpAddr, IpAddr),
        path: Path,
        gateway: IpAddr,
    ) -> Result<usize, Lost> {
        let exit = match path {
            Path::Direct => Exit::Direct(gateway),
            Path::Tunnel => self.exit(from, destination)?,
        };
        let (at, link) = self.carry(from, &exit)?;
        let is_local = self.host(at)?.kernel.read_state(|state| {
            filter(state, source, &link)?;
            if is_own(state, destination) { Ok(()) } else { Err(Lost::Elsewhere) }
        });
        is_local.map(|()| at)
    }

    /// The host at which the packet arrives, and by which of its links.
    fn carry(&self, from: usize, exit: &Exit) -> Result<(usize, LinkName), Lost> {
        let (Exit::Direct(address) | Exit::Tunnel { to: address, .. }) = exit;
        let family = Family::of(*address);
        let mut hosts = self.hosts.iter().enumerate();
        let found =
            hosts.find(|(index, it)| *index != from && it.address(family) == *address && it.is_up);
        let (at, receiver) = found.ok_or(Lost::Segment)?;
        if !self.host(from)?.is_up || self.cut.contains(&(from, at)) {
            return Err(Lost::Segment);
        }
        match exit {
            Exit::Direct(_) if self.drops_directly((from, at)) => Err(Lost::Underlay),
            Exit::Direct(_) => Ok((at, exit.link())),
            Exit::Tunnel { source, .. } if *source != self.host(from)?.address(family) => {
                Err(Lost::OtherSource)
            }
            Exit::Tunnel { source, mac, .. } => {
                receiver.kernel.read_state(|state| decapsulate(state, *source, *mac))?;
                Ok((at, exit.link()))
            }
        }
    }

    pub(crate) fn host(&self, index: usize) -> Result<&Host, Lost> {
        self.hosts.get(index).ok_or(Lost::Segment)
    }
}

/// The chain behind `FORWARD` of iptables-nft, which accepts the packets of pods.
pub(crate) const fn forwarded(family: Family) -> ChainName {
    ChainName { iptables: Iptables::Nft, family, base: Base::Forward }
}

/// The route of the kernel to `destination`, down to the outer address.
fn exit(state: &KernelState, destination: IpAddr) -> Result<Exit, Lost> {
    let (link, gateway) = lookup(state, destination).ok_or(Lost::NoRoute)?;
    if !link.is_tunnel() {
        return Ok(Exit::Direct(gateway));
    }
    let Some(Entry::Neighbour(neighbour)) = state.get(&Key::Neighbour(link.clone(), gateway))
    else {
        return Err(Lost::NoNeighbour);
    };
    let Some(source) = source_of_tunnel(state, &link) else { return Err(Lost::OtherSource) };
    match state.get(&Key::Fdb(link, neighbour.mac)) {
        Some(Entry::Fdb(fdb)) => Ok(Exit::Tunnel { source, to: fdb.destination, mac: fdb.mac }),
        _ => Err(Lost::NoForwardingEntry),
    }
}

/// The address that a tunnel device sends from.
fn source_of_tunnel(state: &KernelState, link: &LinkName) -> Option<IpAddr> {
    match state.get(&Key::Link(link.clone())) {
        Some(Entry::Link(Link { kind: LinkKind::Vxlan(vxlan), .. })) => vxlan.local,
        _ => None,
    }
}

/// Whether a link of tweed has the address.
pub(crate) fn is_own(state: &KernelState, address: IpAddr) -> bool {
    let is_it =
        |entry: &Arc<Entry>| matches!(&**entry, Entry::Address(own) if own.address == address);
    state.local().any(is_it)
}

/// The link and the next hop of the longest route, at last of the default one; none if that refuses
/// packets.
fn lookup(state: &KernelState, destination: IpAddr) -> Option<(LinkName, IpAddr)> {
    let family = Family::of(destination);
    let segment = Prefix::holding(address(family, 0), segment_len(family));
    if segment.is_some_and(|it| it.contains(destination)) {
        return Some((LinkName::new(UNDERLAY), destination));
    }
    let covering = state.routes().filter(|route| route.destination.contains(destination));
    let best = covering.max_by_key(|it| (it.destination.prefix_len(), u32::MAX - it.metric));
    let Some(best) = best else { return Some((LinkName::new(UNDERLAY), router(family))) };
    let Route { kind: RouteKind::Unicast, nexthop, gateway, link, .. } = best else { return None };
    let (link, gateway) = match nexthop {
        Some(id) => match state.get(&Key::Nexthop(*id)) {
            Some(Entry::Nexthop(object)) => (object.link.clone(), object.gateway),
            _ => return None,
        },
        None => (link.clone(), *gateway),
    };
    Some((link?, gateway.unwrap_or(destination)))
}

/// Whether the tunnel device takes the packet from `source` to `mac`.
fn decapsulate(state: &KernelState, source: IpAddr, mac: MacAddr) -> Result<(), Lost> {
    let family = Family::of(source);
    match state.get(&Key::Link(tunnel(family))) {
        Some(Entry::Link(Link { up: true, kind: LinkKind::Vxlan(_), mac: own, .. })) => {
            if *own != mac {
                return Err(Lost::OtherMac);
            }
        }
        _ => return Err(Lost::NoTunnel),
    }
    let guard = state.local().find_map(|entry| match &**entry {
        Entry::Table(it) if it.has_peers() && it.name.family == family => Some(&it.name),
        _ => None,
    });
    // Without a renewal, the table lets everything in.
    let Some(table) = guard.filter(|it| state.get(&Key::Renewal((*it).clone())).is_some()) else {
        return Ok(());
    };
    match state.get(&Key::Element(table.clone(), source)) {
        Some(Entry::Element(_)) => Ok(()),
        _ => Err(Lost::Guard),
    }
}

/// A strict filter of `link` drops packets whose answer would leave by another link. So does a loose
/// one if the link has no address. For IPv6, there is none.
fn filter(state: &KernelState, source: IpAddr, link: &LinkName) -> Result<(), Lost> {
    let family = Family::of(source);
    if family == Family::V6 {
        return Ok(());
    }
    let key = Key::Setting(SettingKind::ReversePath, link.clone());
    let is_strict = matches!(state.get(&key), Some(Entry::Setting(Setting { on: true, .. })));
    let is_bare = link.is_tunnel() && addresses_of_tunnel(state, family).next().is_none();
    let is_back = || lookup(state, source).is_some_and(|(way, _)| way == *link);
    if (is_strict || is_bare) && !is_back() { Err(Lost::Filter) } else { Ok(()) }
}

pub(crate) fn addresses_of_tunnel(
    state: &KernelState,
    family: Family,
) -> impl Iterator<Item = IpAddr> {
    state.local().filter_map(move |entry| match &**entry {
        Entry::Address(own) if own.link.is_tunnel_of(family) => Some(own.address),
        _ => None,
    })
}
