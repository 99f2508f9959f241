//! Tables of nftables.

use std::collections::BTreeMap;

use ipnetwork::IpNetwork;
use tweed_cni::nftables::{self, Batch, Chain, Contents, Expression, IpFamily, TableFamily};

use crate::kernel::Op;
use crate::kernel::state::{Hook, Match, Rule, Table, TableName, Verdict};
use crate::prefix::Family;

/// For people who list the rules of a host.
const COMMENT: &str = "made and kept by tweedd";

/// One transaction: no packet meets the table half made.
pub(super) fn encode(op: &Op, table: &Table) -> Batch {
    let family = TableFamily::Only(family(table.name.family));
    let batch = Batch::of(family, &table.name.name);
    match op {
        Op::Remove(_) => batch.delete_table(),
        Op::Create(_) | Op::Replace(_) => {
            // Whether it is there or not, it is gone after these two.
            let empty = batch.table(None).delete_table().table(Some(COMMENT));
            table.chains.iter().fold(empty, |batch, (hook, rules)| chain(batch, *hook, rules))
        }
    }
}

fn chain(batch: Batch, hook: Hook, rules: &[Rule]) -> Batch {
    let name = name(hook);
    let empty = batch.chain(Chain { name, hook: Some(hook), comment: None });
    rules.iter().fold(empty, |batch, rule| batch.rule(name, &expressions(rule), None))
}

const fn name(hook: Hook) -> &'static str {
    match hook {
        Hook::SourceNat => "postrouting",
        Hook::Forward => "forward",
    }
}

/// The table `name` that holds `contents`.
pub(crate) fn table(name: TableName, contents: Contents) -> Table {
    let Contents { flags, objects, chains: listed } = contents;
    let mut foreign = usize::from(flags != 0) + usize::try_from(objects).unwrap_or(usize::MAX);
    let mut chains = BTreeMap::new();
    for nftables::Rules { chain, hook, rules } in listed {
        let Some(hook) = hook.filter(|hook| self::name(*hook) == chain) else { continue };
        let count = rules.len();
        let known: Vec<Rule> = rules.iter().flatten().filter_map(|one| rule(one)).collect();
        foreign = (foreign + count).saturating_sub(known.len() + 1);
        chains.insert(hook, known);
    }
    Table { name, chains, foreign }
}

/// The table that a `message` to those who listen says to have changed.
pub(crate) fn changed_table(message: &[u8]) -> Option<TableName> {
    let (family, name) = nftables::changed_table(message)?;
    let family = match family {
        TableFamily::Only(IpFamily::V4) => Family::V4,
        TableFamily::Only(IpFamily::V6) => Family::V6,
        TableFamily::Both => return None,
    };
    Some(TableName { family, name: name.to_owned() })
}

pub(crate) const fn family(family: Family) -> IpFamily {
    match family {
        Family::V4 => IpFamily::V4,
        Family::V6 => IpFamily::V6,
    }
}

fn expressions(rule: &Rule) -> Vec<Expression> {
    let condition = |condition: Option<Match>, on: fn(nftables::Match, IpNetwork) -> Expression| {
        let (rule_for, prefix) = match condition? {
            Match::Is(prefix) => (nftables::Match::Is, prefix),
            Match::IsNot(prefix) => (nftables::Match::IsNot, prefix),
        };
        IpNetwork::new(prefix.base(), prefix.prefix_len()).ok().map(|network| on(rule_for, network))
    };
    let verdict = match rule.verdict {
        Verdict::Accept => Expression::Accept,
        Verdict::Return => Expression::Return,
        Verdict::Masquerade(ports) => Expression::Masquerade(ports),
    };
    let marked = rule.marked.map(Expression::Marked);
    let source = condition(rule.source, Expression::Source);
    let destination = condition(rule.destination, Expression::Destination);
    [marked, source, destination, Some(verdict)].into_iter().flatten().collect()
}

/// None for a rule that is in no form of ours.
fn rule(expressions: &[Expression]) -> Option<Rule> {
    let (marked, rest) = match expressions {
        [Expression::Marked(mark), rest @ ..] => (Some(*mark), rest),
        all => (None, all),
    };
    let (source, rest) = match rest {
        [Expression::Source(rule_for, network), rest @ ..] => {
            (Some(condition(*rule_for, *network)), rest)
        }
        all => (None, all),
    };
    let (destination, rest) = match rest {
        [Expression::Destination(rule_for, network), rest @ ..] => {
            (Some(condition(*rule_for, *network)), rest)
        }
        all => (None, all),
    };
    let verdict = match rest {
        [Expression::Accept] => Verdict::Accept,
        [Expression::Return] => Verdict::Return,
        [Expression::Masquerade(ports)] => Verdict::Masquerade(*ports),
        _ => return None,
    };
    Some(Rule { marked, source, destination, verdict })
}

fn condition(rule_for: nftables::Match, network: IpNetwork) -> Match {
    match rule_for {
        nftables::Match::Is => Match::Is(network.into()),
        nftables::Match::IsNot => Match::IsNot(network.into()),
    }
}
