//! The chains of iptables. Programs read and write them, and may hang: the loop starts one task at
//! a time, and goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;

use futures::FutureExt;
use futures::future::LocalBoxFuture;

use super::Control;
use super::changes::Changes;
use crate::kernel::{Chains, Generation, Reading, Refused};
use crate::model::config::NetworkConfig;
use crate::model::entry::{Base, ChainName, Entry, Key, Otherwise};
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

    /// Reads all chains the next time, as if none had been read so far.
    pub(super) const fn read_all(&mut self) {
        self.generation = None;
    }
}

impl Control {
    /// Has `ops` carried out, all of them of chains, unless something has to be read before. What
    /// is not done now stays a difference, and is looked at when the task has ended.
    pub(super) fn start_iptables(&mut self, chains: &impl Chains, ops: Vec<Op>) {
        if self.iptables.running.is_some() {
            return;
        }
        let chains = chains.clone();
        if std::mem::take(&mut self.changes.chains) {
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
        let all = self.derived.scope.chains.iter().copied();
        let (wanted, held) = (self.derived.desired.state(), &self.held.actual);
        let matters = |name: &ChainName| {
            let key = Key::Chain(*name);
            name.base == Base::Forward || wanted.get(&key).is_some() || held.get(&key).is_some()
        };
        all.filter(|name| self.iptables.generation.is_none() || matters(name)).collect()
    }

    pub(super) fn iptables_ended(&mut self, result: IptablesResult) -> Changes {
        let mut changes = match result {
            IptablesResult::Read(reading) => self.chains_were_read(reading),
            IptablesResult::Written { ops, refused } => self.note_applied(ops, refused),
        };
        let is_planned = !self.changes.plan && !changes.plan;
        self.iptables.was_met |= is_planned && self.is_met(is_chain);
        let chains = self.derived.desired.state().local().chain(self.held.actual.local());
        let keys = chains.filter(|entry| is_chain(entry)).map(|entry| entry.key());
        let due = keys.filter(|key| !self.held.refused.is_waiting(key));
        changes.differences.extend(due);
        self.look_at_chains_again();
        changes
    }

    fn chains_were_read(&mut self, reading: Reading) -> Changes {
        let Reading { names, found, dropping, unread, generation } = reading;
        let were_met = self.rules_are_met();
        for name in &names {
            self.held.actual.remove(&Key::Chain(*name));
        }
        self.held.actual.extend(found.into_iter().map(Entry::Chain));
        let report = self.rules_are_met() != were_met;
        let is_news = self.inputs.note_dropping(&names, dropping);
        if is_news {
            let programs = self.inputs.dropping.iter().map(|name| name.program());
            let dropping: Vec<String> = programs.collect();
            tracing::info!(?dropping, "read which chains FORWARD drop what no rule accepts");
        }
        self.iptables.unread.retain(|name, _| !names.contains(name));
        self.iptables.unread.extend(unread);
        self.iptables.generation = generation;
        self.iptables.has_read = true;
        self.held.timers.chains_were_read();
        Changes { plan: is_news, save: is_news, report, ..Changes::default() }
    }

    /// What of the chains is waited for, as long as it is not known why it is not there.
    pub(super) fn awaited_chains(&self) -> Option<&'static str> {
        if self.lets_through() && self.inputs.own.is_some() && !self.iptables.has_read {
            return Some("the chains of iptables are not read yet");
        }
        self.awaits_chains().then_some("the programs of iptables have not ended yet")
    }

    fn awaits_chains(&self) -> bool {
        let is_refused = |key: &Key| self.held.refused.iter().any(|(refused, _)| refused == key);
        let awaited =
            |entry: &Entry| is_chain(entry) && !self.holds(entry) && !is_refused(&entry.key());
        !self.iptables.was_met && self.local_entries().any(awaited)
    }

    /// Changes of legacy iptables are not notified.
    pub(super) fn look_at_chains_again(&mut self) {
        let matter = self.lets_through() || self.local_entries().any(is_chain);
        self.held.timers.look_at_chains(matter.then_some(self.settings.resync));
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

    /// Chains of flannel that are neither kept up nor removed.
    pub(super) fn kept_chains(&self) -> impl Iterator<Item = String> {
        let wanted = self.derived.desired.state();
        let kept = self.held.actual.local().filter_map(move |entry| match entry.as_ref() {
            Entry::Chain(chain) if chain.otherwise == Otherwise::Dropped => Some(chain),
            _ => None,
        });
        let kept = kept.filter(move |chain| wanted.get(&Key::Chain(chain.name)).is_none());
        kept.map(|chain| {
            let (name, base) = (chain.name, chain.name.base.as_str());
            format!(
                "{name} of flanneld stays, for {base} drops what no rule accepts: \
                 --iptables-forward-rules=true would keep it up"
            )
        })
    }
}

pub(super) const fn is_chain(entry: &Entry) -> bool {
    matches!(entry, Entry::Chain(_))
}
