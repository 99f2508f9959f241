//! Reads the host facts.

use std::io;
use std::net::IpAddr;

use super::NetlinkKernel;
use super::dump::Listing;
use crate::kernel::{Kernel, iptables, settings};
use crate::model::node::{Facts, Firewalls, Release};

/// The release of the running kernel.
const RELEASE: &str = "/proc/sys/kernel/osrelease";

impl NetlinkKernel {
    pub(super) async fn facts_of(
        &mut self,
        listing: &Listing,
        reach: Option<IpAddr>,
    ) -> io::Result<Facts> {
        let reach = match reach {
            Some(address) => self.look_up(address).await?,
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
}

/// The kubelet sets this variable in each pod.
pub(crate) fn service() -> Option<IpAddr> {
    std::env::var("KUBERNETES_SERVICE_HOST").ok()?.parse().ok()
}
