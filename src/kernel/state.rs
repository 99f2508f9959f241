//! What the kernel holds, or should hold: one ordered map of entries.

mod link;
mod nexthop;

pub use link::{Link, LinkKind, LinkName, Vxlan};
pub use nexthop::{Lane, Nexthop, NexthopId};

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::net::IpAddr;
use std::sync::Arc;

use crate::mac::MacAddr;
use crate::prefix::{Family, Prefix};

/// Our number in `/etc/iproute2/rt_protos`: it marks the routes that are ours.
pub const PROTOCOL: u8 = 241;

/// The protocol number of routes made by hand or by flannel.
pub const PROTOCOL_BOOT: u8 = 3;

/// What tells entries apart. The order of the variants is the order of programming: what an
/// entry needs comes before it; removal runs backwards.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    Link(LinkName),
    ReversePath(LinkName),
    AcceptRa(LinkName),
    Address(LinkName, IpAddr, u8),
    Fdb(LinkName, MacAddr),
    Neighbour(LinkName, IpAddr),
    Nexthop(NexthopId),
    /// Destination and metric, in the main table.
    Route(Prefix, u32),
}

/// One object of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    Link(Link),
    ReversePath(ReversePath),
    AcceptRa(AcceptRa),
    Address(Address),
    Fdb(Fdb),
    Neighbour(Neighbour),
    Nexthop(Nexthop),
    Route(Route),
}

/// Whether a link drops packets whose answer would leave by another link (`rp_filter` 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReversePath {
    pub link: LinkName,
    pub strict: bool,
}

/// Whether a link takes addresses and routes from router advertisements (`accept_ra`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptRa {
    pub link: LinkName,
    pub accept: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub link: LinkName,
    pub address: IpAddr,
    pub prefix_len: u8,
}

/// The underlay address behind a MAC address of the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fdb {
    pub link: LinkName,
    pub mac: MacAddr,
    pub destination: IpAddr,
}

/// The MAC address behind an IP address of the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    pub link: LinkName,
    pub address: IpAddr,
    pub mac: MacAddr,
    /// Never aged, never asked for; what we program always is.
    pub permanent: bool,
}

/// A unicast route of the main table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub destination: Prefix,
    pub metric: u32,
    pub gateway: Option<IpAddr>,
    /// None for routes without a device (several next hops, blackholes).
    pub link: Option<LinkName>,
    /// Take the gateway for adjacent although no address says so.
    pub onlink: bool,
    /// The nexthop object by which it has gateway and link; none if they are its own.
    pub nexthop: Option<NexthopId>,
    pub protocol: u8,
}

impl Route {
    /// The metric that the kernel shows for a route without one.
    pub const fn default_metric(family: Family) -> u32 {
        match family {
            Family::V4 => 0,
            Family::V6 => 1024,
        }
    }

    /// `destination via gateway dev link`, marked as ours.
    pub fn via(destination: Prefix, gateway: IpAddr, link: LinkName) -> Self {
        Self {
            destination,
            metric: Self::default_metric(destination.family()),
            gateway: Some(gateway),
            link: Some(link),
            onlink: false,
            nexthop: None,
            protocol: PROTOCOL,
        }
    }

    #[must_use]
    pub fn onlink(self) -> Self {
        Self { onlink: true, ..self }
    }
}

impl Entry {
    pub fn key(&self) -> Key {
        match self {
            Self::Link(link) => Key::Link(link.name.clone()),
            Self::ReversePath(filter) => Key::ReversePath(filter.link.clone()),
            Self::AcceptRa(accept) => Key::AcceptRa(accept.link.clone()),
            Self::Address(Address { link, address, prefix_len }) => {
                Key::Address(link.clone(), *address, *prefix_len)
            }
            Self::Fdb(fdb) => Key::Fdb(fdb.link.clone(), fdb.mac),
            Self::Neighbour(neighbour) => Key::Neighbour(neighbour.link.clone(), neighbour.address),
            Self::Nexthop(nexthop) => Key::Nexthop(nexthop.id),
            Self::Route(route) => Key::Route(route.destination, route.metric),
        }
    }

    /// The link it sits on and vanishes with; the link itself for a link.
    pub fn link(&self) -> Option<&LinkName> {
        match self {
            Self::Link(link) => Some(&link.name),
            Self::ReversePath(filter) => Some(&filter.link),
            Self::AcceptRa(accept) => Some(&accept.link),
            Self::Address(address) => Some(&address.link),
            Self::Fdb(fdb) => Some(&fdb.link),
            Self::Neighbour(neighbour) => Some(&neighbour.link),
            Self::Nexthop(nexthop) => nexthop.link.as_ref(),
            Self::Route(route) => route.link.as_ref(),
        }
    }

    /// Whether `have` is what is wanted. A route has the gateway of its nexthop object, whatever
    /// the kernel shows of it beside the object's number.
    pub fn is_met_by(&self, have: &Self) -> bool {
        match (self, have) {
            (Self::Route(want), Self::Route(have)) if want.nexthop.is_some() => {
                let Route { gateway, link, onlink, .. } = want.clone();
                *want == Route { gateway, link, onlink, ..have.clone() }
            }
            _ => self == have,
        }
    }
}

/// Entries by key. The keys are computed, so that none can disagree with its entry.
///
/// What is planned, desired, under way and there is the same entry for almost all of them: they
/// share it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelState(BTreeMap<Key, Arc<Entry>>);

impl KernelState {
    pub fn get(&self, key: &Key) -> Option<&Entry> {
        self.0.get(key).map(AsRef::as_ref)
    }

    /// As [`Self::get`], for those who keep it.
    pub fn shared(&self, key: &Key) -> Option<&Arc<Entry>> {
        self.0.get(key)
    }

    /// Puts `entry` in the place of the one with its key.
    pub fn insert(&mut self, entry: impl Into<Arc<Entry>>) -> Option<Arc<Entry>> {
        let entry = entry.into();
        self.0.insert(entry.key(), entry)
    }

    pub fn remove(&mut self, key: &Key) -> Option<Arc<Entry>> {
        self.0.remove(key)
    }

    pub fn iter(&self) -> btree_map::Iter<'_, Key, Arc<Entry>> {
        self.0.iter()
    }

    pub fn keys(&self) -> btree_map::Keys<'_, Key, Arc<Entry>> {
        self.0.keys()
    }

    pub fn entries(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.0.values().map(AsRef::as_ref)
    }

    /// Itself, in the very entries of `other` where both are the same.
    #[must_use]
    pub fn sharing(mut self, other: &Self) -> Self {
        for (key, entry) in &mut self.0 {
            if let Some(same) = other.shared(key).filter(|same| *same == entry) {
                entry.clone_from(same);
            }
        }
        self
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn retain(&mut self, mut keep: impl FnMut(&Entry) -> bool) {
        self.0.retain(|_, entry| keep(entry));
    }
}

impl<E: Into<Arc<Entry>>> FromIterator<E> for KernelState {
    fn from_iter<I: IntoIterator<Item = E>>(entries: I) -> Self {
        let entries = entries.into_iter().map(Into::into);
        Self(entries.map(|entry: Arc<Entry>| (entry.key(), entry)).collect())
    }
}

impl<E: Into<Arc<Entry>>> Extend<E> for KernelState {
    fn extend<I: IntoIterator<Item = E>>(&mut self, entries: I) {
        let mut entries: Self = entries.into_iter().collect();
        if entries.len() > self.len() {
            // Merged whole, the map is built anew and leaves no room between the entries.
            self.0.append(&mut entries.0);
        } else {
            self.0.extend(entries.0);
        }
    }
}

impl<'a> IntoIterator for &'a KernelState {
    type Item = (&'a Key, &'a Arc<Entry>);
    type IntoIter = btree_map::Iter<'a, Key, Arc<Entry>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl IntoIterator for KernelState {
    type Item = Arc<Entry>;
    type IntoIter = btree_map::IntoValues<Key, Arc<Entry>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(link: &str, accept: bool) -> Entry {
        Entry::AcceptRa(AcceptRa { link: LinkName::new(link), accept })
    }

    #[test]
    fn what_is_as_desired_is_kept_once() {
        let desired: KernelState = [accept("a", false), accept("b", false)].into_iter().collect();
        let read: KernelState = [accept("a", false), accept("b", true)].into_iter().collect();
        let actual = read.clone().sharing(&desired);
        assert_eq!(actual, read);
        let is_one = |link| {
            let key = Key::AcceptRa(LinkName::new(link));
            Arc::ptr_eq(actual.shared(&key).unwrap(), desired.shared(&key).unwrap())
        };
        assert!(is_one("a") && !is_one("b"));
    }
}
