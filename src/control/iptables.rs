//! The chains of iptables. Programs read and write them, and may hang: the loop starts one task at
//! a time, and goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;

use futures::FutureExt;
use futures::future::LocalBoxFuture;

use super::Reconciler;
use crate::kernel::{Chains, Generation, Kernel, Reading, Refused};
use crate::model::config::NetworkConfig;
use crate::model::entry::{Base, ChainName, Entry, Key};
use crate::model::policy::Forward;
use crate::plan::diff::Op;

/// What the programs of iptables have read or written.
#[derive(Debug)]
pub enum IptablesResult {
    Read(Reading),
    Written { ops: Vec<Op>, refused: Vec<Refused> },
}

/// The task that runs the programs of iptables, and what is known of the chains.
#[derive(Default)]
pub(super) struct IptablesTask {
    running: Option<LocalBoxFuture<'static, IptablesResult>>,
    /// When the chains were read last.
    generation: Option<Generation>,
    /// Whether they were read at all: the plan depends on what the host drops.
    has_read: bool,
    /// Whether all that is wanted was in place once.
    was_met: bool,
    /// The chains of which it is not known whether the host drops in front of them, and why.
    unread: BTreeMap<ChainName, String>,
}

impl IptablesTask {
    /// Waits for the task; never ends while none runs. Cancel safe.
    pub(super) async fn ended(&mut self) -> IptablesResult {
        let Some(task) = &mut self.running else { return pending().await };
        let result = task.await;
        self.running = None;
        result
    }
}

impl<K: Kernel> Reconciler<K> {
    /// Has `ops` carried out, all of them of chains, unless something has to be read before. What
    /// is not done now stays a difference, and is looked at when the task has ended.
    pub(super) fn start_iptables(&mut self, ops: Vec<Op>) {
        if self.iptables.running.is_some() {
            return;
        }
        let chains = self.kernel.chains();
        if std::mem::take(&mut self.stale.chains) {
            let names = self.chains_to_read();
            let reading = chains.read(names, self.iptables.generation);
            self.iptables.running = Some(reading.map(IptablesResult::Read).boxed_local());
        } else if !ops.is_empty() {
            let written = chains.carry_out(ops.clone());
            let result = |refused| IptablesResult::Written { ops, refused };
            self.iptables.running = Some(written.map(result).boxed_local());
        }
    }

    /// All of them at first and with each audit; in between those that may change the plan, or that
    /// are planned: a host may have a multitude of rules beside them.
    fn chains_to_read(&self) -> BTreeSet<ChainName> {
        let all = self.scope.chains.iter().copied();
        let (wanted, held) = (self.desired.state(), &self.actual);
        let matters = |name: &ChainName| {
            let key = Key::Chain(*name);
            name.base == Base::Forward || wanted.get(&key).is_some() || held.get(&key).is_some()
        };
        all.filter(|name| self.iptables.generation.is_none() || matters(name)).collect()
    }

    /// As if nothing had been read so far.
    pub(super) fn read_all_chains(&mut self) {
        self.iptables.generation = None;
        self.stale.chains = true;
    }

    pub(super) fn iptables_ended(&mut self, result: IptablesResult) {
        match result {
            IptablesResult::Read(reading) => self.chains_were_read(reading),
            IptablesResult::Written { ops, refused } => self.note_applied(ops, refused),
        }
        self.iptables.was_met |= !self.stale.plan && self.is_met(is_chain);
        let chains = self.desired.state().local().chain(self.actual.local());
        let keys = chains.filter(|entry| is_chain(entry)).map(|entry| entry.key());
        let due = keys.filter(|key| !self.refused.is_waiting(key));
        self.stale.differences.extend(due.collect::<Vec<_>>());
        self.look_at_chains_again();
    }

    fn chains_were_read(&mut self, reading: Reading) {
        let Reading { names, found, dropping, unread, generation } = reading;
        let were_met = self.rules_are_met();
        for name in &names {
            self.actual.remove(&Key::Chain(*name));
        }
        self.actual.extend(found.into_iter().map(Entry::Chain));
        self.unreported |= self.rules_are_met() != were_met;
        let is_news = self.inputs.note_dropping(&names, dropping);
        if is_news {
            let programs = self.inputs.dropping.iter().map(|name| name.program());
            let dropping: Vec<String> = programs.collect();
            tracing::info!(?dropping, "read which chains FORWARD drop what no rule accepts");
        }
        self.stale.plan |= is_news;
        self.unsaved |= is_news;
        self.iptables.unread.retain(|name, _| !names.contains(name));
        self.iptables.unread.extend(unread);
        self.iptables.generation = generation;
        self.iptables.has_read = true;
        self.timers.chains_were_read();
    }

    /// What of the chains is waited for, as long as it is not known why it is not there.
    pub(super) fn awaited_chains(&self) -> Option<&'static str> {
        if self.lets_through() && self.inputs.own.is_some() && !self.iptables.has_read {
            return Some("the chains of iptables are not read yet");
        }
        self.awaits_chains().then_some("the programs of iptables have not ended yet")
    }

    fn awaits_chains(&self) -> bool {
        let is_refused = |key: &Key| self.refused.iter().any(|(refused, _)| refused == key);
        let awaited =
            |entry: &Entry| is_chain(entry) && !self.holds(entry) && !is_refused(&entry.key());
        !self.iptables.was_met && self.local_entries().any(awaited)
    }

    /// Changes of legacy iptables are not notified.
    pub(super) fn look_at_chains_again(&mut self) {
        let matter = self.lets_through() || self.local_entries().any(is_chain);
        self.timers.look_at_chains(matter.then_some(self.settings.resync));
    }

    /// Whether it matters what the host drops.
    fn lets_through(&self) -> bool {
        self.inputs.policy.forward == Forward::Accept
    }

    /// Where packets of pods may be dropped and no program is there to look, and what to do.
    pub(super) fn doubtful_chains(&self) -> impl Iterator<Item = String> {
        let networks = self.inputs.config.iter().flat_map(NetworkConfig::networks);
        networks.filter(|_| self.lets_through()).flat_map(|network| {
            let of_family = move |(name, _): &(&ChainName, _)| name.family == network.family();
            let unread = self.iptables.unread.iter().filter(of_family);
            unread.map(move |(name, reason)| {
                let program = name.program();
                format!(
                    "{program} may drop packets of pods ({reason}): if {program} -S FORWARD shows \
                     \"-P FORWARD DROP\", run {program} -A FORWARD -s {network} -j ACCEPT && \
                     {program} -A FORWARD -d {network} -j ACCEPT"
                )
            })
        })
    }
}

pub(super) const fn is_chain(entry: &Entry) -> bool {
    matches!(entry, Entry::Chain(_))
}
