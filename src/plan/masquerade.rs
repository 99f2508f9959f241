//! What is done with the packets of pods in addition to routing them: the rules, as data, and which
//! firewall of the host applies them.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::config::NetworkConfig;
use crate::model::entry::{
    Base, Chain, ChainName, Entry, Hook, Marked, Match, Rule, Table, TableName, Verdict,
};
use crate::model::lease::Lease;
use crate::model::node::Firewalls;
use crate::model::policy::{Forward, Masquerade, Policy, Preference};
use crate::model::prefix::{Family, Prefix};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Firewall {
    Nftables,
    Iptables,
}

/// The firewall that is taken, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    pub firewall: Firewall,
    pub reason: &'static str,
}

impl Firewall {
    /// The word in logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
        }
    }
}

/// None if there is nothing for it to do. A chain of nftables that accepts saves no packet that
/// another drops: it comes along with those that masquerade, and is worth no table by itself. What
/// only `Mixed` needs is no reason to depend on programs that the operator did not ask for.
pub fn choice(policy: &Policy, config: &NetworkConfig, host: &Firewalls) -> Option<Choice> {
    use Firewall::{Iptables, Nftables};
    let (firewall, reason) = match policy.firewall {
        Preference::Iptables => (Iptables, "--iptables asks for it"),
        Preference::Any if !host.nftables => (Iptables, "this kernel lacks nftables"),
        Preference::Any if config.nftables => (Nftables, "EnableNFTables asks for it"),
        Preference::Any => (Nftables, "this kernel has it"),
    };
    let accepts = firewall == Iptables && policy.forward == Forward::Accept;
    let is_at_hand = host.nftables || policy.firewall == Preference::Iptables;
    let is_needed = policy.masquerade.is_some() || accepts || (config.mixed && is_at_hand);
    is_needed.then_some(Choice { firewall, reason })
}

/// What a node that holds the lease `own` masquerades by, and lets pods' packets through, in each
/// enabled family.
pub fn rules(policy: &Policy, config: &NetworkConfig, host: &Firewalls, own: &Lease) -> Vec<Entry> {
    let mut rules = Vec::new();
    if let Some(Choice { firewall, .. }) = choice(policy, config, host) {
        rules.extend(tables(policy, config, host, own, firewall).map(Entry::Table));
        rules.extend(chains(policy, config, host, own, firewall).map(Entry::Chain));
    }
    rules.extend(let_through(policy, config, host, own).map(Entry::Chain));
    rules
}

/// Where a chain `FORWARD` of iptables drops what no rule accepts: no table of nftables can accept
/// such a packet for good, only a rule of that kind of iptables.
fn let_through(
    policy: &Policy,
    config: &NetworkConfig,
    host: &Firewalls,
    own: &Lease,
) -> impl Iterator<Item = Chain> {
    families(config, own).flat_map(move |(network, _)| {
        let of_family = host.dropping.iter().filter(move |it| it.family == network.family());
        of_family.filter_map(move |name| Some(Chain::of(*name, accepted(policy, network)?)))
    })
}

/// Of nftables, one per enabled family. With iptables it has the chain of fixed sources alone: a
/// chain of nftables comes before those of other programs, whichever starts first.
fn tables(
    policy: &Policy,
    config: &NetworkConfig,
    host: &Firewalls,
    own: &Lease,
    firewall: Firewall,
) -> impl Iterator<Item = Table> {
    let vni = config.backend.tunnel.vni;
    families(config, own).filter_map(move |(network, subnet)| {
        let fixed = fixed(policy, config, network, subnet).filter(|_| host.nftables);
        let nat = translated(policy, network, subnet, &config.non_masquerade);
        let nat = nat.filter(|_| firewall == Firewall::Nftables);
        // What another table drops stays dropped: these rules are worth no table by themselves.
        let forward = accepted(policy, network).filter(|_| nat.is_some());
        let chains =
            [(Hook::EarlySourceNat, fixed), (Hook::SourceNat, nat), (Hook::Forward, forward)];
        let chains = chains.into_iter().filter_map(|(hook, rules)| Some((hook, rules?)));
        let chains: BTreeMap<_, _> = chains.collect();
        let name = table_name(firewall, network.family(), vni).into();
        (!chains.is_empty()).then_some(Table { name, chains, foreign: 0 })
    })
}

/// Of iptables: those that flanneld has, rule by rule. Where the kernel lacks nftables, one of our own
/// before them.
fn chains(
    policy: &Policy,
    config: &NetworkConfig,
    host: &Firewalls,
    own: &Lease,
    firewall: Firewall,
) -> impl Iterator<Item = Chain> {
    let families = families(config, own).filter(move |_| firewall == Firewall::Iptables);
    families.flat_map(move |(network, subnet)| {
        let (iptables, family) = (host.iptables, network.family());
        let fixed = fixed(policy, config, network, subnet).filter(|_| !host.nftables);
        let chains = [
            (Base::EarlyPostrouting, fixed),
            (Base::Postrouting, translated(policy, network, subnet, &config.non_masquerade)),
            (Base::Forward, accepted(policy, network)),
        ];
        let chain = move |(base, rules): (_, Option<_>)| {
            Some(Chain::of(ChainName { iptables, family, base }, rules?))
        };
        chains.into_iter().filter_map(chain)
    })
}

/// The network and our subnet of each enabled family.
fn families(config: &NetworkConfig, own: &Lease) -> impl Iterator<Item = (Prefix, Prefix)> {
    let subnet = |network: Prefix| Some((network, own.endpoint(network.family())?.subnet));
    config.networks().filter_map(subnet)
}

/// The tables that a node whose tunnel has this VNI may have: now, from an earlier life, or from
/// flanneld. Daemons that share a host have different ones of their own.
pub fn table_names(vni: u32) -> BTreeSet<TableName> {
    let of =
        |firewall| Family::ALL.into_iter().map(move |family| table_name(firewall, family, vni));
    of(Firewall::Nftables).chain(of(Firewall::Iptables)).chain(flannels_tables()).collect()
}

/// Those that flanneld makes.
pub fn flannels_tables() -> impl Iterator<Item = TableName> {
    let name = |family: Family| match family {
        Family::V4 => "flannel-ipv4",
        Family::V6 => "flannel-ipv6",
    };
    Family::ALL.into_iter().map(move |family| TableName { family, name: name(family).to_owned() })
}

/// The chains that a node may have, likewise.
pub fn chain_names() -> BTreeSet<ChainName> {
    ChainName::all().collect()
}

/// One for each firewall, so that the rules of one are there before those of the other go.
fn table_name(firewall: Firewall, family: Family, vni: u32) -> TableName {
    let name = match firewall {
        Firewall::Nftables => format!("tweed.{vni}"),
        Firewall::Iptables => format!("tweed-source.{vni}"),
    };
    TableName { family, name }
}

/// Which packets to pods of other nodes get a fixed source in our subnet, before the rules that
/// masquerade: the kernel ends a masqueraded connection once its packets leave by another link, as
/// they do when the path to their node changes. None if none do.
///
/// The source is the gateway address of our subnet: whatever path leads to our pods leads there,
/// which is not so for the base of the subnet, to which peers keep a route through the tunnel. It
/// need not be on any link, because the kernel translates answers before it routes them.
fn fixed(
    policy: &Policy,
    config: &NetworkConfig,
    network: Prefix,
    subnet: Prefix,
) -> Option<Vec<Rule>> {
    use Match::{Is, IsNot};
    let Masquerade { ports, mark } = policy.marked;
    let unmarked = Rule { marked: Some(Marked::Without(mark)), ..Rule::of_all(Verdict::Return) };
    let spared = match policy.masquerade {
        // Pods know each other by their own addresses.
        Some(_) => Rule { source: Some(Is(network)), ..unmarked },
        None if config.mixed => unmarked,
        None => return None,
    };
    Some(vec![
        Rule { destination: Some(IsNot(network)), ..Rule::of_all(Verdict::Return) },
        Rule { destination: Some(Is(subnet)), ..Rule::of_all(Verdict::Return) },
        spared,
        // In the tunnel the packet keeps its mark: it would be masqueraded outside.
        Rule::of_all(Verdict::Unmark(mark)),
        Rule::of_all(Verdict::SourceNat { to: subnet.gateway(), ports }),
    ])
}

/// Which sources become those of this node: the first rule that fits decides. None if none do.
fn translated(
    policy: &Policy,
    network: Prefix,
    subnet: Prefix,
    spared: &[Prefix],
) -> Option<Vec<Rule>> {
    use Match::{Is, IsNot};
    let masquerade = policy.masquerade.as_ref()?;
    let family = network.family();
    let by_us = Verdict::Masquerade(masquerade.ports);
    let first = [
        Rule { marked: Some(Marked::With(masquerade.mark)), ..Rule::of_all(Verdict::Return) },
        Rule::between(Is(subnet), Is(network), Verdict::Return),
        Rule::between(Is(network), Is(subnet), Verdict::Return),
        // Pods of this node see who speaks to them.
        Rule::between(IsNot(network), Is(subnet), Verdict::Return),
    ];
    let spared = spared.iter().filter(|range| range.family() == family);
    let spared = spared.map(|range| Rule {
        source: Some(Is(network)),
        // No firewall tells "from anywhere" from nothing asked.
        destination: (range.prefix_len() > 0).then_some(Is(*range)),
        ..Rule::of_all(Verdict::Return)
    });
    let last = [
        Rule::between(Is(network), IsNot(Prefix::multicast(family)), by_us),
        // The answers of pods elsewhere come back by this node, which knows whom they are for.
        Rule::between(IsNot(network), Is(network), by_us),
    ];
    Some(first.into_iter().chain(spared).chain(last).collect())
}

/// What is let through from and to pods; none if that is for others to say.
fn accepted(policy: &Policy, network: Prefix) -> Option<Vec<Rule>> {
    let accept = Rule::of_all(Verdict::Accept);
    let source = Rule { source: Some(Match::Is(network)), ..accept.clone() };
    let destination = Rule { destination: Some(Match::Is(network)), ..accept };
    (policy.forward == Forward::Accept).then(|| vec![source, destination])
}
