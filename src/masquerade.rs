//! What is done with the packets of pods beside routing them: the rules, as data.

mod firewall;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::config::NetworkConfig;
use crate::guard::{Checksums, Guard};
use crate::kernel::state::{
    Base, Chain, ChainName, Entry, Hook, Marked, Match, Rule, Table, TableName, Verdict,
};
use crate::lease::Lease;
use crate::node::Firewalls;
use crate::prefix::{Family, Prefix};

pub use crate::kernel::state::Ports;
pub use firewall::{Choice, Firewall, Preference, choice};

/// What the operator's flags ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// None if pods are known by their own addresses everywhere.
    pub masquerade: Option<Masquerade>,
    /// How packets that others mark for masquerading get a fixed source on their way to pods of
    /// other nodes, with `masquerade` or without.
    #[serde(default)]
    pub marked: Masquerade,
    #[serde(default)]
    pub forward: Forward,
    #[serde(default)]
    pub firewall: Preference,
    /// Whether who sends to an address of our subnet that no pod has is told so. Without the bridge
    /// that has the subnet, such packets would go back to where they came from, in circles.
    pub refuse_unused: bool,
    /// None if the tunnel, if there is one, is not guarded.
    #[serde(default)]
    pub guard: Option<Guard>,
    #[serde(default)]
    pub checksums: Checksums,
}

/// How what leaves the pods' network is given an address of this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Masquerade {
    pub ports: Ports,
    /// Whoever marks a packet so masquerades it by rules of its own.
    pub mark: u32,
}

/// What becomes of packets that this node forwards from or to pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forward {
    Accept,
    /// That is for others to say.
    #[default]
    Leave,
}

impl Default for Masquerade {
    /// As flannel and kube-proxy do it.
    fn default() -> Self {
        Self { ports: Ports::FullyRandom, mark: 1 << 14 }
    }
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
