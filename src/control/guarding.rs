//! Whether the tunnel is guarded, and if not, why.

use super::Reconciler;
use crate::kernel::{Kernel, Refused};
use crate::model::config::NetworkConfig;
use crate::model::entry::Entry;
use crate::model::policy::{Guard, Strangers};
use crate::model::status::{ChecksumStatus, GuardStatus};
use crate::plan::diff::Op;

/// What the kernel says to the tables that guard the tunnel.
#[derive(Debug, Default)]
pub struct Guarding {
    /// Why it would not have them.
    refused: Option<String>,
    /// Whether it is to be asked once more.
    again: bool,
}

impl Guarding {
    /// A guard lets in the peers that are known: it is not wanted before any are. A kernel that has
    /// refused it is not asked again for a while.
    pub(super) fn wanted(&self, guard: Option<Guard>, know_peers: bool) -> Option<Guard> {
        guard.filter(|_| know_peers && (self.refused.is_none() || self.again))
    }

    /// Whoever is kept out by half a guard is better off without.
    fn refuse(&mut self, reason: &str) {
        self.refused = Some(reason.to_owned());
        self.again = false;
    }

    fn accept(&mut self) {
        self.refused = None;
    }

    fn remark(&self) -> Option<String> {
        let reason = self.refused.as_ref()?;
        Some(format!("the tunnel is not guarded, everybody may send into it: {reason}"))
    }
}

impl<K: Kernel> Reconciler<K> {
    pub(super) fn note_guard_refused(&mut self, refused: &Refused) {
        if puts_guard(&refused.op) {
            self.inputs.guarding.refuse(&refused.reason);
            self.stale.plan = true;
        }
    }

    pub(super) fn note_guard_put(&mut self, op: &Op) {
        if puts_guard(op) {
            self.inputs.guarding.accept();
        }
    }

    /// The kernel may have learnt it meanwhile.
    pub(super) fn try_guard_again(&mut self) {
        let guarding = &mut self.inputs.guarding;
        guarding.again = guarding.refused.is_some();
        self.stale.plan |= guarding.again;
    }

    /// Why the guard does less than it should, as far as it is known.
    pub(super) fn guard_remark(&self) -> Option<String> {
        let inputs = &self.inputs;
        let drops = |guard: Guard| guard.strangers == Strangers::Drop;
        let is_asked = inputs.policy.guard.is_some_and(drops)
            && inputs.config.as_ref().is_some_and(NetworkConfig::has_tunnel);
        let by_memory = is_asked && inputs.rest_on_memory() && !inputs.peers.is_complete();
        let blind = is_asked && inputs.are_alone() && !inputs.know_peers();
        let by_memory =
            by_memory.then_some("the tunnel lets in only the peers that were last known");
        let blind =
            blind.then_some("the tunnel is not guarded until the leases of the peers are read");
        inputs.guarding.remark().or_else(|| by_memory.or(blind).map(str::to_owned))
    }

    /// The devices that are to compute checksums.
    pub(super) fn computing(&self) -> Vec<ChecksumStatus> {
        let status = |entry: &Entry| match entry {
            Entry::TxChecksum(checksum) => Some(ChecksumStatus {
                link: checksum.link.to_string(),
                programmed: self.holds(entry),
            }),
            _ => None,
        };
        self.local_entries().filter_map(status).collect()
    }

    /// None where there is no tunnel, or nothing is asked for.
    pub(super) fn guard_status(&self) -> Option<GuardStatus> {
        let asked = self.inputs.policy.guard?;
        self.inputs.config.as_ref().filter(|config| config.has_tunnel())?;
        let tables = self.tables(is_guard);
        let drops = self.is_met(|entry| matches!(entry, Entry::Renewal(_)));
        let admitted = self.actual.entries().filter(|entry| matches!(entry, Entry::Element(_)));
        Some(GuardStatus {
            asked,
            in_force: !tables.is_empty() && drops && tables.iter().all(|table| table.programmed),
            tables,
            admitted: admitted.count(),
            refused: self.inputs.guarding.refused.clone(),
        })
    }
}

/// Whether it is there and has to be put again: in good time, so that few daemons that are stopped
/// for a while leave a tunnel unguarded, and seldom.
pub(super) fn is_due(entry: &Entry) -> bool {
    matches!(entry, Entry::Renewal(renewal) if renewal.is_due())
}

fn puts_guard(op: &Op) -> bool {
    matches!(op, Op::Create(entry) | Op::Replace(entry) if is_guard(entry))
}

fn is_guard(entry: &Entry) -> bool {
    matches!(entry, Entry::Table(table) if table.has_peers())
}
