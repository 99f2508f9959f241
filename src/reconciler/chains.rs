//! The chains of iptables. Programs read and write them, and may hang: the loop sends for it, one
//! errand at a time, and goes on.

use std::future::pending;

use futures::FutureExt;
use futures::future::LocalBoxFuture;

use super::Reconciler;
use crate::kernel::state::{Entry, Key};
use crate::kernel::{Chains, Generation, Kernel, Op, Reading, Refused};

/// What the programs were sent for, and what came of it.
#[derive(Debug)]
pub enum Errand {
    Read(Reading),
    Written { ops: Vec<Op>, refused: Vec<Refused> },
}

/// Who goes to the programs.
#[derive(Default)]
pub(super) struct Messenger {
    away: Option<LocalBoxFuture<'static, Errand>>,
    /// When the chains were read last.
    seen: Option<Generation>,
    /// Whether all that is wanted was in place once.
    has_delivered: bool,
}

impl Messenger {
    /// Waits for the messenger; never ends while there is nothing to wait for. Cancel safe.
    pub(super) async fn back(&mut self) -> Errand {
        let Some(away) = &mut self.away else { return pending().await };
        let errand = away.await;
        self.away = None;
        errand
    }
}

impl<K: Kernel> Reconciler<K> {
    /// Has `ops` carried out, all of them of chains, unless something has to be read before. What
    /// is not done now stays a difference, and is looked at when the messenger is back.
    pub(super) fn send_for_chains(&mut self, ops: Vec<Op>) {
        if self.messenger.away.is_some() {
            return;
        }
        let chains = self.kernel.chains();
        if std::mem::take(&mut self.stale.chains) {
            let reading = chains.read(self.scope.chains.clone(), self.messenger.seen);
            self.messenger.away = Some(reading.map(Errand::Read).boxed_local());
        } else if !ops.is_empty() {
            let written = chains.carry_out(ops.clone());
            let errand = |refused| Errand::Written { ops, refused };
            self.messenger.away = Some(written.map(errand).boxed_local());
        }
    }

    pub(super) fn take_errand(&mut self, errand: Errand) {
        match errand {
            Errand::Read(reading) => self.take_chains(reading),
            Errand::Written { ops, refused } => self.note_applied(ops, refused),
        }
        self.messenger.has_delivered |= self.is_met(is_chain);
        let chains = self.desired.state().local().chain(self.actual.local());
        let keys = chains.filter(|entry| is_chain(entry)).map(|entry| entry.key());
        let due = keys.filter(|key| !self.refused.is_waiting(key));
        self.stale.differences.extend(due.collect::<Vec<_>>());
        self.look_at_chains_again();
    }

    fn take_chains(&mut self, Reading { names, found, generation }: Reading) {
        for name in names {
            self.actual.remove(&Key::Chain(name));
        }
        self.actual.extend(found.into_iter().map(Entry::Chain));
        self.messenger.seen = generation;
    }

    /// Whether chains are wanted that were never in place, and nobody knows yet why.
    pub(super) fn awaits_chains(&self) -> bool {
        let is_refused = |key: &Key| self.refused.iter().any(|(refused, _)| refused == key);
        let awaited =
            |entry: &Entry| is_chain(entry) && !self.holds(entry) && !is_refused(&entry.key());
        !self.messenger.has_delivered && self.local_entries().any(awaited)
    }

    /// Of changes in iptables nobody tells.
    pub(super) fn look_at_chains_again(&mut self) {
        let has_chains = self.local_entries().any(is_chain);
        self.agenda.look_at_chains(has_chains.then_some(self.settings.resync));
    }
}

pub(super) const fn is_chain(entry: &Entry) -> bool {
    matches!(entry, Entry::Chain(_))
}
