//! What the host and its kernel hold, by the questions of a walk.

use std::cmp::Reverse;
use std::net::IpAddr;

use super::HostState;
use crate::mac::MacAddr;
use crate::model::entry::{Entry, Key, LinkKind, LinkName, Route, Vxlan};
use crate::model::node::RouteLookup;
use crate::model::prefix::Prefix;

/// Where a route leads.
pub(super) struct NextHop<'a> {
    pub(super) link: &'a LinkName,
    pub(super) gateway: Option<IpAddr>,
}

impl HostState<'_> {
    pub(super) fn lookup(&self, address: IpAddr) -> Option<&RouteLookup> {
        self.lookups.get(&address)?.as_ref()
    }

    pub(super) fn is_local(&self, address: IpAddr) -> bool {
        self.lookup(address).is_some_and(|lookup| lookup.link.is_loopback())
    }

    /// The route of the main table into the networks of pods.
    pub(super) fn route(&self, address: IpAddr) -> Option<&Route> {
        let routes = self.actual.routes().filter(|route| route.destination.contains(address));
        routes.min_by_key(|route| (Reverse(route.destination.prefix_len()), route.metric))
    }

    /// Gateway and link of a route, from its nexthop object if it has one of tweed.
    pub(super) fn next_hop<'a>(&'a self, route: &'a Route) -> Option<NextHop<'a>> {
        let nexthop = route.nexthop.and_then(|id| self.actual.get(&Key::Nexthop(id)));
        let (gateway, link) = match nexthop {
            Some(Entry::Nexthop(nexthop)) => (nexthop.gateway, &nexthop.link),
            _ => (route.gateway, &route.link),
        };
        Some(NextHop { link: link.as_ref()?, gateway })
    }

    /// The MTU of a link, and whether it is up.
    pub(super) fn link(&self, name: &LinkName) -> Option<(u32, bool)> {
        if let Some(Entry::Link(link)) = self.actual.get(&Key::Link(name.clone())) {
            return Some((link.mtu, link.up));
        }
        let link = self.interfaces.iter().find(|interface| interface.name == *name)?;
        Some((link.mtu, link.up))
    }

    pub(super) fn tunnel(&self, name: &LinkName) -> Option<(&Vxlan, &MacAddr)> {
        let Entry::Link(link) = self.actual.get(&Key::Link(name.clone()))? else { return None };
        match &link.kind {
            LinkKind::Vxlan(vxlan) => Some((vxlan, &link.mac)),
            LinkKind::Other(_) => None,
        }
    }

    /// The link with the address that is the gateway of pods.
    pub(super) fn bridge(&self, subnet: Prefix) -> Option<&LinkName> {
        let gateway = subnet.gateway();
        let mut links = self.interfaces.iter();
        let bridge = links.find(|it| it.addresses.iter().any(|own| own.address == gateway))?;
        Some(&bridge.name)
    }
}
