//! The rules by which packets are masqueraded: which firewall has them, and which may go.

use tokio::time::Instant;

use super::Reconciler;
use crate::kernel::Kernel;
use crate::model::entry::{Entry, Key, Otherwise};
use crate::plan::masquerade::{self, Choice};

impl<K: Kernel> Reconciler<K> {
    /// Which firewall has rules of ours; none if none does, or not enough is known.
    pub(super) fn firewall(&self) -> Option<Choice> {
        let local = self.inputs.local()?;
        masquerade::choice(&local.policy, &local.config, &local.node.firewalls)
    }

    pub(super) fn log_firewall(&mut self) {
        let choice = self.firewall();
        if let Some(Choice { firewall, reason }) = choice.filter(|_| choice != self.firewall) {
            let is_mixed = self.inputs.config.as_ref().is_some_and(|config| config.mixed);
            let doing = match self.settings.policy.masquerade {
                Some(_) => "masquerading",
                None if is_mixed => "keeping connections that others masquerade",
                None => "letting packets of pods through",
            };
            tracing::info!(firewall = firewall.as_str(), reason, "{doing}");
        }
        self.firewall = choice;
    }

    /// Whether everything is in place by which packets are to be masqueraded: what another
    /// firewall has, or another daemon has left, is needed until then.
    pub(super) fn rules_are_met(&self) -> bool {
        self.inputs.own.is_some() && self.is_met(Entry::is_rules)
    }

    /// Rules were put: those that had to wait for them may go.
    pub(super) fn look_at_old_rules(&mut self) {
        let is_old = |key: &Key| self.desired.state().get(key).is_none();
        let old: Vec<Key> = self.held_rules().filter(is_old).collect();
        for key in old {
            self.timers.look_again(key, Instant::now());
        }
    }

    /// Of the kernel, whoever wants them.
    fn held_rules(&self) -> impl Iterator<Item = Key> {
        self.actual.local().filter(|entry| entry.is_rules()).map(|entry| entry.key())
    }

    /// Chains of flannel that nobody keeps up, and that nobody removes either.
    pub(super) fn kept_chains(&self) -> impl Iterator<Item = String> {
        let wanted = self.desired.state();
        let kept = self.actual.local().filter_map(move |entry| match entry.as_ref() {
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
