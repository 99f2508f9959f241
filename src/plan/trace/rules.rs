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

impl<'a> RuleChain<'a> {
    fn of(chain: &'a Chain) -> Self {
        RuleChain { rules: &chain.rules, table: None }
    }

    /// The first matching rule with a final verdict; none at the end of the chain.
    pub(super) fn decide(&self, header: &Header<'_>, actual: &KernelState) -> Option<&'a Rule> {
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
        let is = |found: bool, test: &Match| found == (*test == Match::Is);
        match condition {
            Condition::Address(side, test, network) => {
                is(network.contains(header.address(*side)), test)
            }
            Condition::AddressIn(side, test, set, _) => {
                is(set == PEERS && holds(Key::Element, header.address(*side)), test)
            }
            Condition::ProtocolIn(test, set) => {
                let is_there = holds(|table, _| Key::Renewal(table), header.source);
                is(set == RENEWED && header.tunnel.is_some() && is_there, test)
            }
            Condition::Marked(test, mark) => is(header.mark & *mark == *mark, test),
            Condition::UdpTo(to) => header.tunnel.is_some_and(|(port, _)| port == *to),
            // A packet without this header matches neither test.
            Condition::Vni(test, vni) => header.tunnel.is_some_and(|(_, it)| is(it == *vni, test)),
            Condition::InputInterface(name) => {
                header.arrival.is_some_and(|arrival| arrival.link.as_str() == name)
            }
            // No packet is asked about that has such a rule before it.
            Condition::OutputInterface(_)
            | Condition::KeyIn(_, _, _)
            | Condition::LocalSource(_)
            | Condition::Connection(_) => false,
            Condition::ReversePath(test) => {
                let is_back = |arrival: Arrival<'_>| arrival.back == Some(arrival.link);
                is(header.arrival.is_some_and(is_back), test)
            }
            Condition::Counter => true,
        }
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

/// What the rules do with the source of a new flow from `source` to `destination`, which another
/// program has marked with `mark`: the first that translates it decides, or else the last that keeps
/// it. The chains are in the order of the kernel.
pub fn translation(
    actual: &KernelState,
    (source, destination): (IpAddr, IpAddr),
    mark: u32,
) -> Option<&Rule> {
    let header = &Header { source, destination, mark, tunnel: None, arrival: None };
    let family = Family::of(destination);
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
