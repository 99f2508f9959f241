//! The direct paths that failed in an earlier process of the daemon.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::model::lease::{Endpoint, Lease};
use crate::model::path::{Cause, Fallback, Fallbacks};

/// By the first address of the peer's subnet: its public IP then, and how the direct path failed.
#[derive(Clone, Debug, Default)]
pub struct FailedBefore(BTreeMap<IpAddr, (IpAddr, Cause)>);

impl FailedBefore {
    /// Those among `fallbacks`, which are about the peers with these leases.
    pub(super) fn of(fallbacks: &Fallbacks, leases: &[Arc<Lease>]) -> Self {
        let failed = |peer: &Endpoint| match fallbacks.get(&peer.subnet.base())? {
            Fallback::Failed(cause) => Some((peer.subnet.base(), (peer.public_ip, *cause))),
            Fallback::Unproven | Fallback::Unanswered => None,
        };
        Self(leases.iter().flat_map(|lease| &lease.endpoints).filter_map(failed).collect())
    }

    /// How the direct path to `peer` failed. The path to another public IP is another one.
    pub(in crate::control) fn cause(&self, peer: &Endpoint) -> Option<Cause> {
        let (public_ip, cause) = self.0.get(&peer.subnet.base())?;
        (*public_ip == peer.public_ip).then_some(*cause)
    }

    pub(in crate::control) fn forget(&mut self, peer: IpAddr) {
        self.0.remove(&peer);
    }
}
