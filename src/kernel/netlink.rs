//! The real kernel, over netlink and /proc/sys.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::IpAddr;

use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::neighbour::NeighbourMessage;
use netlink_packet_route::route::{RouteAttribute, RouteHeader, RouteMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::codec::{self, Links, Told};
use super::socket::{Refusal, Request, Socket};
use super::state::{Entry, KernelState, LinkName};
use super::{Kernel, Observation, Op, Refused, Scope, sysctl};
use crate::node::{Facts, Reach};
use crate::prefix::Family;

/// The real kernel.
pub struct NetlinkKernel {
    requests: Socket,
    monitor: Socket,
    links: Links,
    /// What is of interest: the scope of the last dump.
    scope: Scope,
    told: VecDeque<Observation>,
}

const REQUESTS_BUFFER: usize = 1 << 20;
const MONITOR_BUFFER: usize = 8 << 20;
/// Links, neighbours, IPv4 addresses and routes, IPv6 addresses and routes.
const GROUPS: [u32; 6] = [1, 3, 5, 7, 9, 11];

impl NetlinkKernel {
    /// Must run inside the reactor. From here on nothing that changes is missed.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            monitor: Socket::open(MONITOR_BUFFER, &GROUPS)?,
            requests: Socket::open(REQUESTS_BUFFER, &[])?,
            links: Links::default(),
            scope: Scope::default(),
            told: VecDeque::new(),
        })
    }

    async fn read_links(&mut self) -> io::Result<Vec<LinkMessage>> {
        let links = self.requests.dump(RouteNetlinkMessage::GetLink(LinkMessage::default())).await?;
        let links: Vec<LinkMessage> = links.into_iter().filter_map(|message| match message {
            RouteNetlinkMessage::NewLink(link) => Some(link),
            _ => None,
        }).collect();
        self.links.clear();
        for message in &links {
            let told = codec::told(&RouteNetlinkMessage::NewLink(message.clone()), &self.links);
            if let Some(Told::Link(index, name)) = told {
                self.links.insert(index, name);
            }
        }
        Ok(links)
    }

    async fn read_entries(&mut self, request: RouteNetlinkMessage) -> io::Result<Vec<Entry>> {
        let messages = self.requests.dump(request).await?;
        let entries = messages.iter().filter_map(|message| match codec::told(message, &self.links)? {
            Told::Holds(entry) => Some(entry),
            Told::Lost(_) | Told::Link(..) | Told::NoLink(..) => None,
        });
        Ok(entries.collect())
    }

    async fn read_on(&mut self, link: &LinkName) -> io::Result<Vec<Entry>> {
        let Some(index) = self.links.index(link) else { return Ok(Vec::new()) };
        let mut entries: Vec<Entry> =
            sysctl::reverse_path(link).into_iter().chain(sysctl::accept_ra(link)).collect();
        let mut addresses = AddressMessage::default();
        addresses.header.index = index;
        entries.extend(self.read_entries(RouteNetlinkMessage::GetAddress(addresses)).await?);
        let mut fdb = NeighbourMessage::default();
        fdb.header.family = AddressFamily::Bridge;
        fdb.header.ifindex = index;
        entries.extend(self.read_entries(RouteNetlinkMessage::GetNeighbour(fdb)).await?);
        let mut neighbours = NeighbourMessage::default();
        neighbours.attributes.push(netlink_packet_route::neighbour::NeighbourAttribute::IfIndex(index));
        entries.extend(self.read_entries(RouteNetlinkMessage::GetNeighbour(neighbours)).await?);
        Ok(entries)
    }

    async fn read_routes(&mut self, family: Family) -> io::Result<Vec<RouteNetlinkMessage>> {
        let mut request = RouteMessage::default();
        request.header.address_family = codec::address_family(family);
        request.header.table = RouteHeader::RT_TABLE_MAIN;
        self.requests.dump(RouteNetlinkMessage::GetRoute(request)).await
    }

    fn absorb(&mut self, message: &RouteNetlinkMessage) {
        let Some(told) = codec::told(message, &self.links) else { return };
        match told {
            Told::Link(index, name) => {
                if let Some(before) = self.links.insert(index, name.clone()).filter(|before| *before != name) {
                    self.told.push_back(Observation::LinkChanged(before));
                }
                self.told.push_back(Observation::LinkChanged(name));
            }
            Told::NoLink(index, name) => {
                self.links.remove(index);
                self.told.push_back(Observation::LinkChanged(name));
            }
            Told::Holds(Entry::Address(address)) if !self.scope.tunnels.contains(&address.link) => {
                self.told.push_back(Observation::LinkChanged(address.link));
            }
            Told::Lost(super::state::Key::Address(link, ..)) if !self.scope.tunnels.contains(&link) => {
                self.told.push_back(Observation::LinkChanged(link));
            }
            Told::Holds(entry) if self.scope.covers(&entry) => self.told.push_back(Observation::Holds(entry)),
            Told::Lost(key) => self.told.push_back(Observation::Lost(key)),
            Told::Holds(_) => {}
        }
    }

    /// Sends what has gathered; ties each refusal to its operation.
    async fn flush(&mut self, ops: &mut Vec<Op>, requests: &mut Vec<Request>) -> io::Result<Vec<Refused>> {
        let ops = std::mem::take(ops);
        let refusals = self.requests.batch(std::mem::take(requests)).await?;
        Ok(refusals.into_iter().filter_map(|refusal| {
            let op = ops.get(refusal.index)?.clone();
            (!is_done_already(&op, refusal.errno)).then(|| Refused { op, reason: reason(&refusal) })
        }).collect())
    }
}

impl Kernel for NetlinkKernel {
    async fn dump(&mut self, scope: &Scope) -> io::Result<KernelState> {
        self.scope = scope.clone();
        let links = self.read_links().await?;
        let mut state: KernelState = links.iter()
            .filter_map(|message| codec::link(message, &self.links))
            .filter(|link| scope.tunnels.contains(&link.name))
            .map(Entry::Link)
            .collect();
        for tunnel in scope.tunnels.clone() {
            state.extend(self.read_on(&tunnel).await?);
        }
        state.extend(scope.underlay.as_ref().and_then(sysctl::reverse_path));
        let families: BTreeSet<Family> = scope.networks.iter().map(|network| network.family()).collect();
        for family in families {
            for message in self.read_routes(family).await? {
                if let Some(Told::Holds(entry)) = codec::told(&message, &self.links)
                    && scope.covers(&entry)
                    && state.get(&entry.key()).is_none()
                {
                    state.insert(entry);
                }
            }
        }
        Ok(state)
    }

    async fn apply(&mut self, ops: Vec<Op>) -> io::Result<Vec<Refused>> {
        let (mut refused, mut waiting, mut requests) = (Vec::new(), Vec::new(), Vec::new());
        for op in ops {
            match codec::encode(&op, &self.links) {
                Ok(request) => {
                    let is_link = matches!(op.entry(), Entry::Link(_));
                    waiting.push(op);
                    requests.push(request);
                    if is_link {
                        refused.extend(self.flush(&mut waiting, &mut requests).await?);
                        self.read_links().await?;
                    }
                }
                Err(codec::Unencodable::Sysctl(_)) => {
                    refused.extend(self.flush(&mut waiting, &mut requests).await?);
                    if let Err(reason) = sysctl::put(op.entry()) {
                        refused.push(Refused { op, reason });
                    }
                }
                Err(codec::Unencodable::NoLink(_)) if matches!(op, Op::Remove(_)) => {}
                Err(error) => refused.push(Refused { op, reason: error.to_string() }),
            }
        }
        refused.extend(self.flush(&mut waiting, &mut requests).await?);
        Ok(refused)
    }

    async fn observe(&mut self) -> io::Result<Observation> {
        loop {
            if let Some(observation) = self.told.pop_front() {
                return Ok(observation);
            }
            for message in self.monitor.receive().await? {
                if let NetlinkPayload::InnerMessage(message) = message.payload {
                    self.absorb(&message);
                }
            }
        }
    }

    async fn facts(&mut self, reach: Option<IpAddr>) -> io::Result<Facts> {
        let links = self.read_links().await?;
        let mut interfaces: Vec<_> = links.iter().filter_map(|message| codec::interface(message, &self.links)).collect();
        for message in self.requests.dump(RouteNetlinkMessage::GetAddress(AddressMessage::default())).await? {
            if let RouteNetlinkMessage::NewAddress(message) = message {
                codec::add_address(&mut interfaces, &message, &self.links);
            }
        }
        let mut default_routes = Vec::new();
        for family in Family::ALL {
            for message in self.read_routes(family).await? {
                if let RouteNetlinkMessage::NewRoute(message) = message {
                    default_routes.extend(codec::default_route(&message, &self.links));
                }
            }
        }
        let reach = match reach {
            Some(target) => self.reach(target).await,
            None => None,
        };
        Ok(Facts { interfaces, default_routes, reach })
    }
}

impl NetlinkKernel {
    async fn reach(&mut self, target: IpAddr) -> Option<Reach> {
        let family = Family::of(target);
        let mut request = RouteMessage::default();
        request.header.address_family = codec::address_family(family);
        request.header.destination_prefix_length = family.width();
        request.attributes.push(RouteAttribute::Destination(target.into()));
        match self.requests.get(RouteNetlinkMessage::GetRoute(request)).await {
            Ok(RouteNetlinkMessage::NewRoute(answer)) => codec::reach(&answer, &self.links),
            _ => None,
        }
    }
}

/// What is to be removed is gone, or what is to be made is there.
const fn is_done_already(op: &Op, errno: i32) -> bool {
    const ENOENT: i32 = 2;
    const ESRCH: i32 = 3;
    const ENODEV: i32 = 19;
    const EADDRNOTAVAIL: i32 = 99;
    matches!(op, Op::Remove(_)) && matches!(errno, ENOENT | ESRCH | ENODEV | EADDRNOTAVAIL)
}

fn reason(refusal: &Refusal) -> String {
    let error = io::Error::from_raw_os_error(refusal.errno);
    match &refusal.message {
        Some(message) => format!("{message} ({error})"),
        None => error.to_string(),
    }
}
