//! The hops of a packet in the order of the kernel, up to the first that drops it.

use std::net::IpAddr;

use super::rules::{self, Arrival, Header};
use super::state::NextHop;
use super::{
    Delivery, Hop, HopKind, HopState, HostState, Origin, PeerEnd, Question, Target, Trace,
    TracedPacket,
};
use crate::mac::MacAddr;
use crate::model::entry::{Entry, Hook, Key, LinkName, RouteKind, SettingKind, Verdict, Vxlan};
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

/// Why the walk ends early.
enum End {
    Dropped,
    Unknown,
}

type Step<T = ()> = Result<T, End>;

impl<'a> Walk<'a> {
    pub(super) const fn new(question: &'a Question<'a>, host: &'a HostState<'a>) -> Self {
        Self { question, host, translated_to: None, leaves_by: None, hops: Vec::new() }
    }

    pub(super) fn finish(mut self) -> Trace {
        let delivery = match self.walk() {
            Ok(()) => Delivery::Delivered,
            Err(End::Dropped) => Delivery::Dropped,
            Err(End::Unknown) => Delivery::Unknown,
        };
        let Self { question, translated_to, leaves_by, hops, .. } = self;
        Trace { packet: question.packet, translated_to, leaves_by, hops, delivery }
    }

    fn walk(&mut self) -> Step {
        let Question { origin, target, .. } = self.question;
        match origin {
            Origin::Pod(subnet) => self.leaves_pod(*subnet)?,
            Origin::Host => self.passes(HopKind::Host, "this node sends it"),
            Origin::Peer(peer) => self.arrives_from(peer)?,
        }
        match (origin, target) {
            (_, Target::Host) => self.is_for_this_node(),
            (Origin::Pod(_), Target::Pod(subnet)) => self.stays_on_bridge(*subnet),
            (Origin::Host | Origin::Peer(_), Target::Pod(_)) => self.is_delivered()?,
            (_, Target::Peer(peer)) => self.goes_to(peer)?,
            (_, Target::Outside) => self.leaves_the_network()?,
        }
        Ok(())
    }

    /// A pod sends by its default route, which leads to the bridge.
    fn leaves_pod(&mut self, subnet: Prefix) -> Step {
        let source = self.packet().source;
        let Some(bridge) = self.host.bridge(subnet) else {
            let gateway = subnet.gateway();
            let why = format!("no link has the address {gateway}: no pod of {subnet} runs here");
            return Err(self.drops(HopKind::Pod, why));
        };
        self.passes(HopKind::Pod, format!("{source} is a pod of this node, behind {bridge}"));
        self.fits(bridge)
    }

    fn stays_on_bridge(&mut self, subnet: Prefix) {
        let destination = self.packet().destination;
        if self.host.is_local(destination) {
            self.is_for_this_node();
            return;
        }
        let bridge = self.host.bridge(subnet).map_or("the bridge", LinkName::as_str);
        let text = format!("{bridge} passes it to {destination}: it is not routed");
        self.passes(HopKind::Pod, text);
    }

    fn is_for_this_node(&mut self) {
        let destination = self.packet().destination;
        let text = format!("{destination} is an address of this node: it is not forwarded");
        self.passes(HopKind::Host, text);
    }

    /// Routed to a pod of this node.
    fn is_delivered(&mut self) -> Step {
        let destination = self.packet().destination;
        if self.host.is_local(destination) {
            self.is_for_this_node();
            return Ok(());
        }
        let next = self.is_routed("no link has the subnet of this node: no pod runs here")?;
        if let Some(gateway) = next.gateway {
            let why = format!("{gateway} is not a pod: whether it forwards the packet is not seen");
            return Err(self.cannot_follow(HopKind::Nexthop, why));
        }
        self.fits(next.link)?;
        self.is_forwarded()?;
        self.is_translated();
        let text = format!("{destination} is resolved on {}, when the packet is sent", next.link);
        self.passes(HopKind::Pod, text);
        Ok(())
    }

    fn goes_to(&mut self, peer: &'a PeerEnd<'a>) -> Step {
        let reason = peer.reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        let next = self.is_routed(&format!("the main table has no route to {peer}{reason}"))?;
        self.fits(next.link)?;
        self.is_forwarded()?;
        self.is_translated();
        match self.host.tunnel(next.link) {
            Some((vxlan, _)) => self.goes_through_tunnel(peer, &next, vxlan)?,
            None => self.goes_directly(peer, &next)?,
        }
        let text = format!("{peer} passes it to {}", self.packet().destination);
        self.is_planned(HopKind::Pod, text);
        Ok(())
    }

    fn goes_directly(&mut self, peer: &PeerEnd<'_>, next: &NextHop<'_>) -> Step {
        let NextHop { link, gateway } = next;
        let (underlay, public_ip) =
            (&self.question.planned.local.node.interface, peer.endpoint.public_ip);
        if *link != underlay {
            let why = format!("{link} is neither the tunnel nor {underlay}");
            return Err(self.cannot_follow(HopKind::Neighbour, why));
        }
        match gateway {
            Some(gateway) if *gateway == public_ip => {
                let text =
                    format!("{public_ip} is resolved on {link}, when the packet is sent: not read");
                self.passes(HopKind::Neighbour, text);
                self.leaves_by = Some(Path::Direct);
                self.is_probed(peer)?;
                self.is_planned(HopKind::Guard, "does not apply: it is no packet of the tunnel");
                Ok(())
            }
            Some(gateway) => {
                let why = format!("{gateway} is not {peer}: whether it forwards is not seen");
                Err(self.cannot_follow(HopKind::Neighbour, why))
            }
            None => {
                let why =
                    format!("the route has no gateway, and the pods of {peer} are not on {link}");
                Err(self.drops(HopKind::Neighbour, why))
            }
        }
    }

    fn goes_through_tunnel(
        &mut self,
        peer: &PeerEnd<'_>,
        next: &NextHop<'_>,
        vxlan: &Vxlan,
    ) -> Step {
        let link = next.link;
        let gateway = next.gateway.unwrap_or(self.packet().destination);
        let neighbour = self.host.actual.get(&Key::Neighbour(link.clone(), gateway));
        let Some(Entry::Neighbour(neighbour)) = neighbour else {
            let why = format!("{link} has no neighbour {gateway}, and no host answers for it");
            return Err(self.drops(HopKind::Neighbour, why));
        };
        self.passes(HopKind::Neighbour, neighbour.to_string());
        let mac = neighbour.mac;
        let Some(Entry::Fdb(fdb)) = self.host.actual.get(&Key::Fdb(link.clone(), mac)) else {
            let why = format!("{link} has no forwarding entry for {mac}");
            return Err(self.drops(HopKind::Fdb, why));
        };
        self.passes(HopKind::Fdb, fdb.to_string());
        let remote = fdb.destination;
        self.leads_to(peer, mac, remote, vxlan)?;
        self.crosses_underlay(peer, vxlan)?;
        self.leaves_by = Some(Path::Tunnel);
        self.is_probed(peer)?;
        let text = format!("{peer} accepts packets of the tunnel from this node");
        self.is_planned(HopKind::Guard, text);
        Ok(())
    }

    /// Whether the entries of the tunnel agree with the lease of the peer, which drops other frames.
    fn leads_to(
        &mut self,
        peer: &PeerEnd<'_>,
        mac: MacAddr,
        remote: IpAddr,
        vxlan: &Vxlan,
    ) -> Step {
        let public_ip = peer.endpoint.public_ip;
        if remote != public_ip {
            let why =
                format!("the forwarding entry leads to {remote}, and the peer is {public_ip}");
            return Err(self.drops(HopKind::Fdb, why));
        }
        let Some(vtep) = peer.endpoint.vtep else {
            let why = format!("{peer} has published no end of a tunnel");
            return Err(self.drops(HopKind::Tunnel, why));
        };
        if vtep.mac != mac {
            let why =
                format!("the peer has the MAC address {}, and drops frames to {mac}", vtep.mac);
            return Err(self.drops(HopKind::Tunnel, why));
        }
        if vtep.vni.is_some_and(|vni| vni != vxlan.vni) {
            let why = format!("the device has the VNI {}, and the peer has another", vxlan.vni);
            return Err(self.drops(HopKind::Tunnel, why));
        }
        Ok(())
    }

    /// The outer packet.
    fn crosses_underlay(&mut self, peer: &PeerEnd<'_>, vxlan: &Vxlan) -> Step {
        let public_ip = peer.endpoint.public_ip;
        let Some(RouteLookup { link, .. }) = self.host.lookup(public_ip) else {
            return Err(self.drops(HopKind::Underlay, format!("no route leads to {public_ip}")));
        };
        if vxlan.underlay.as_ref().is_some_and(|underlay| underlay != link) {
            let why = format!("{public_ip} is routed by {link}, and the tunnel uses another link");
            return Err(self.cannot_follow(HopKind::Underlay, why));
        }
        let outer = self.packet().size + backend::overhead(Family::of(public_ip));
        match self.host.link(link) {
            Some((_, false)) => Err(self.drops(HopKind::Underlay, format!("{link} is down"))),
            Some((mtu, true)) if outer > mtu => {
                let text = format!(
                    "{outer} bytes to {public_ip} by {link}, which has the MTU {mtu}: in fragments, \
                     which some networks drop"
                );
                // For packets of its own, the kernel learns the smaller MTU.
                if matches!(self.question.origin, Origin::Host) {
                    return Err(self.cannot_follow(HopKind::Underlay, text));
                }
                self.passes(HopKind::Underlay, text);
                Ok(())
            }
            Some((mtu, true)) => {
                let text =
                    format!("{outer} bytes to {public_ip} by {link}, which has the MTU {mtu}");
                self.passes(HopKind::Underlay, text);
                Ok(())
            }
            None => Err(self.cannot_follow(HopKind::Underlay, format!("{link} is not listed"))),
        }
    }

    /// Entries on two hosts do not show whether the network between them passes packets.
    fn is_probed(&mut self, peer: &PeerEnd<'_>) -> Step {
        let Some(probes) = self.host.probes else { return Ok(()) };
        let state = probes.state().as_str();
        let text = match probes.cause() {
            Some(cause) => format!("{peer} is {state}: {cause}"),
            None => format!("{peer} answers by this path"),
        };
        match probes {
            PeerReachability::Degraded { cause: DegradedCause::LargeLost }
                if self.packet().size > SMALL =>
            {
                Err(self.cannot_follow(HopKind::Probe, text))
            }
            // In which direction packets are lost is not always known.
            PeerReachability::Unreachable { .. } => Err(self.cannot_follow(HopKind::Probe, text)),
            PeerReachability::Reachable | PeerReachability::Degraded { .. } => {
                self.passes(HopKind::Probe, text);
                Ok(())
            }
            PeerReachability::Unknown { .. } => {
                self.is_planned(HopKind::Probe, text);
                Ok(())
            }
        }
    }

    fn leaves_the_network(&mut self) -> Step {
        let destination = self.packet().destination;
        if self.host.is_local(destination) {
            self.is_for_this_node();
            return Ok(());
        }
        let Some(RouteLookup { link, .. }) = self.host.lookup(destination) else {
            return Err(self.drops(HopKind::Route, format!("no route leads to {destination}")));
        };
        self.passes(HopKind::Route, format!("the kernel sends packets to {destination} by {link}"));
        self.fits(link)?;
        self.is_forwarded()?;
        self.is_translated();
        let text = match (self.translated_to, &self.question.origin) {
            (Some(source), _) => format!("other hosts answer {source}"),
            (None, Origin::Pod(subnet)) => {
                format!("other hosts need a route to {subnet} for their answers")
            }
            (None, Origin::Host | Origin::Peer(_)) => "other hosts answer this node".to_owned(),
        };
        self.is_planned(HopKind::Outside, text);
        Ok(())
    }

    /// The packet of a peer, up to the route to a pod of this node.
    fn arrives_from(&mut self, peer: &PeerEnd<'_>) -> Step {
        let local = &self.question.planned.local;
        let Some(path) = peer.path else {
            let reason = peer.reason.as_deref().unwrap_or("it is skipped");
            let text =
                format!("{peer} has no path to this node, as this node has none to it: {reason}");
            return Err(self.drops(HopKind::Peer, text));
        };
        let by = match path {
            Path::Direct => "directly",
            Path::Tunnel => "through the tunnel",
        };
        self.is_planned(HopKind::Peer, format!("{peer} sends it {by}"));
        self.is_probed(peer)?;
        let arrival = match path {
            Path::Direct => {
                self.passes(HopKind::Guard, "does not apply: it is no packet of the tunnel");
                local.node.interface.clone()
            }
            Path::Tunnel => {
                let device = LinkName::tunnel(self.family(), local.config.backend.tunnel.vni);
                self.is_admitted(peer)?;
                self.leaves_tunnel(&device)?;
                device
            }
        };
        self.has_route_back(&arrival)
    }

    /// The guard of the tunnel decides about the outer packet.
    fn is_admitted(&mut self, peer: &PeerEnd<'_>) -> Step {
        let local = &self.question.planned.local;
        let public_ip = peer.endpoint.public_ip;
        let source = peer.endpoint.vtep.and_then(|vtep| vtep.source).unwrap_or(public_ip);
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
        let mut rules = rules::at_hook(self.host.actual, self.family(), Hook::Input);
        match rules.find_map(|chain| chain.decide(&header, self.host.actual)) {
            Some(rule) if rule.verdict == Verdict::Drop => {
                let why = format!("{source} is not allowed to send into the tunnel: {rule}");
                Err(self.drops(HopKind::Guard, why))
            }
            Some(rule) => {
                let text = format!("accepts packets of the tunnel from {source}: {rule}");
                self.passes(HopKind::Guard, text);
                Ok(())
            }
            None => {
                self.passes(HopKind::Guard, "there is none: any host may send into the tunnel");
                Ok(())
            }
        }
    }

    /// The tunnel device accepts frames to the MAC address and VNI that this node has published.
    fn leaves_tunnel(&mut self, device: &LinkName) -> Step {
        let own = self.question.planned.local.own.as_ref();
        let vtep = own.and_then(|own| own.endpoint(self.family())).and_then(|end| end.vtep);
        let Some((vxlan, mac)) = self.host.tunnel(device) else {
            return Err(self.drops(HopKind::Tunnel, format!("there is no {device}")));
        };
        if self.host.link(device).is_some_and(|(_, up)| !up) {
            return Err(self.drops(HopKind::Tunnel, format!("{device} is down")));
        }
        let published =
            vtep.filter(|it| it.mac != *mac || it.vni.is_some_and(|vni| vni != vxlan.vni));
        if let Some(published) = published {
            let why = format!(
                "{device} has the MAC address {mac} and the VNI {}, and peers send to {}",
                vxlan.vni, published.mac
            );
            return Err(self.drops(HopKind::Tunnel, why));
        }
        self.passes(HopKind::Tunnel, format!("{device} opens it"));
        Ok(())
    }

    /// The reverse-path filter, which exists for IPv4 only.
    fn has_route_back(&mut self, arrival: &LinkName) -> Step {
        let kind = SettingKind::ReversePath;
        let is_strict = match self.host.actual.get(&Key::Setting(kind, arrival.clone())) {
            Some(Entry::Setting(setting)) => setting.is_on(kind),
            _ => false,
        };
        if self.family() == Family::V6 || !is_strict {
            return Ok(());
        }
        let back =
            self.host.route(self.packet().source).and_then(|route| self.host.next_hop(route));
        if back.as_ref().is_some_and(|back| back.link == arrival) {
            let text = format!("{arrival} has the route back to {}", self.packet().source);
            self.passes(HopKind::Filter, text);
            return Ok(());
        }
        let why = format!(
            "rp_filter of {arrival} is strict, and the route back to {} is by another link",
            self.packet().source
        );
        Err(self.drops(HopKind::Filter, why))
    }

    /// Rules of policy routing, the route of the main table, and its nexthop object.
    fn is_routed(&mut self, without: &str) -> Step<NextHop<'a>> {
        let destination = self.packet().destination;
        let lookup = self.host.lookup(destination);
        let Some(route) = self.host.route(destination) else {
            return Err(match lookup {
                None => self.drops(HopKind::Route, without),
                Some(lookup) => {
                    let why = format!(
                        "{without}; another route, by {}, leads out of the network",
                        lookup.link
                    );
                    self.drops(HopKind::Route, why)
                }
            });
        };
        let next = self.host.next_hop(route).filter(|_| route.kind == RouteKind::Unicast);
        let Some(next) = next else {
            return Err(match (route.kind, lookup) {
                (RouteKind::Unreachable, _) | (_, None) => {
                    self.drops(HopKind::Route, format!("{route} rejects it"))
                }
                (RouteKind::Unicast | RouteKind::Other, Some(_)) => {
                    let why =
                        format!("{route} has several next hops, or one that tweed cannot read");
                    self.cannot_follow(HopKind::Route, why)
                }
            });
        };
        match lookup {
            Some(lookup) if lookup.link == *next.link => {
                self.passes(HopKind::Rule, "none leads it to another table");
            }
            // The kernel removes routes of IPv4 with the link, and reports only the link.
            _ if self.host.link(next.link).is_some_and(|(_, up)| !up) => {
                return Err(self.drops(HopKind::Route, format!("{} is down", next.link)));
            }
            Some(lookup) => {
                let link = &lookup.link;
                let why =
                    format!("a rule or another table sends it by {link}, in spite of {route}");
                return Err(self.cannot_follow(HopKind::Rule, why));
            }
            None => {
                let why = format!("a rule or another table rejects it, in spite of {route}");
                return Err(self.drops(HopKind::Rule, why));
            }
        }
        self.passes(HopKind::Route, route.to_string());
        if let Some(id) = route.nexthop {
            let text = match self.host.actual.get(&Key::Nexthop(id)) {
                Some(nexthop) => nexthop.to_string(),
                None => format!("object {id} is not one of tweed"),
            };
            self.passes(HopKind::Nexthop, text);
        }
        Ok(next)
    }

    /// The packet must not be fragmented.
    fn fits(&mut self, link: &LinkName) -> Step {
        let size = self.packet().size;
        match self.host.link(link) {
            Some((_, false)) => Err(self.drops(HopKind::Mtu, format!("{link} is down"))),
            Some((mtu, true)) if size > mtu => {
                let why = format!("{size} bytes are more than the MTU {mtu} of {link}");
                Err(self.drops(HopKind::Mtu, why))
            }
            Some((mtu, true)) => {
                self.passes(HopKind::Mtu, format!("{size} of at most {mtu} bytes on {link}"));
                Ok(())
            }
            None => Err(self.cannot_follow(HopKind::Mtu, format!("{link} is not listed"))),
        }
    }

    /// The chains for forwarded packets; packets of this node itself are not forwarded.
    fn is_forwarded(&mut self) -> Step {
        if matches!(self.question.origin, Origin::Host) {
            return Ok(());
        }
        let (actual, header) = (self.host.actual, self.header());
        let mut decided = rules::at_hook(actual, self.family(), Hook::Forward)
            .filter_map(|chain| chain.decide(&header, actual));
        if let Some(rule) = decided.find(|rule| rule.verdict == Verdict::Drop) {
            return Err(self.drops(HopKind::Forward, rule.to_string()));
        }
        let accepts = |chain: &rules::RuleChain<'_>| {
            chain.decide(&header, actual).is_some_and(|rule| rule.verdict == Verdict::Accept)
        };
        let family = self.family();
        let mut dropping = rules::dropping(actual, family).filter(|(_, rules)| !accepts(rules));
        let unlisted = self
            .question
            .planned
            .local
            .node
            .firewalls
            .dropping
            .iter()
            .find(|name| name.family == family && actual.get(&Key::Chain(**name)).is_none());
        if let Some(name) = dropping.next().map(|(chain, _)| &chain.name).or(unlisted) {
            let why = format!(
                "FORWARD of iptables-{} drops packets that no rule accepts, and those of other \
                 programs are not read",
                name.iptables.as_str()
            );
            return Err(self.cannot_follow(HopKind::Forward, why));
        }
        self.passes(HopKind::Forward, "no rule of tweed drops it");
        Ok(())
    }

    /// The rules that translate the sources of new flows.
    fn is_translated(&mut self) {
        let text = match rules::translation(self.host.actual, &self.header()) {
            Some(rule) if rule.verdict.translates() => {
                self.translated_to = match rule.verdict {
                    Verdict::SourceNat { to, .. } => Some(to),
                    _ => self.host.lookup(self.packet().destination).and_then(|it| it.source),
                };
                let source = self.translated_to.map(|it| it.to_string());
                let source = source.unwrap_or_else(|| "an address of the link".to_owned());
                format!("yes, its source becomes {source}: {rule}")
            }
            Some(rule) => format!("no, it keeps its source: {rule}"),
            None => "no, it keeps its source: no rule of tweed matches".to_owned(),
        };
        self.passes(HopKind::Masquerade, text);
    }

    const fn packet(&self) -> &'a TracedPacket {
        &self.question.packet
    }

    fn family(&self) -> Family {
        self.packet().family()
    }

    const fn header(&self) -> Header<'a> {
        let TracedPacket { source, destination, .. } = self.question.packet;
        Header { source, destination, mark: 0, tunnel: None, arrival: None }
    }

    fn passes(&mut self, hop: HopKind, text: impl Into<String>) {
        self.hops.push(Hop { hop, state: HopState::Passed, text: text.into() });
    }

    fn is_planned(&mut self, hop: HopKind, text: impl Into<String>) {
        self.hops.push(Hop { hop, state: HopState::Planned, text: text.into() });
    }

    fn drops(&mut self, hop: HopKind, text: impl Into<String>) -> End {
        self.hops.push(Hop { hop, state: HopState::Dropped, text: text.into() });
        End::Dropped
    }

    fn cannot_follow(&mut self, hop: HopKind, text: impl Into<String>) -> End {
        self.hops.push(Hop { hop, state: HopState::Unknown, text: text.into() });
        End::Unknown
    }
}
