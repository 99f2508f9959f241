//! What is done with the packets of pods beside routing them: the rules, as data.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::NetworkConfig;
use crate::guard::{Checksums, Guard};
use crate::kernel::state::{Hook, Match, Rule, Table, TableName, Verdict};
use crate::lease::Lease;
use crate::prefix::{Family, Prefix};

pub use crate::kernel::state::Ports;

/// What the operator's flags ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// None if pods are known by their own addresses everywhere.
    pub masquerade: Option<Masquerade>,
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
    pub forward: Forward,
}

/// What becomes of packets that this node forwards from or to pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forward {
    Accept,
    /// That is for others to say.
    Leave,
}

impl Default for Masquerade {
    /// As flannel and kube-proxy do it.
    fn default() -> Self {
        Self { ports: Ports::FullyRandom, mark: 1 << 14, forward: Forward::Accept }
    }
}

/// The tables of a node that holds the lease `own`, one per enabled family.
pub fn tables(policy: &Policy, config: &NetworkConfig, own: &Lease) -> Vec<Table> {
    let Some(masquerade) = &policy.masquerade else { return Vec::new() };
    let subnet = |network: Prefix| Some((network, own.endpoint(network.family())?.subnet));
    let families = config.networks().filter_map(subnet);
    families.map(|(network, subnet)| table(masquerade, config, network, subnet)).collect()
}

fn table(
    masquerade: &Masquerade,
    config: &NetworkConfig,
    network: Prefix,
    subnet: Prefix,
) -> Table {
    let translated = translated(masquerade, network, subnet, &config.non_masquerade);
    let mut chains = BTreeMap::from([(Hook::SourceNat, translated)]);
    if masquerade.forward == Forward::Accept {
        chains.insert(Hook::Forward, accepted(network));
    }
    let name = table_name(network.family(), config.backend.tunnel.vni);
    Table { name, chains, foreign: 0 }
}

/// The tables that a node whose tunnel has this VNI may have, now or from an earlier life. Daemons
/// that share a host have different ones.
pub fn table_names(vni: u32) -> [TableName; 2] {
    Family::ALL.map(|family| table_name(family, vni))
}

fn table_name(family: Family, vni: u32) -> TableName {
    TableName { family, name: format!("tweed.{vni}") }
}

/// Which sources become those of this node: the first rule that fits decides.
fn translated(
    masquerade: &Masquerade,
    network: Prefix,
    subnet: Prefix,
    spared: &[Prefix],
) -> Vec<Rule> {
    use Match::{Is, IsNot};
    let family = network.family();
    let by_us = Verdict::Masquerade(masquerade.ports);
    let first = [
        Rule { marked: Some(masquerade.mark), ..Rule::of_all(Verdict::Return) },
        Rule::between(Is(subnet), Is(network), Verdict::Return),
        Rule::between(Is(network), Is(subnet), Verdict::Return),
        // Pods of this node see who speaks to them.
        Rule::between(IsNot(network), Is(subnet), Verdict::Return),
    ];
    let spared = spared.iter().filter(|range| range.family() == family);
    let spared = spared.map(|range| Rule::between(Is(network), Is(*range), Verdict::Return));
    let last = [
        Rule::between(Is(network), IsNot(Prefix::multicast(family)), by_us),
        // The answers of pods elsewhere come back by this node, which knows whom they are for.
        Rule::between(IsNot(network), Is(network), by_us),
    ];
    first.into_iter().chain(spared).chain(last).collect()
}

fn accepted(network: Prefix) -> Vec<Rule> {
    let accept = Rule::of_all(Verdict::Accept);
    let source = Rule { source: Some(Match::Is(network)), ..accept.clone() };
    vec![source, Rule { destination: Some(Match::Is(network)), ..accept }]
}
