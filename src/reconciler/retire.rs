//! Tunnel devices that are out of use.

use super::{Differences, Reconciler, Standing};
use crate::backend;
use crate::kernel::Kernel;
use crate::kernel::state::{Entry, Link};
use crate::lease::Lease;

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

    fn believed(&self) -> impl Iterator<Item = &Lease> {
        self.desired.peers().values().filter_map(Standing::believed).map(AsRef::as_ref)
    }
}
