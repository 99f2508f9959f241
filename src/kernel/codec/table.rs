//! Tables of nftables.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ipnetwork::IpNetwork;
use tweed_netlink::Frame;
use tweed_netlink::nftables::{
    self, Batch, Chain, Contents, ElementTimeout, Expression, TableFamily,
};

use crate::model::entry::{
    Hook, LinkName, Marked, Match, PEERS, RENEWED, Renewal, Rule, RuleCondition, Table, TableName,
    Verdict,
};
use crate::model::prefix::Family;

/// Shown when an operator lists the rules of a host.
const COMMENT: &str = "made and kept by tweedd";

pub(super) fn remove(table: &Table) -> Batch {
    about(&table.name).delete_table()
}

/// Replaces `table`. Part of one transaction, so that no packet meets a partial table.
pub(super) fn put(table: &Table) -> Batch {
    // These two messages remove the table whether or not it exists.
    let empty = about(&table.name).table(None).delete_table().table(Some(COMMENT));
    let family = table.name.family;
    let empty = if table.has_peers() { empty.address_set(PEERS, family) } else { empty };
    let empty = if table.is_renewed() { empty.protocol_set(RENEWED) } else { empty };
    table.chains.iter().fold(empty, |batch, (hook, rules)| chain(batch, *hook, rules))
}

/// An empty batch for the table `name`.
pub(super) fn about(name: &TableName) -> Batch {
    Batch::of(TableFamily::Only(name.family), &name.name)
}

fn chain(batch: Batch, hook: Hook, rules: &[Rule]) -> Batch {
    let name = name(hook);
    let empty = batch.chain(Chain { name, hook: Some(hook), comment: None });
    rules.iter().fold(empty, |batch, rule| batch.rule(name, &expressions(rule), None))
}

const fn name(hook: Hook) -> &'static str {
    match hook {
        Hook::RawPrerouting => "prerouting",
        Hook::RawOutput => "output",
        Hook::Input => "input",
        Hook::EarlySourceNat => "fixed-source",
        Hook::SourceNat => "postrouting",
        Hook::Forward => "forward",
    }
}

/// The table `name` with these contents.
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
    let table = Table { name: name.into(), chains, foreign };
    // Sets of these rules are not foreign: the kernel keeps a set while a rule refers to it.
    let sets = usize::from(table.has_peers()) + usize::from(table.is_renewed());
    Table { foreign: table.foreign.saturating_sub(sets), ..table }
}

/// The element that keeps `table` dropping packets, with its timeout. Times are whole seconds.
pub(crate) fn renewal(table: Arc<TableName>, stay: ElementTimeout) -> Renewal {
    let seconds = |time: Duration| Duration::from_secs_f64(time.as_secs_f64().round());
    Renewal { table, timeout: seconds(stay.whole), left: seconds(stay.left) }
}

/// The table that a notification reports as changed.
pub(crate) fn changed_table(frame: &Frame<'_>) -> Option<TableName> {
    let (family, name) = nftables::changed_table(frame)?;
    let TableFamily::Only(family) = family else { return None };
    Some(table_name(family, name))
}

pub(super) fn table_name(family: Family, name: &str) -> TableName {
    TableName { family, name: name.to_owned() }
}

pub(super) fn expressions(rule: &Rule) -> Vec<Expression> {
    let condition = |condition: Option<Match>, on: fn(nftables::Match, IpNetwork) -> Expression| {
        let (rule_for, prefix) = match condition? {
            Match::Is(prefix) => (nftables::Match::Is, prefix),
            Match::IsNot(prefix) => (nftables::Match::IsNot, prefix),
        };
        IpNetwork::new(prefix.base(), prefix.prefix_len()).ok().map(|network| on(rule_for, network))
    };
    let verdict = match rule.verdict {
        Verdict::Drop => Expression::Drop,
        Verdict::Untrack => Expression::Untrack,
        Verdict::Accept => Expression::Accept,
        Verdict::Return => Expression::Return,
        Verdict::Unmark(mark) => Expression::Unmark(mark),
        Verdict::Masquerade(ports) => Expression::Masquerade(ports),
        Verdict::SourceNat { to, ports } => Expression::SourceNat(to, ports),
    };
    let marked = rule.marked.map(|marked| match marked {
        Marked::With(mark) => Expression::Marked(nftables::Match::Is, mark),
        Marked::Without(mark) => Expression::Marked(nftables::Match::IsNot, mark),
    });
    let source = condition(rule.source, Expression::Source);
    let destination = condition(rule.destination, Expression::Destination);
    let also = rule.also.iter().map(asked);
    let of_addresses = [source, destination, Some(verdict)].into_iter().flatten();
    marked.into_iter().chain(also).chain(of_addresses).collect()
}

fn asked(condition: &RuleCondition) -> Expression {
    let is = nftables::Match::Is;
    let peers = || PEERS.to_owned();
    match condition {
        RuleCondition::UdpTo(port) => Expression::UdpTo(*port),
        RuleCondition::Unrenewed => {
            Expression::ProtocolIn(nftables::Match::IsNot, RENEWED.to_owned())
        }
        RuleCondition::Vni(vni) => Expression::Vni(is, *vni),
        RuleCondition::OtherVni(vni) => Expression::Vni(nftables::Match::IsNot, *vni),
        RuleCondition::FromLink(link) => Expression::InputInterface(link.to_string()),
        RuleCondition::FromRoutedLink => Expression::ReversePath(is),
        RuleCondition::FromUnroutedLink => Expression::ReversePath(nftables::Match::IsNot),
        RuleCondition::FromPeer(of) => Expression::SourceIn(is, peers(), *of),
        RuleCondition::ToPeer(of) => Expression::DestinationIn(is, peers(), *of),
    }
}

/// None for an expression that tweed never writes.
fn also(expression: &Expression) -> Option<RuleCondition> {
    use nftables::Match::{Is, IsNot};
    Some(match expression {
        Expression::UdpTo(port) => RuleCondition::UdpTo(*port),
        Expression::ProtocolIn(IsNot, set) if set == RENEWED => RuleCondition::Unrenewed,
        Expression::Vni(Is, vni) => RuleCondition::Vni(*vni),
        Expression::Vni(IsNot, vni) => RuleCondition::OtherVni(*vni),
        Expression::InputInterface(link) => RuleCondition::FromLink(LinkName::new(link.as_str())),
        Expression::ReversePath(Is) => RuleCondition::FromRoutedLink,
        Expression::ReversePath(IsNot) => RuleCondition::FromUnroutedLink,
        Expression::SourceIn(Is, set, of) if set == PEERS => RuleCondition::FromPeer(*of),
        Expression::DestinationIn(Is, set, of) if set == PEERS => RuleCondition::ToPeer(*of),
        _ => return None,
    })
}

/// None for a rule that differs from what tweed writes.
pub(super) fn rule(expressions: &[Expression]) -> Option<Rule> {
    let (last, conditions) = expressions.split_last()?;
    let mut rule = Rule::of_all(match last {
        Expression::Drop => Verdict::Drop,
        Expression::Untrack => Verdict::Untrack,
        Expression::Accept => Verdict::Accept,
        Expression::Return => Verdict::Return,
        Expression::Unmark(mark) => Verdict::Unmark(*mark),
        Expression::Masquerade(ports) => Verdict::Masquerade(*ports),
        Expression::SourceNat(to, ports) => Verdict::SourceNat { to: *to, ports: *ports },
        _ => return None,
    });
    for condition in conditions {
        match condition {
            Expression::Marked(nftables::Match::Is, mark) => {
                rule.marked = Some(Marked::With(*mark));
            }
            Expression::Marked(nftables::Match::IsNot, mark) => {
                rule.marked = Some(Marked::Without(*mark));
            }
            Expression::Source(test, network) => rule.source = Some(matched(*test, *network)),
            Expression::Destination(test, network) => {
                rule.destination = Some(matched(*test, *network));
            }
            other => rule.also.push(also(other)?),
        }
    }
    (self::expressions(&rule) == expressions).then_some(rule)
}

fn matched(test: nftables::Match, network: IpNetwork) -> Match {
    match test {
        nftables::Match::Is => Match::Is(network.into()),
        nftables::Match::IsNot => Match::IsNot(network.into()),
    }
}
