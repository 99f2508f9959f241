//! Rules that masquerade and forward packets of pods, and the choice between nftables and iptables.

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

/// The firewall that is used, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    pub firewall: Firewall,
    pub reason: &'static str,
}

impl Firewall {
    /// The name in logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
        }
    }
}

/// None if no rules are needed. An accept rule of nftables does not override a drop in another
/// table, so accept rules alone are no reason for a table: they are added only to a table that
/// masquerades. `Mixed` alone is no reason to require the iptables programs.
pub fn choice(policy: &Policy, config: &NetworkConfig, host: &Firewalls) -> Option<Choice> {
    use Firewall::{Iptables, Nftables};
    let (firewall, reason) = match policy.firewall {
        Preference::Iptables => (Iptables, "--iptables requests it"),
        Preference::Any if !host.nftables => (Iptables, "this kernel lacks nftables"),
        Preference::Any if config.nftables => (Nftables, "EnableNFTables requests it"),
        Preference::Any => (Nftables, "this kernel supports it"),
    };
    let accepts = firewall == Iptables && policy.forward == Forward::Accept;
    let is_available = host.nftables || policy.firewall == Preference::Iptables;
    let is_needed = policy.masquerade.is_some() || accepts || (config.mixed && is_available);
    is_needed.then_some(Choice { firewall, reason })
}

/// The rules of a node that holds the lease `own`: masquerade and forward, in each enabled family.
pub fn rules(policy: &Policy, config: &NetworkConfig, host: &Firewalls, own: &Lease) -> Vec<Entry> {
    let mut rules = Vec::new();
    if let Some(Choice { firewall, .. }) = choice(policy, config, host) {
        rules.extend(tables(policy, config, host, own, firewall).map(Entry::Table));
        rules.extend(chains(policy, config, host, own, firewall).map(Entry::Chain));
    }
    rules.extend(forward_chains(policy, config, host, own).map(Entry::Chain));
    rules
}

/// Accept rules in each `FORWARD` chain of iptables that drops by policy. No nftables table can
/// override that drop; only a rule of the same kind of iptables can.
fn forward_chains(
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

/// The nftables tables, one per enabled family. With iptables, a table has only the chain of fixed
/// sources: as an nftables chain it runs before those of other programs, whichever starts first.
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
        // Another table may still drop these packets, so these rules alone are no reason for a
        // table.
        let forward = accepted(policy, network).filter(|_| nat.is_some());
        let chains =
            [(Hook::EarlySourceNat, fixed), (Hook::SourceNat, nat), (Hook::Forward, forward)];
        let chains = chains.into_iter().filter_map(|(hook, rules)| Some((hook, rules?)));
        let chains: BTreeMap<_, _> = chains.collect();
        let name = table_name(firewall, network.family(), vni).into();
        (!chains.is_empty()).then_some(Table { name, chains, foreign: 0 })
    })
}

/// The iptables chains: flannel's chains, rule by rule. If the kernel has no nftables, a chain of
/// tweed runs before them.
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

/// The pod network and this node's subnet, for each enabled family.
fn families(config: &NetworkConfig, own: &Lease) -> impl Iterator<Item = (Prefix, Prefix)> {
    let subnet = |network: Prefix| Some((network, own.endpoint(network.family())?.subnet));
    config.networks().filter_map(subnet)
}

/// The names of the tables that a node with this VNI may have, including those of an earlier run
/// and of flanneld. Daemons on the same host have different VNIs, so different tables.
pub fn table_names(vni: u32) -> BTreeSet<TableName> {
    let of =
        |firewall| Family::ALL.into_iter().map(move |family| table_name(firewall, family, vni));
    of(Firewall::Nftables).chain(of(Firewall::Iptables)).chain(flannels_tables()).collect()
}

/// The names of flanneld's tables.
pub fn flannels_tables() -> impl Iterator<Item = TableName> {
    let name = |family: Family| match family {
        Family::V4 => "flannel-ipv4",
        Family::V6 => "flannel-ipv6",
    };
    Family::ALL.into_iter().map(move |family| TableName { family, name: name(family).to_owned() })
}

/// The chains that a node may have, including those of an earlier run and of flanneld.
pub fn chain_names() -> BTreeSet<ChainName> {
    ChainName::all().collect()
}

/// Each firewall has its own name, so that new rules exist before the old ones are removed.
fn table_name(firewall: Firewall, family: Family, vni: u32) -> TableName {
    let name = match firewall {
        Firewall::Nftables => format!("tweed.{vni}"),
        Firewall::Iptables => format!("tweed-source.{vni}"),
    };
    TableName { family, name }
}

/// Rules that give packets to pods of other nodes a fixed source in our subnet (SNAT). They run
/// before the masquerade rules: the kernel ends a masqueraded connection once its packets leave by
/// another link, as they do when the path to a node changes. None if not needed.
///
/// The source is the gateway address of our subnet: peers send to it by the same path as to our
/// pods. They do not for the base address of the subnet: to that they keep a route through the
/// tunnel. No link needs to have the address, because the kernel translates answers before it
/// routes them.
fn fixed(
    policy: &Policy,
    config: &NetworkConfig,
    network: Prefix,
    subnet: Prefix,
) -> Option<Vec<Rule>> {
    use Match::{Is, IsNot};
    let Masquerade { ports, mark } = policy.marked;
    let unmarked = Rule { marked: Some(Marked::Without(mark)), ..Rule::of_all(Verdict::Return) };
    let exempt = match policy.masquerade {
        // Pod-to-pod packets keep their source.
        Some(_) => Rule { source: Some(Is(network)), ..unmarked },
        None if config.mixed => unmarked,
        None => return None,
    };
    Some(vec![
        Rule { destination: Some(IsNot(network)), ..Rule::of_all(Verdict::Return) },
        Rule { destination: Some(Is(subnet)), ..Rule::of_all(Verdict::Return) },
        exempt,
        // Encapsulation keeps the mark: the outer packet would be masqueraded.
        Rule::of_all(Verdict::Unmark(mark)),
        Rule::of_all(Verdict::SourceNat { to: subnet.gateway(), ports }),
    ])
}

/// Masquerade rules; the first match decides. None if nothing is masqueraded.
fn translated(
    policy: &Policy,
    network: Prefix,
    subnet: Prefix,
    exempt: &[Prefix],
) -> Option<Vec<Rule>> {
    use Match::{Is, IsNot};
    let masquerade = policy.masquerade.as_ref()?;
    let family = network.family();
    let source_nat = Verdict::Masquerade(masquerade.ports);
    let first = [
        Rule { marked: Some(Marked::With(masquerade.mark)), ..Rule::of_all(Verdict::Return) },
        Rule::between(Is(subnet), Is(network), Verdict::Return),
        Rule::between(Is(network), Is(subnet), Verdict::Return),
        // Pods of this node see the original source.
        Rule::between(IsNot(network), Is(subnet), Verdict::Return),
    ];
    let exempt = exempt.iter().filter(|range| range.family() == family);
    let exempt = exempt.map(|range| Rule {
        source: Some(Is(network)),
        // A rule with a prefix of length 0 reads back as a rule without one.
        destination: (range.prefix_len() > 0).then_some(Is(*range)),
        ..Rule::of_all(Verdict::Return)
    });
    let last = [
        Rule::between(Is(network), IsNot(Prefix::multicast(family)), source_nat),
        // Answers of pods on other nodes have to return through this node, which translates them
        // back.
        Rule::between(IsNot(network), Is(network), source_nat),
    ];
    Some(first.into_iter().chain(exempt).chain(last).collect())
}

/// Rules that accept packets from and to pods; none if the policy leaves that to other programs.
fn accepted(policy: &Policy, network: Prefix) -> Option<Vec<Rule>> {
    let accept = Rule::of_all(Verdict::Accept);
    let source = Rule { source: Some(Match::Is(network)), ..accept.clone() };
    let destination = Rule { destination: Some(Match::Is(network)), ..accept };
    (policy.forward == Forward::Accept).then(|| vec![source, destination])
}
