//! What is out of use: tunnel devices, and the addresses of former peers.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{Differences, Reconciler};
use crate::kernel::Kernel;
use crate::model::entry::{Entry, Link, PROTOCOL_BOOT};
use crate::model::lease::{Lease, LeaseId};
use crate::plan::backend;
use crate::plan::desired::Standing;

impl<K: Kernel> Reconciler<K> {
    /// Notes which devices may go, by what is known of the peers now.
    pub(super) fn retire(&mut self) {
        let retired = self.retired();
        if retired != self.scope.retired {
            self.scope.retired = retired;
            self.stale.differences = Differences::Anywhere;
        }
    }

    fn retired(&self) -> Vec<Link> {
        let local = self.inputs.local().filter(|local| !local.config.has_tunnel());
        // Who has no device need not ask who needs it.
        let local = local.filter(|_| self.holds_tunnel());
        local.map(|local| backend::retired(&local, self.believed())).unwrap_or_default()
    }

    fn holds_tunnel(&self) -> bool {
        let mut links = self.actual.entries().map_while(|entry| match entry {
            Entry::Link(link) => Some(link),
            _ => None,
        });
        links.any(|link| self.scope.tunnels.contains(&link.name))
    }

    /// Notes which addresses are, and which may no longer be, those of accepted peers, as these
    /// leases come to stand.
    pub(super) fn follow_gateways(&mut self, standings: &[(LeaseId, Option<Standing>)]) {
        for (id, standing) in standings {
            let new = addresses(standing.as_ref());
            let old = addresses(self.desired.peers().get(id));
            self.former_gateways.extend(old.filter(|old| !new.clone().any(|new| new == *old)));
            self.scope.gateways.extend(new);
        }
    }

    /// Forgets the addresses of former peers once no route without a mark leads through them: one
    /// that comes later is foreign.
    pub(super) fn forget_gateways(&mut self) {
        let former = std::mem::take(&mut self.former_gateways);
        if former.is_empty() {
            return;
        }
        let used = self.desired.peers().values().flat_map(|standing| addresses(Some(standing)));
        let used: BTreeSet<IpAddr> = used.filter(|address| former.contains(address)).collect();
        let routes = self.actual.entries().rev().map_while(|entry| match entry {
            Entry::Route(route) => Some(route),
            _ => None,
        });
        let unmarked = routes.filter(|route| route.protocol == PROTOCOL_BOOT);
        let leading: BTreeSet<IpAddr> = unmarked.filter_map(|route| route.gateway).collect();
        for address in former.into_iter().filter(|address| !used.contains(address)) {
            if leading.contains(&address) {
                self.former_gateways.insert(address);
            } else {
                self.scope.gateways.remove(&address);
            }
        }
    }

    fn believed(&self) -> impl Iterator<Item = &Lease> {
        self.desired.peers().values().filter_map(Standing::believed).map(AsRef::as_ref)
    }
}

/// The public IPs of a peer, if its lease is accepted.
fn addresses(standing: Option<&Standing>) -> impl Iterator<Item = IpAddr> + Clone {
    let accepted = standing.and_then(Standing::believed).into_iter();
    accepted.flat_map(|lease| &lease.endpoints).map(|endpoint| endpoint.public_ip)
}
