//! Reading what the host looks like.

use std::io;
use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage as M;
use tweed_netlink::Frame;

use super::NetlinkKernel;
use crate::kernel::codec::{self, Body, request};
use crate::kernel::{iptables, settings};
use crate::model::entry::{LinkName, NexthopId, PROTOCOL};
use crate::model::node::{Facts, Firewalls, Interface, Nexthops, Reach, Release};
use crate::model::prefix::Family;

/// The version of the kernel that runs.
const RELEASE: &str = "/proc/sys/kernel/osrelease";

impl NetlinkKernel {
    pub(super) async fn read_facts(&mut self, reach: Option<IpAddr>) -> io::Result<Facts> {
        let interfaces = self.read_interfaces().await?;
        let mut default_routes = Vec::new();
        for family in Family::ALL {
            default_routes.extend(self.read_default_routes(family).await?);
        }
        let reach = match reach {
            Some(address) => self.read_reach(address).await?,
            None => None,
        };
        let nexthops = self.read_nexthops().await?;
        let firewalls = self.firewalls();
        let release = std::fs::read_to_string(RELEASE).unwrap_or_default();
        let kernel = Release::parse(release.trim());
        let sysctls = settings::writable();
        Ok(Facts {
            interfaces,
            default_routes,
            reach,
            nexthops,
            firewalls,
            sysctls,
            makes_strict: settings::makes_strict(),
            kernel,
            service: service(),
        })
    }

    fn firewalls(&self) -> Firewalls {
        let nftables = !self.tables.lack_masquerading();
        Firewalls { nftables, iptables: iptables::usual(), ..Firewalls::default() }
    }

    /// Whether we can use nexthop objects.
    async fn read_nexthops(&mut self) -> io::Result<Nexthops> {
        let read = |frame: &Frame<'_>| codec::parse(frame).as_ref().and_then(taken);
        let taken = self.requests.list(&request::nexthops(), read).await?;
        Ok(match taken.filter(|_| !self.lacks_nexthops) {
            Some(taken) => taken.first().map_or(Nexthops::Usable, |id| Nexthops::Taken(*id)),
            None => Nexthops::Unsupported,
        })
    }

    async fn read_interfaces(&mut self) -> io::Result<Vec<Interface>> {
        let links = self.read_links().await?;
        let mut interfaces: Vec<Interface> = links.iter().filter_map(interface).collect();
        for body in self.list(&request::addresses(), codec::parse).await? {
            let Body::Rtnl(M::NewAddress(address)) = body else { continue };
            let name = self.links.name(address.header.index);
            let owner = interfaces.iter_mut().find(|interface| Some(&interface.name) == name);
            if let Some(owner) = owner {
                owner.addresses.extend(codec::interface_address(&address));
            }
        }
        Ok(interfaces)
    }

    async fn read_default_routes(
        &mut self,
        family: Family,
    ) -> io::Result<Vec<(Family, Option<LinkName>)>> {
        let read =
            |frame: &Frame<'_>| codec::may_be_default(frame).then(|| codec::parse(frame)).flatten();
        let routes = self.list(&request::routes(family), read).await?;
        Ok(routes.iter().filter_map(|body| self.default_route(body)).collect())
    }

    fn default_route(&self, body: &Body) -> Option<(Family, Option<LinkName>)> {
        match body {
            Body::Rtnl(M::NewRoute(route)) => codec::default_route(route, &self.links),
            _ => None,
        }
    }

    async fn read_reach(&mut self, address: IpAddr) -> io::Result<Option<Reach>> {
        let answer = self.requests.get(request::route_to(address), codec::parse).await?;
        Ok(match answer {
            Ok(Some(Body::Rtnl(M::NewRoute(route)))) => codec::reach(&route, &self.links),
            _ => None,
        })
    }
}

/// The kubelet reports it to each pod.
pub(crate) fn service() -> Option<IpAddr> {
    std::env::var("KUBERNETES_SERVICE_HOST").ok()?.parse().ok()
}

/// The number of ours that somebody else's nexthop object has.
fn taken(body: &Body) -> Option<NexthopId> {
    match body {
        Body::NewNexthop(nexthop) if nexthop.protocol != PROTOCOL => {
            nexthop.id.filter(|id| id.is_ours())
        }
        _ => None,
    }
}

fn interface(body: &Body) -> Option<Interface> {
    match body {
        Body::Rtnl(M::NewLink(link)) => codec::interface(link),
        _ => None,
    }
}
