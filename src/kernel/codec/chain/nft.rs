//! Reads and writes chains of iptables-nft through nftables, in a form that `iptables-save` can
//! read.

use tweed_netlink::Frame;
use tweed_netlink::nftables::{self, Batch, ListedRule, TableFamily};

use crate::model::entry::{
    Base, BasePolicy, Chain, ChainName, Condition, Hook, Iptables, Rule, Verdict,
};
use crate::plan::diff::Op;

/// The kernel state of one of tweed's chains and of the host's chain that jumps to it.
#[derive(Debug, Default)]
pub(crate) struct HostChain {
    /// The rules of tweed's chain; none if it does not exist.
    pub(crate) inside: Option<Vec<ListedRule>>,
    /// All rules of the host's chain, including foreign ones.
    pub(crate) host: Vec<ListedRule>,
    pub(crate) base_policy: BasePolicy,
}

impl HostChain {
    /// Converts to the chain `name`; none if it does not exist.
    pub(crate) fn chain(&self, name: ChainName) -> Option<Chain> {
        let inside = self.inside.as_ref()?;
        let rules: Vec<Rule> = inside.iter().filter_map(|rule| known(rule, name.base)).collect();
        let is_led_to = self.is_led_to(name.base);
        let misplaced = if is_led_to { 0 } else { self.leading(name.base).count().max(1) };
        let foreign = inside.len() - rules.len() + misplaced;
        Some(Chain { name, rules, foreign, base_policy: self.base_policy })
    }

    /// The batch that applies `op`, entirely or not at all. Foreign rules are not changed.
    pub(crate) fn batch(&self, op: &Op, chain: &Chain) -> Batch {
        let batch = Batch::of(table_of(chain.name));
        match op {
            Op::Create(_) | Op::Replace(_) => self.with(chain, batch),
            Op::Remove(_) => self.without(chain.name.base, batch),
        }
    }

    fn with(&self, chain: &Chain, batch: Batch) -> Batch {
        let base = chain.name.base;
        let (host, own, comment) = (base.as_str(), base.chain(), Some(base.comment()));
        // Existing chains keep their settings, including the policy of the host's chain.
        let batch = batch
            .table(None)
            .chain(nftables::Chain { name: host, hook: Some(hook(base)), comment: None })
            .chain(nftables::Chain { name: own, hook: None, comment: None })
            .flush(own);
        let rules = chain.rules.iter().map(counted);
        let filled = rules.fold(batch, |batch, rule| batch.rule(own, &rule, comment));
        if self.is_led_to(base) {
            return filled;
        }
        let jump = Rule::of([Condition::Counter], Verdict::Jump(own.to_owned()));
        self.without_jumps(base, filled).rule(host, &jump, comment)
    }

    fn without(&self, base: Base, batch: Batch) -> Batch {
        let batch = self.without_jumps(base, batch);
        match self.inside {
            Some(_) => batch.flush(base.chain()).delete_chain(base.chain()),
            None => batch,
        }
    }

    fn without_jumps(&self, base: Base, batch: Batch) -> Batch {
        self.leading(base).fold(batch, |batch, rule| batch.delete_rule(base.as_str(), rule.handle))
    }

    /// The rules of the host's chain that jump to tweed's chain.
    fn leading(&self, base: Base) -> impl Iterator<Item = &ListedRule> {
        self.host.iter().filter(move |rule| rule.leads_to.as_deref() == Some(base.chain()))
    }

    fn is_led_to(&self, base: Base) -> bool {
        let is_ours = |rule: &ListedRule| {
            let jump = Rule::of([], Verdict::Jump(base.chain().to_owned()));
            has_comment(rule, base) && rule.rule == Some(jump)
        };
        let mut leading = self.leading(base);
        leading.next().is_some_and(is_ours) && leading.next().is_none()
    }
}

/// The table of iptables-nft that holds the chain `name`.
pub(crate) fn table_of(name: ChainName) -> nftables::Table<'static> {
    nftables::Table { family: TableFamily::Only(name.family), name: name.base.table() }
}

/// The iptables-nft chain that a notification reports as changed, directly or through the host's
/// chain.
pub(crate) fn changed_chain(frame: &Frame<'_>) -> Option<ChainName> {
    let (family, table, chain) = nftables::changed_chain(frame)?;
    let TableFamily::Only(family) = family else { return None };
    let is_meant =
        |base: &Base| base.table() == table && [base.as_str(), base.chain()].contains(&chain);
    let base = Base::ALL.into_iter().find(is_meant)?;
    Some(ChainName { iptables: Iptables::Nft, family, base })
}

/// None for a rule with an unknown expression, or with another comment.
fn known(rule: &ListedRule, base: Base) -> Option<Rule> {
    rule.rule.clone().filter(|_| has_comment(rule, base))
}

fn has_comment(rule: &ListedRule, base: Base) -> bool {
    rule.comment.as_deref() == Some(base.comment())
}

/// The iptables programs do not recognize rules without a counter.
fn counted(rule: &Rule) -> Rule {
    let mut counted = rule.clone();
    counted.conditions.push(Condition::Counter);
    counted
}

const fn hook(base: Base) -> Hook {
    match base {
        Base::EarlyPostrouting | Base::Postrouting => Hook::SourceNat,
        Base::Forward => Hook::Forward,
    }
}
