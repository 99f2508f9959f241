//! The iptables chains. External programs read and write them and may hang, so the loop runs one
//! task at a time and does not wait for it.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;

use futures::FutureExt;
use futures::future::LocalBoxFuture;

use super::Control;
use super::changes::Changes;
use crate::kernel::{Chains, Generation, Reading, Refused};
use crate::model::config::NetworkConfig;
use crate::model::entry::{Base, BasePolicy, ChainName, Entry, Key};
use crate::model::policy::Forward;
use crate::plan::diff::Op;

/// A result of the iptables programs.
#[derive(Debug)]
pub enum IptablesResult {
    Read(Reading),
    Written { ops: Vec<Op>, refused: Vec<Refused> },
}

/// The task that runs the iptables programs, and what is known of the chains.
#[derive(Default)]
pub(super) struct IptablesTask {
    running: Option<LocalBoxFuture<'static, IptablesResult>>,
    /// The generation of the last read.
    generation: Option<Generation>,
    /// Whether the chains were read: the plan depends on which packets the host drops.
    has_read: bool,
    /// Whether all desired chains have been in place at least once.
    was_met: bool,
    /// The chains for which it is unknown whether the host drops packets, with the reason.
    unread: BTreeMap<ChainName, String>,
}

impl IptablesTask {
    /// Waits for the task; never resolves while none runs. Cancel safe.
    pub(super) async fn ended(&mut self) -> IptablesResult {
        let Some(task) = &mut self.running else { return pending().await };
        let result = task.await;
        self.running = None;
        result
    }

    /// Makes the next read cover all chains.
    pub(super) const fn read_all(&mut self) {
        self.generation = None;
    }
}

impl Control {
    /// Starts a task that applies `ops`, all on chains, unless a read must come first. Operations
    /// that are not applied remain differences and are retried when the task ends.
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

    /// All chains at the first read and in each audit. Between audits, only planned chains and
    /// those that may change the plan, because a host may have a large number of other rules.
    fn chains_to_read(&self) -> BTreeSet<ChainName> {
        let all = self.derived.scope.chains.iter().copied();
        let (wanted, held) = (self.derived.desired.state(), &self.state.actual);
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
        self.iptables.was_met |= !changes.plan && self.is_met(is_chain);
        let chains = self.derived.desired.state().local().chain(self.state.actual.local());
        let keys = chains.filter(|entry| is_chain(entry)).map(|entry| entry.key());
        let due = keys.filter(|key| !self.state.refused.is_waiting(key));
        changes.differences.extend(due);
        self.schedule_chains();
        changes
    }

    fn chains_were_read(&mut self, reading: Reading) -> Changes {
        let Reading { names, found, dropping, unread, generation } = reading;
        let were_met = self.rules_are_met();
        let held = names.iter().filter_map(|name| self.state.actual.remove(&Key::Chain(*name)));
        let held: Vec<_> = held.collect();
        self.state.actual.extend(found.into_iter().map(Entry::Chain));
        for had in &held {
            self.state.note_disturbed(had, self.derived.desired.state());
        }
        let report = self.rules_are_met() != were_met;
        let is_news = self.inputs.note_dropping(&names, dropping);
        if is_news {
            let programs = self.inputs.dropping.iter().map(|name| name.program());
            let dropping: Vec<String> = programs.collect();
            tracing::info!(?dropping, "the FORWARD chains with the policy DROP have changed");
        }
        self.iptables.unread.retain(|name, _| !names.contains(name));
        self.iptables.unread.extend(unread);
        self.iptables.generation = generation;
        self.iptables.has_read = true;
        self.state.timers.chains_were_read();
        Changes { plan: is_news, save: is_news, report, ..Changes::default() }
    }

    /// The chains that readiness waits for, unless the reason why they are missing is already
    /// known.
    pub(super) fn awaited_chains(&self) -> Option<&'static str> {
        if self.accepts_forwarded() && self.inputs.own.is_some() && !self.iptables.has_read {
            return Some("the iptables chains are not read yet");
        }
        let is_refused = |key: &Key| self.state.refused.iter().any(|(refused, _)| refused == key);
        let awaited =
            |entry: &Entry| is_chain(entry) && !self.holds(entry) && !is_refused(&entry.key());
        let awaits = !self.iptables.was_met && self.local_entries().any(awaited);
        awaits.then_some("the iptables programs have not ended yet")
    }

    /// Legacy iptables sends no change notifications.
    pub(super) fn schedule_chains(&mut self) {
        let matter = self.accepts_forwarded() || self.local_entries().any(is_chain);
        self.state.timers.check_chains(matter.then_some(self.settings.resync));
    }

    fn accepts_forwarded(&self) -> bool {
        self.inputs.policy.forward == Forward::Accept
    }

    /// Where the host may drop pod packets and no program is installed to check, with the fix.
    pub(super) fn doubtful_chains(&self) -> impl Iterator<Item = String> {
        let networks = self.inputs.config.iter().flat_map(NetworkConfig::networks);
        networks.filter(|_| self.accepts_forwarded()).flat_map(|network| {
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

    /// Chains of flannel that are neither maintained nor removed.
    pub(super) fn kept_chains(&self) -> impl Iterator<Item = String> {
        let wanted = self.derived.desired.state();
        let kept = self.state.actual.local().filter_map(move |entry| match entry.as_ref() {
            Entry::Chain(chain) if chain.base_policy == BasePolicy::Drop => Some(chain),
            _ => None,
        });
        let kept = kept.filter(move |chain| wanted.get(&Key::Chain(chain.name)).is_none());
        kept.map(|chain| {
            let (name, base) = (chain.name, chain.name.base.as_str());
            format!(
                "{name} of flanneld is kept, because {base} drops packets by default: \
                 set --iptables-forward-rules=true to let tweedd maintain it"
            )
        })
    }
}

pub(super) const fn is_chain(entry: &Entry) -> bool {
    matches!(entry, Entry::Chain(_))
}
