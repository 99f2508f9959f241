//! The hops of a packet in the order of the kernel, up to the first that drops it.

use std::net::IpAddr;

use super::HopState::{self, Dropped, Passed, Planned, Unknown};
use super::rules::{self, Arrival, Header};
use super::state::NextHop;
use super::{
    Delivery, Hop, HopKind, HostState, PacketOrigin, PacketTarget, PeerEnd, Question, Trace,
    TracedPacket,
};
use crate::model::entry::{
    Entry, Fdb, Hook, Key, LinkName, RouteKind, SettingKind, Verdict, Vxlan,
};
use crate::model::lease::{Endpoint, Vtep};
use crate::model::node::RouteLookup;
use crate::model::path::{DegradedCause, Path, PeerReachability};
use crate::model::prefix::{Family, Prefix};
use crate::plan::backend;

/// The size of small probes, in bytes: where large ones are lost, packets up to this size are not.
const SMALL: u32 = 100;

pub(super) struct Walk<'a> {
    question: &'a Question<'a>,
    host: &'a HostState<'a>,
    translated_to: Option<IpAddr>,
    leaves_by: Option<Path>,
    hops: Vec<Hop>,
}

/// The walk has ended, with a hop that drops the packet or that cannot be followed.
struct Ended;

type Walked<T = ()> = Result<T, Ended>;

impl<'a> Walk<'a> {
    pub(super) const fn new(question: &'a Question<'a>, host: &'a HostState<'a>) -> Self {
        Self { question, host, translated_to: None, leaves_by: None, hops: Vec::new() }
    }

    pub(super) fn finish(mut self) -> Trace {
        let (Ok(()) | Err(Ended)) = self.walk();
        let Self { question, translated_to, leaves_by, hops, .. } = self;
        let delivery = match hops.last().map(|hop| hop.state) {
            Some(Dropped) => Delivery::Dropped,
            Some(Unknown) => Delivery::Unknown,
            Some(Passed | Planned) | None => Delivery::Delivered,
        };
        Trace { packet: question.packet, translated_to, leaves_by, hops, delivery }
    }

    fn walk(&mut self) -> Walked {
        let Question { origin, target, .. } = self.question;
        match origin {
            PacketOrigin::Pod(subnet) => self.leaves_pod(*subnet)?,
            PacketOrigin::Host => self.passes(HopKind::Host, "this node sends it")?,
            PacketOrigin::Peer(peer) => self.arrives_from(peer)?,
        }
        let destination = self.packet().destination;
        match (origin, target) {
            (_, PacketTarget::Host) => self.reaches_host(),
            (_, PacketTarget::Pod(_) | PacketTarget::Outside)
                if self.host.is_local(destination) =>
            {
                self.reaches_host()
            }
            (PacketOrigin::Pod(_), PacketTarget::Pod(subnet)) => self.stays_on_bridge(*subnet),
            (PacketOrigin::Host | PacketOrigin::Peer(_), PacketTarget::Pod(_)) => {
                self.reaches_pod()
            }
            (_, PacketTarget::Peer(peer)) => self.goes_to(peer),
            (_, PacketTarget::Outside) => self.leaves_the_network(),
        }
    }

    /// A pod sends by its default route, which leads to the bridge.
    fn leaves_pod(&mut self, subnet: Prefix) -> Walked {
        let source = self.packet().source;
        let Some(bridge) = self.host.bridge(subnet) else {
            let gateway = subnet.gateway();
            let why = format!("no link has the address {gateway}: no pod of {subnet} runs here");
            return self.drops(HopKind::Pod, why);
        };
        self.passes(HopKind::Pod, format!("{source} is a pod of this node, behind {bridge}"))?;
        self.fits(bridge)
    }

    fn stays_on_bridge(&mut self, subnet: Prefix) -> Walked {
        let destination = self.packet().destination;
        let bridge = self.host.bridge(subnet).map_or("the bridge", LinkName::as_str);
        let text = format!("{bridge} passes it to {destination}: it is not routed");
        self.passes(HopKind::Pod, text)
    }

    fn reaches_host(&mut self) -> Walked {
        let destination = self.packet().destination;
        let text = format!("{destination} is an address of this node: it is not forwarded");
        self.passes(HopKind::Host, text)
    }

    /// Routed to a pod of this node.
    fn reaches_pod(&mut self) -> Walked {
        let destination = self.packet().destination;
        let next = self.takes_route("no link has the subnet of this node: no pod runs here")?;
        if let Some(gateway) = next.gateway {
            let why =
                format!("{gateway} is not a pod: it is unknown whether it forwards the packet");
            return self.cannot_follow(HopKind::Nexthop, why);
        }
        self.fits(next.link)?;
        self.passes_forward()?;
        self.changes_source()?;
        let text = format!("{destination} is resolved on {}, when the packet is sent", next.link);
        self.passes(HopKind::Pod, text)
    }

    fn goes_to(&mut self, PeerEnd { endpoint: peer, reason, .. }: &PeerEnd<'_>) -> Walked {
        let reason = reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        let next = self.takes_route(&format!("the main table has no route to {peer}{reason}"))?;
        self.fits(next.link)?;
        self.passes_forward()?;
        self.changes_source()?;
        match self.host.tunnel(next.link) {
            Some((vxlan, _)) => self.goes_through_tunnel(peer, &next, vxlan)?,
            None => self.goes_directly(peer, &next)?,
        }
        let text = format!("{peer} passes it to {}", self.packet().destination);
        self.plans(HopKind::Pod, text)
    }

    fn goes_directly(&mut self, peer: &Endpoint, next: &NextHop<'_>) -> Walked {
        let underlay = &self.question.planned.local.node.interface;
        let (link, public_ip) = (next.link, peer.public_ip);
        let (state, text) = match next.gateway {
            _ if link != underlay => {
                (Unknown, format!("{link} is neither the tunnel nor {underlay}"))
            }
            Some(gateway) if gateway == public_ip => (
                Passed,
                format!("{public_ip} is resolved on {link}, when the packet is sent: not read"),
            ),
            Some(gateway) => {
                (Unknown, format!("{gateway} is not {peer}: it is unknown whether it forwards"))
            }
            None => (
                Dropped,
                format!("the route has no gateway, and the pods of {peer} are not on {link}"),
            ),
        };
        self.note(HopKind::Neighbour, state, text)?;
        self.leaves_by = Some(Path::Direct);
        self.shows_probes(peer)?;
        self.plans(HopKind::Guard, "does not apply: it is no packet of the tunnel")
    }

    fn goes_through_tunnel(
        &mut self,
        peer: &Endpoint,
        next: &NextHop<'_>,
        vxlan: &Vxlan,
    ) -> Walked {
        let link = next.link;
        let gateway = next.gateway.unwrap_or(self.packet().destination);
        let neighbour = self.host.actual.get(&Key::Neighbour(link.clone(), gateway));
        let Some(Entry::Neighbour(neighbour)) = neighbour else {
            let why = format!("{link} has no neighbour {gateway}, and no host answers for it");
            return self.drops(HopKind::Neighbour, why);
        };
        self.passes(HopKind::Neighbour, neighbour.to_string())?;
        let mac = neighbour.mac;
        let Some(Entry::Fdb(fdb)) = self.host.actual.get(&Key::Fdb(link.clone(), mac)) else {
            return self.drops(HopKind::Fdb, format!("{link} has no forwarding entry for {mac}"));
        };
        self.passes(HopKind::Fdb, fdb.to_string())?;
        self.leads_to(peer, fdb, vxlan)?;
        self.crosses_underlay(peer, vxlan)?;
        self.leaves_by = Some(Path::Tunnel);
        self.shows_probes(peer)?;
        let text = format!("{peer} accepts packets of the tunnel from this node");
        self.plans(HopKind::Guard, text)
    }

    /// Whether the entries of the tunnel agree with the lease of the peer, which drops other frames.
    fn leads_to(&mut self, peer: &Endpoint, fdb: &Fdb, vxlan: &Vxlan) -> Walked {
        let (mac, remote, public_ip) = (fdb.mac, fdb.destination, peer.public_ip);
        if remote != public_ip {
            let why =
                format!("the forwarding entry leads to {remote}, and the peer is {public_ip}");
            return self.drops(HopKind::Fdb, why);
        }
        let why = match peer.vtep {
            None => format!("{peer} has published no end of a tunnel"),
            Some(vtep) if vtep.mac != mac => {
                format!("the peer has the MAC address {}, and drops frames to {mac}", vtep.mac)
            }
            Some(vtep) if vtep.vni.is_some_and(|vni| vni != vxlan.vni) => {
                format!("the device has the VNI {}, and the peer has another", vxlan.vni)
            }
            Some(_) => return Ok(()),
        };
        self.drops(HopKind::Tunnel, why)
    }

    /// The outer packet.
    fn crosses_underlay(&mut self, peer: &Endpoint, vxlan: &Vxlan) -> Walked {
        let public_ip = peer.public_ip;
        let Some(RouteLookup { link, .. }) = self.host.lookup(public_ip) else {
            return self.drops(HopKind::Underlay, format!("no route leads to {public_ip}"));
        };
        if vxlan.underlay.as_ref().is_some_and(|underlay| underlay != link) {
            let why = format!("{public_ip} is routed by {link}, and the tunnel uses another link");
            return self.cannot_follow(HopKind::Underlay, why);
        }
        let outer = self.packet().size + backend::overhead(Family::of(public_ip));
        let (state, text) = match self.host.link(link) {
            Some((_, false)) => (Dropped, format!("{link} is down")),
            Some((mtu, true)) => {
                let is_cut = outer > mtu;
                // For packets of its own, the kernel learns the smaller MTU.
                let is_learned = is_cut && matches!(self.question.origin, PacketOrigin::Host);
                let how = if is_cut { ": in fragments, which some networks drop" } else { "" };
                let by = format!("by {link}, which has the MTU {mtu}{how}");
                let state = if is_learned { Unknown } else { Passed };
                (state, format!("{outer} bytes to {public_ip} {by}"))
            }
            None => (Unknown, format!("{link} is not listed")),
        };
        self.note(HopKind::Underlay, state, text)
    }

    /// Entries on two hosts do not show whether the network between them passes packets.
    fn shows_probes(&mut self, peer: &Endpoint) -> Walked {
        let Some(probes) = self.host.probes else { return Ok(()) };
        let text = match probes.cause() {
            Some(cause) => format!("{peer} is {}: {cause}", probes.state().as_str()),
            None => format!("{peer} answers by this path"),
        };
        let is_large = self.packet().size > SMALL;
        let state = match probes {
            PeerReachability::Degraded { cause: DegradedCause::LargeLost } if is_large => Unknown,
            // In which direction packets are lost is not always known.
            PeerReachability::Unreachable { .. } => Unknown,
            PeerReachability::Reachable | PeerReachability::Degraded { .. } => Passed,
            PeerReachability::Unknown { .. } => Planned,
        };
        self.note(HopKind::Probe, state, text)
    }

    fn leaves_the_network(&mut self) -> Walked {
        let destination = self.packet().destination;
        let Some(RouteLookup { link, .. }) = self.host.lookup(destination) else {
            return self.drops(HopKind::Route, format!("no route leads to {destination}"));
        };
        let text = format!("the kernel sends packets to {destination} by {link}");
        self.passes(HopKind::Route, text)?;
        self.fits(link)?;
        self.passes_forward()?;
        self.changes_source()?;
        let text = match (self.translated_to, &self.question.origin) {
            (Some(source), _) => format!("other hosts answer {source}"),
            (None, PacketOrigin::Pod(subnet)) => {
                format!("other hosts need a route to {subnet} for their answers")
            }
            (None, PacketOrigin::Host | PacketOrigin::Peer(_)) => {
                "other hosts answer this node".to_owned()
            }
        };
        self.plans(HopKind::Outside, text)
    }

    /// The packet of a peer, up to the route to a pod of this node.
    fn arrives_from(&mut self, PeerEnd { endpoint: peer, path, reason }: &PeerEnd<'_>) -> Walked {
        let local = &self.question.planned.local;
        let Some(path) = path else {
            let reason = reason.as_deref().unwrap_or("it is skipped");
            let text =
                format!("{peer} has no path to this node, as this node has none to it: {reason}");
            return self.drops(HopKind::Peer, text);
        };
        let by = match path {
            Path::Direct => "directly",
            Path::Tunnel => "through the tunnel",
        };
        self.plans(HopKind::Peer, format!("{peer} sends it {by}"))?;
        self.shows_probes(peer)?;
        let arrival = match path {
            Path::Direct => {
                let text = "does not apply: it is no packet of the tunnel";
                self.passes(HopKind::Guard, text)?;
                local.node.interface.clone()
            }
            Path::Tunnel => {
                let device = LinkName::tunnel(self.family(), local.config.backend.tunnel.vni);
                self.passes_guard(peer)?;
                self.leaves_tunnel(&device)?;
                device
            }
        };
        self.passes_path_filter(&arrival)
    }

    /// The guard of the tunnel decides about the outer packet.
    fn passes_guard(&mut self, peer: &Endpoint) -> Walked {
        let local = &self.question.planned.local;
        let public_ip = peer.public_ip;
        let source = peer.vtep.and_then(|vtep| vtep.source).unwrap_or(public_ip);
        let published = local.own.as_ref().and_then(|own| own.endpoint(self.family()));
        let back = self.host.lookup(public_ip).map(|lookup| &lookup.link);
        let tunnel = &local.config.backend.tunnel;
        let header = Header {
            source,
            destination: published.map_or(public_ip, |endpoint| endpoint.public_ip),
            mark: 0,
            tunnel: Some((tunnel.port, tunnel.vni)),
            arrival: Some(Arrival { link: &local.node.interface, back }),
        };
        let actual = self.host.actual;
        let at = |hook| rules::at_hook(actual, self.family(), hook);
        let early = at(Hook::RawPrerouting).find_map(|it| it.decide(&header, actual));
        let early = early.filter(|rule| rule.verdict == Verdict::Drop);
        let decided = || at(Hook::Input).find_map(|it| it.decide(&header, actual));
        let (state, text) = match early.or_else(decided) {
            Some(rule) if rule.verdict == Verdict::Drop => {
                (Dropped, format!("{source} is not allowed to send into the tunnel: {rule}"))
            }
            Some(rule) => (Passed, format!("accepts packets of the tunnel from {source}: {rule}")),
            None => (Passed, "there is none: any host may send into the tunnel".to_owned()),
        };
        self.note(HopKind::Guard, state, text)
    }

    /// The tunnel device accepts frames to the MAC address and VNI that this node has published.
    fn leaves_tunnel(&mut self, device: &LinkName) -> Walked {
        let own = self.question.planned.local.own.as_ref();
        let vtep = own.and_then(|own| own.endpoint(self.family())).and_then(|end| end.vtep);
        let Some((vxlan, mac)) = self.host.tunnel(device) else {
            return self.drops(HopKind::Tunnel, format!("there is no {device}"));
        };
        if self.host.link(device).is_some_and(|(_, up)| !up) {
            return self.drops(HopKind::Tunnel, format!("{device} is down"));
        }
        let differs = |it: &Vtep| it.mac != *mac || it.vni.is_some_and(|vni| vni != vxlan.vni);
        if let Some(published) = vtep.filter(differs) {
            let why = format!(
                "{device} has the MAC address {mac} and the VNI {}, and peers send to {}",
                vxlan.vni, published.mac
            );
            return self.drops(HopKind::Tunnel, why);
        }
        self.passes(HopKind::Tunnel, format!("{device} decapsulates it"))
    }

    /// The reverse-path filter, which exists for IPv4 only.
    fn passes_path_filter(&mut self, arrival: &LinkName) -> Walked {
        let (kind, source) = (SettingKind::ReversePath, self.packet().source);
        let held = self.host.actual.get(&Key::Setting(kind, arrival.clone()));
        let is_strict = matches!(held, Some(Entry::Setting(setting)) if setting.is_on(kind));
        if self.family() == Family::V6 || !is_strict {
            return Ok(());
        }
        let back = self.host.route(source).and_then(|route| self.host.next_hop(route));
        if back.is_some_and(|back| back.link == arrival) {
            let text = format!("{arrival} has the route back to {source}");
            return self.passes(HopKind::Filter, text);
        }
        let why = format!(
            "rp_filter of {arrival} is strict, and the route back to {source} is by another link"
        );
        self.drops(HopKind::Filter, why)
    }

    /// Rules of policy routing, the route of the main table, and its nexthop object.
    fn takes_route(&mut self, without: &str) -> Walked<NextHop<'a>> {
        let destination = self.packet().destination;
        let by = self.host.lookup(destination).map(|lookup| &lookup.link);
        let Some(route) = self.host.route(destination) else {
            let another = |by| format!("; another route, by {by}, leads out of the network");
            let another = by.map(another).unwrap_or_default();
            return self.drops(HopKind::Route, format!("{without}{another}"));
        };
        let next = self.host.next_hop(route).filter(|_| route.kind == RouteKind::Unicast);
        let Some(next) = next else {
            if route.kind == RouteKind::Unreachable || by.is_none() {
                return self.drops(HopKind::Route, format!("{route} rejects it"));
            }
            let why = format!("{route} has several next hops, or one that tweed cannot read");
            return self.cannot_follow(HopKind::Route, why);
        };
        let (hop, state, text) = match by {
            Some(by) if by == next.link => {
                (HopKind::Rule, Passed, "no policy rule selects another table".to_owned())
            }
            // The kernel removes routes of IPv4 with the link, and reports only the link.
            _ if self.host.link(next.link).is_some_and(|(_, up)| !up) => {
                (HopKind::Route, Dropped, format!("{} is down", next.link))
            }
            Some(by) => {
                let why = format!("a rule or another table sends it by {by}, in spite of {route}");
                (HopKind::Rule, Unknown, why)
            }
            None => {
                let why = format!("a rule or another table rejects it, in spite of {route}");
                (HopKind::Rule, Dropped, why)
            }
        };
        self.note(hop, state, text)?;
        self.passes(HopKind::Route, route.to_string())?;
        if let Some(id) = route.nexthop {
            let nexthop = self.host.actual.get(&Key::Nexthop(id)).map(ToString::to_string);
            let foreign = || format!("object {id} is not one of tweed");
            self.passes(HopKind::Nexthop, nexthop.unwrap_or_else(foreign))?;
        }
        Ok(next)
    }

    /// The packet must not be fragmented.
    fn fits(&mut self, link: &LinkName) -> Walked {
        let size = self.packet().size;
        let (state, text) = match self.host.link(link) {
            Some((_, false)) => (Dropped, format!("{link} is down")),
            Some((mtu, true)) if size > mtu => {
                (Dropped, format!("{size} bytes are more than the MTU {mtu} of {link}"))
            }
            Some((mtu, true)) => (Passed, format!("{size} of at most {mtu} bytes on {link}")),
            None => (Unknown, format!("{link} is not listed")),
        };
        self.note(HopKind::Mtu, state, text)
    }

    /// The chains for forwarded packets; packets of this node itself are not forwarded.
    fn passes_forward(&mut self) -> Walked {
        if matches!(self.question.origin, PacketOrigin::Host) {
            return Ok(());
        }
        let (actual, family) = (self.host.actual, self.family());
        let TracedPacket { source, destination, .. } = *self.packet();
        let header = Header { source, destination, mark: 0, tunnel: None, arrival: None };
        let mut decided = rules::at_hook(actual, family, Hook::Forward)
            .filter_map(|chain| chain.decide(&header, actual));
        if let Some(rule) = decided.find(|rule| rule.verdict == Verdict::Drop) {
            return self.drops(HopKind::Forward, rule.to_string());
        }
        let accepts = |chain: &rules::RuleChain<'_>| {
            chain.decide(&header, actual).is_some_and(|rule| rule.verdict == Verdict::Accept)
        };
        let mut dropping = rules::dropping(actual, family).filter(|(_, rules)| !accepts(rules));
        let mut known = self.question.planned.local.node.firewalls.dropping.iter();
        let unlisted =
            known.find(|name| name.family == family && actual.get(&Key::Chain(**name)).is_none());
        if let Some(name) = dropping.next().map(|(chain, _)| &chain.name).or(unlisted) {
            let why = format!(
                "FORWARD of iptables-{} drops packets that no rule accepts, and those of other \
                 programs are not read",
                name.iptables.as_str()
            );
            return self.cannot_follow(HopKind::Forward, why);
        }
        self.passes(HopKind::Forward, "no rule of tweed drops it")
    }

    /// The rules that translate the sources of new flows.
    fn changes_source(&mut self) -> Walked {
        let TracedPacket { source, destination, .. } = *self.packet();
        let text = match rules::translation(self.host.actual, (source, destination), 0) {
            Some(rule) if rule.verdict.translates() => {
                self.translated_to = match rule.verdict {
                    Verdict::SourceNat { to, .. } => Some(to),
                    _ => self.host.lookup(destination).and_then(|it| it.source),
                };
                let source = self.translated_to.map(|it| it.to_string());
                let source = source.unwrap_or_else(|| "an address of the link".to_owned());
                format!("yes, its source becomes {source}: {rule}")
            }
            Some(rule) => format!("no, it keeps its source: {rule}"),
            None => "no, it keeps its source: no rule of tweed matches".to_owned(),
        };
        self.passes(HopKind::Masquerade, text)
    }

    const fn packet(&self) -> &'a TracedPacket {
        &self.question.packet
    }

    fn family(&self) -> Family {
        self.packet().family()
    }

    fn passes(&mut self, hop: HopKind, text: impl Into<String>) -> Walked {
        self.note(hop, Passed, text)
    }

    fn plans(&mut self, hop: HopKind, text: impl Into<String>) -> Walked {
        self.note(hop, Planned, text)
    }

    fn drops<T>(&mut self, hop: HopKind, text: impl Into<String>) -> Walked<T> {
        self.note(hop, Dropped, text)?;
        Err(Ended)
    }

    fn cannot_follow<T>(&mut self, hop: HopKind, text: impl Into<String>) -> Walked<T> {
        self.note(hop, Unknown, text)?;
        Err(Ended)
    }

    fn note(&mut self, hop: HopKind, state: HopState, text: impl Into<String>) -> Walked {
        self.hops.push(Hop { hop, state, text: text.into() });
        match state {
            Passed | Planned => Ok(()),
            Dropped | Unknown => Err(Ended),
        }
    }
}
