//! What the rules of tweed's tables and chains do with a packet.

use std::net::IpAddr;
use std::sync::Arc;

use crate::model::entry::{
    Base, BasePolicy, Chain, Condition, Entry, Hook, KernelState, Key, LinkName, Match, PEERS,
    RENEWED, Rule, Side, TableName, Verdict,
};
use crate::model::prefix::Family;

/// A new flow's first packet, as rules see it.
#[derive(Clone, Copy)]
pub(super) struct Header<'a> {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    /// Set by rules of other programs.
    pub(super) mark: u32,
    /// Port and VNI, if it is a packet of the tunnel.
    pub(super) tunnel: Option<(u16, u32)>,
    pub(super) arrival: Option<Arrival<'a>>,
}

#[derive(Clone, Copy)]
pub(super) struct Arrival<'a> {
    pub(super) link: &'a LinkName,
    /// The link of the route to its source.
    pub(super) back: Option<&'a LinkName>,
}

/// The rules of one chain, and the table with the sets that they refer to.
pub(super) struct RuleChain<'a> {
    rules: &'a [Rule],
    table: Option<&'a Arc<TableName>>,
}

/// What the first matching rule with a final verdict does; none at the end of the chain.
pub(super) type Decision<'a> = Option<&'a Rule>;

impl<'a> RuleChain<'a> {
    pub(super) fn decide(&self, header: &Header<'_>, actual: &KernelState) -> Decision<'a> {
        let is_final = |rule: &&Rule| {
            !matches!(rule.verdict, Verdict::Untrack | Verdict::Mark(_) | Verdict::Unmark(_))
        };
        self.rules.iter().filter(is_final).find(|rule| {
            rule.conditions.iter().all(|condition| self.matches(condition, header, actual))
        })
    }

    fn matches(&self, condition: &Condition, header: &Header<'_>, actual: &KernelState) -> bool {
        let holds = |key: fn(Arc<TableName>, IpAddr) -> Key, address| {
            self.table.is_some_and(|table| actual.get(&key(Arc::clone(table), address)).is_some())
        };
        let (found, test) = match condition {
            Condition::Address(side, test, network) => {
                (network.contains(header.address(*side)), *test)
            }
            Condition::AddressIn(side, test, set, _) => {
                (set == PEERS && holds(Key::Element, header.address(*side)), *test)
            }
            Condition::ProtocolIn(test, set) => {
                let is_there = holds(|table, _| Key::Renewal(table), header.source);
                (set == RENEWED && header.tunnel.is_some() && is_there, *test)
            }
            Condition::Marked(test, mark) => (header.mark & *mark == *mark, *test),
            Condition::UdpTo(to) => (header.tunnel.is_some_and(|(port, _)| port == *to), Match::Is),
            // A packet without this header matches neither test.
            Condition::Vni(test, vni) => match header.tunnel {
                Some((_, of_packet)) => (of_packet == *vni, *test),
                None => return false,
            },
            Condition::InputInterface(name) => {
                (header.arrival.is_some_and(|arrival| arrival.link.as_str() == name), Match::Is)
            }
            // No packet is asked about that has such a rule before it.
            Condition::OutputInterface(_)
            | Condition::KeyIn(_, _, _)
            | Condition::LocalSource(_)
            | Condition::Connection(_) => (false, Match::Is),
            Condition::ReversePath(test) => {
                let is_back = |arrival: Arrival<'_>| arrival.back == Some(arrival.link);
                (header.arrival.is_some_and(is_back), *test)
            }
            Condition::Counter => (true, Match::Is),
        };
        found == (test == Match::Is)
    }
}

impl Header<'_> {
    const fn address(&self, side: Side) -> IpAddr {
        match side {
            Side::Source => self.source,
            Side::Destination => self.destination,
        }
    }
}

/// The chains of tweed's tables at `hook`.
pub(super) fn at_hook(
    actual: &KernelState,
    family: Family,
    hook: Hook,
) -> impl Iterator<Item = RuleChain<'_>> {
    actual.local().filter_map(move |entry| match entry.as_ref() {
        Entry::Table(table) if table.name.family == family => {
            Some(RuleChain { rules: table.chains.get(&hook)?, table: Some(&table.name) })
        }
        _ => None,
    })
}

/// What the rules do with the source of a new flow: the first that translates it decides, or else
/// the last that keeps it. The chains are in the order of the kernel.
pub(super) fn translation<'a>(actual: &'a KernelState, header: &Header<'_>) -> Decision<'a> {
    let family = Family::of(header.destination);
    let stages =
        [(Hook::EarlySourceNat, Base::EarlyPostrouting), (Hook::SourceNat, Base::Postrouting)];
    let mut kept = None;
    for (hook, base) in stages {
        let chains = chains(actual, family, base).map(RuleChain::of);
        for chain in at_hook(actual, family, hook).chain(chains) {
            match chain.decide(header, actual) {
                Some(rule) if rule.verdict.translates() => return Some(rule),
                Some(rule) => kept = Some(rule),
                None => {}
            }
        }
    }
    kept
}

/// The chains of iptables for which the host drops packets that no rule accepts.
pub(super) fn dropping(
    actual: &KernelState,
    family: Family,
) -> impl Iterator<Item = (&Chain, RuleChain<'_>)> {
    let chains = chains(actual, family, Base::Forward);
    let dropping = chains.filter(|chain| chain.base_policy == BasePolicy::Drop);
    dropping.map(|chain| (chain, RuleChain::of(chain)))
}

fn chains(actual: &KernelState, family: Family, base: Base) -> impl Iterator<Item = &Chain> {
    actual.local().filter_map(move |entry| match entry.as_ref() {
        Entry::Chain(chain) if (chain.name.family, chain.name.base) == (family, base) => {
            Some(chain)
        }
        _ => None,
    })
}

impl<'a> RuleChain<'a> {
    fn of(chain: &'a Chain) -> Self {
        RuleChain { rules: &chain.rules, table: None }
    }
}
