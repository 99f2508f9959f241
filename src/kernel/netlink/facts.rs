//! Reads the host facts.

use std::io;
use std::net::IpAddr;

use tweed_netlink::rtnl::route;

use super::NetlinkKernel;
use super::dump::Listing;
use crate::kernel::{codec, iptables, settings};
use crate::model::node::{Facts, Firewalls, Release, RouteLookup};

/// The release of the running kernel.
const RELEASE: &str = "/proc/sys/kernel/osrelease";

impl NetlinkKernel {
    pub(super) async fn facts_of(
        &mut self,
        listing: &Listing,
        reach: Option<IpAddr>,
    ) -> io::Result<Facts> {
        let reach = match reach {
            Some(address) => self.read_reach(address).await?,
            None => None,
        };
        let nftables = !self.tables.lack_masquerading();
        let release = std::fs::read_to_string(RELEASE).unwrap_or_default();
        Ok(Facts {
            interfaces: listing.interfaces.clone(),
            default_routes: listing.default_routes.clone(),
            reach,
            nexthops: listing.nexthops,
            firewalls: Firewalls { nftables, iptables: iptables::usual(), ..Firewalls::default() },
            sysctls: settings::writable(),
            makes_strict: settings::makes_strict(),
            kernel: Release::parse(release.trim()),
            service: service(),
        })
    }

    pub(super) async fn read_reach(&mut self, address: IpAddr) -> io::Result<Option<RouteLookup>> {
        let answer = self.requests.get(route::lookup(address), codec::parse).await?;
        Ok(answer.ok().flatten().and_then(|route| codec::reach(&route, &self.links)))
    }
}

/// The kubelet sets this variable in each pod.
pub(crate) fn service() -> Option<IpAddr> {
    std::env::var("KUBERNETES_SERVICE_HOST").ok()?.parse().ok()
}
