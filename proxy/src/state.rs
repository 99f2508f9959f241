//! Frontends, their endpoints, and the elements of sets that program them.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnetwork::IpNetwork;
use tweed_netlink::Family;

/// A protocol above IP that has ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    Tcp,
    Udp,
    Sctp,
}

/// Where clients reach a service: each cluster IP, external IP and load balancer IP with each port,
/// and each address of this node with each node port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frontend {
    pub address: IpAddr,
    pub transport: Transport,
    pub port: u16,
}

/// Where a pod listens, by the protocol of its frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    pub address: IpAddr,
    pub port: u16,
}

/// Endpoints that connections of a frontend are distributed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum List {
    /// For all connections, or for those from pods and from this host.
    All,
    /// For connections from elsewhere, if only endpoints on this node may answer them.
    Local,
}

/// What else is known of a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flag {
    /// Connections are dropped, unless they come from one of its networks.
    Restricted,
    /// Connections are masqueraded, because they come from outside the cluster.
    External,
    /// Connections from outside the cluster go to endpoints on this node only.
    LocalOnly,
    /// Connections are translated.
    Served,
    /// Connections are refused, because there is no endpoint anywhere.
    Refused,
    /// Connections are dropped, because no endpoint on this node may answer them.
    Unanswered,
}

/// What the sets hold of one frontend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub all: Slots,
    pub local: Slots,
    /// If it is restricted, the networks of its clients.
    pub clients: BTreeSet<IpNetwork>,
    pub flags: BTreeSet<Flag>,
}

/// What the sets hold of one list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    /// By index; none where the map has no endpoint.
    pub slots: Vec<Option<Endpoint>>,
    /// The numbers of endpoints that are programmed: at most one, if no other program wrote.
    pub counts: BTreeSet<u32>,
}

/// What the sets hold, or are to hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Boxed, because a third of the room of a map is empty, and more while it grows.
    pub frontends: HashMap<Frontend, Box<Entry>>,
    /// Elements that belong to several frontends.
    pub shared: BTreeSet<Element>,
}

/// A set or map of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Set {
    Endpoints(List),
    Hairpins,
    ClusterIps,
    Clients,
    /// The frontends with this number of endpoints.
    Count(List, u32),
    Flag(Flag),
}

/// An element of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Element {
    Slot(List, Frontend, u32, Endpoint),
    /// An endpoint that may be on this node: a connection from it to itself is masqueraded.
    Hairpin(Transport, Endpoint),
    ClusterIp(IpAddr),
    Client(Frontend, IpNetwork),
    Count(List, Frontend, u32),
    Flag(Flag, Frontend),
}

impl Transport {
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// As Kubernetes writes it.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|transport| transport.name() == text)
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }

    /// As IP numbers it.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

impl List {
    pub const ALL: [Self; 2] = [Self::All, Self::Local];

    /// In front of the names of its sets and chains.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::All => "",
            Self::Local => "local-",
        }
    }
}

impl Flag {
    pub const ALL: [Self; 6] = [
        Self::Restricted,
        Self::External,
        Self::LocalOnly,
        Self::Served,
        Self::Refused,
        Self::Unanswered,
    ];
}

impl Slots {
    pub fn of(slots: Vec<Endpoint>) -> Self {
        let count = u32::try_from(slots.len()).ok().filter(|count| *count > 0);
        Self { counts: count.into_iter().collect(), slots: slots.into_iter().map(Some).collect() }
    }

    fn put(&mut self, index: u32, endpoint: Endpoint) {
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        if self.slots.len() <= index {
            self.slots.resize(index + 1, None);
        }
        self.slots.splice(index..=index, [Some(endpoint)]);
    }

    fn remove(&mut self, index: u32, endpoint: Endpoint) {
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        if let Some(slot) = self.slots.get_mut(index).filter(|slot| **slot == Some(endpoint)) {
            *slot = None;
        }
        while self.slots.last().is_some_and(Option::is_none) {
            self.slots.pop();
        }
    }
}

impl Entry {
    pub const fn list(&self, list: List) -> &Slots {
        match list {
            List::All => &self.all,
            List::Local => &self.local,
        }
    }

    const fn list_mut(&mut self, list: List) -> &mut Slots {
        match list {
            List::All => &mut self.all,
            List::Local => &mut self.local,
        }
    }

    /// With `element`, which belongs to this frontend.
    pub fn add(&mut self, element: Element) {
        match element {
            Element::Slot(list, _, index, endpoint) => self.list_mut(list).put(index, endpoint),
            Element::Count(list, _, count) => {
                self.list_mut(list).counts.insert(count);
            }
            Element::Client(_, network) => {
                self.clients.insert(network);
            }
            Element::Flag(flag, _) => {
                self.flags.insert(flag);
            }
            Element::Hairpin(..) | Element::ClusterIp(_) => {}
        }
    }

    /// Without `element`.
    fn remove(&mut self, element: Element) {
        match element {
            Element::Slot(list, _, index, endpoint) => self.list_mut(list).remove(index, endpoint),
            Element::Count(list, _, count) => {
                self.list_mut(list).counts.remove(&count);
            }
            Element::Client(_, network) => {
                self.clients.remove(&network);
            }
            Element::Flag(flag, _) => {
                self.flags.remove(&flag);
            }
            Element::Hairpin(..) | Element::ClusterIp(_) => {}
        }
    }

    /// Whether connections are looked up in a list, which may be empty.
    pub fn looks_up(&self, list: List) -> bool {
        let is = |flag| self.flags.contains(&flag);
        is(Flag::Served) && (list == List::All || is(Flag::LocalOnly))
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The elements that program it.
    pub fn elements(&self, frontend: Frontend) -> impl Iterator<Item = Element> {
        let lists = List::ALL.into_iter().flat_map(move |list| {
            let Slots { slots, counts } = self.list(list);
            let slots = (0..).zip(slots).filter_map(move |(index, endpoint)| {
                endpoint.map(|endpoint| Element::Slot(list, frontend, index, endpoint))
            });
            slots.chain(counts.iter().map(move |count| Element::Count(list, frontend, *count)))
        });
        let clients = self.clients.iter().map(move |network| Element::Client(frontend, *network));
        lists
            .chain(clients)
            .chain(self.flags.iter().map(move |flag| Element::Flag(*flag, frontend)))
    }
}

impl State {
    pub fn of(elements: impl IntoIterator<Item = Element>) -> Self {
        let mut state = Self::default();
        elements.into_iter().for_each(|element| state.put(element));
        state
    }

    pub fn entry(&self, frontend: &Frontend) -> Option<&Entry> {
        self.frontends.get(frontend).map(Box::as_ref)
    }

    /// With `element`.
    pub fn put(&mut self, element: Element) {
        if let Some(frontend) = element.frontend() {
            self.frontends.entry(frontend).or_default().add(element);
        } else {
            self.shared.insert(element);
        }
    }

    /// Without `element`.
    pub fn remove(&mut self, element: Element) {
        let Some(frontend) = element.frontend() else {
            self.shared.remove(&element);
            return;
        };
        let Some(entry) = self.frontends.get_mut(&frontend) else { return };
        entry.remove(element);
        if entry.is_empty() {
            self.frontends.remove(&frontend);
        }
    }
}

impl Set {
    /// Those that are always there; each number of endpoints has one in addition.
    pub fn fixed() -> impl Iterator<Item = Self> {
        let endpoints = List::ALL.into_iter().map(Self::Endpoints);
        let flags = Flag::ALL.into_iter().map(Self::Flag);
        endpoints.chain([Self::Hairpins, Self::ClusterIps, Self::Clients]).chain(flags)
    }

    pub fn parse(name: &str) -> Option<Self> {
        let count = |list: List| {
            let count = name.strip_prefix(list.prefix())?.strip_prefix("count-")?;
            count.parse().ok().map(|count| Self::Count(list, count))
        };
        let fixed = Self::fixed().find(|set| set.to_string() == name);
        fixed.or_else(|| List::ALL.into_iter().find_map(count))
    }
}

impl Element {
    pub const fn set(&self) -> Set {
        match self {
            Self::Slot(list, ..) => Set::Endpoints(*list),
            Self::Hairpin(..) => Set::Hairpins,
            Self::ClusterIp(_) => Set::ClusterIps,
            Self::Client(..) => Set::Clients,
            Self::Count(list, _, count) => Set::Count(*list, *count),
            Self::Flag(flag, _) => Set::Flag(*flag),
        }
    }

    /// The one that it belongs to; none if it belongs to several.
    pub const fn frontend(&self) -> Option<Frontend> {
        match self {
            Self::Slot(_, frontend, ..)
            | Self::Client(frontend, _)
            | Self::Count(_, frontend, _)
            | Self::Flag(_, frontend) => Some(*frontend),
            Self::Hairpin(..) | Self::ClusterIp(_) => None,
        }
    }

    pub const fn family(&self) -> Family {
        Family::of(self.address())
    }

    /// Where packets that it is about go to, before any translation.
    pub const fn address(&self) -> IpAddr {
        match self {
            Self::Hairpin(_, endpoint) => endpoint.address,
            Self::ClusterIp(address) => *address,
            Self::Slot(_, frontend, ..)
            | Self::Client(frontend, _)
            | Self::Count(_, frontend, _)
            | Self::Flag(_, frontend) => frontend.address,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.transport, SocketAddr::from((self.address, self.port)))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::from((self.address, self.port)).fmt(f)
    }
}

/// The name of the set in the table.
impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endpoints(list) => write!(f, "{}endpoints", list.prefix()),
            Self::Hairpins => f.write_str("hairpins"),
            Self::ClusterIps => f.write_str("cluster-ips"),
            Self::Clients => f.write_str("clients"),
            Self::Flag(Flag::Restricted) => f.write_str("restricted"),
            Self::Count(list, count) => write!(f, "{}count-{count}", list.prefix()),
            Self::Flag(Flag::External) => f.write_str("external"),
            Self::Flag(Flag::LocalOnly) => f.write_str("local-only"),
            Self::Flag(Flag::Served) => f.write_str("frontends"),
            Self::Flag(Flag::Refused) => f.write_str("refused"),
            Self::Flag(Flag::Unanswered) => f.write_str("unanswered"),
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.set())?;
        match self {
            Self::Slot(_, frontend, index, endpoint) => write!(f, "{frontend} {index}: {endpoint}"),
            Self::Hairpin(transport, endpoint) => write!(f, "{transport} {endpoint}"),
            Self::ClusterIp(address) => address.fmt(f),
            Self::Client(frontend, network) => write!(f, "{frontend} from {network}"),
            Self::Count(_, frontend, _) | Self::Flag(_, frontend) => frontend.fmt(f),
        }
    }
}
