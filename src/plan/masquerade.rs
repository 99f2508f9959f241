//! Rules that masquerade and forward packets of pods, and the choice between nftables and iptables.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::config::NetworkConfig;
use crate::model::entry::Match::{Is, IsNot};
use crate::model::entry::{
    Base, Chain, ChainName, Condition, Entry, Hook, Rule, Table, TableName, Verdict,
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
    let firewall = choice(policy, config, host).map(|choice| choice.firewall);
    let of_family = |network: Prefix| {
        let subnet = own.endpoint(network.family())?.subnet;
        Some(FamilyRules { policy, config, network, subnet }.entries(firewall, host))
    };
    config.networks().filter_map(of_family).flatten().collect()
}

/// The rules of one address family: of the pod network, and of the subnet of this node.
struct FamilyRules<'a> {
    policy: &'a Policy,
    config: &'a NetworkConfig,
    network: Prefix,
    subnet: Prefix,
}

impl FamilyRules<'_> {
    fn entries(&self, firewall: Option<Firewall>, host: &Firewalls) -> Vec<Entry> {
        let table = firewall.and_then(|firewall| self.table(firewall, host));
        let chains = (firewall == Some(Firewall::Iptables)).then(|| self.chains(host));
        // No nftables table can override the drop of a `FORWARD` chain of iptables; only a rule of
        // the same kind of iptables can.
        let dropping = host.dropping.iter().filter(|name| name.family == self.network.family());
        let forward = dropping.filter_map(|name| Some(Chain::of(*name, self.forward()?)));
        let chains = chains.into_iter().flatten().chain(forward).map(Entry::Chain);
        table.map(Entry::Table).into_iter().chain(chains).collect()
    }

    /// The nftables table. With iptables, it has only the chain of fixed sources: as an nftables
    /// chain it runs before those of other programs, whichever starts first.
    fn table(&self, firewall: Firewall, host: &Firewalls) -> Option<Table> {
        let name = table_name(firewall, self.network.family(), self.config.backend.tunnel.vni);
        let fixed = self.fixed().filter(|_| host.nftables);
        let nat = self.nat().filter(|_| firewall == Firewall::Nftables);
        // Another table may still drop these packets, so these rules alone are no reason for a
        // table.
        let forward = self.forward().filter(|_| nat.is_some());
        let chains =
            [(Hook::EarlySourceNat, fixed), (Hook::SourceNat, nat), (Hook::Forward, forward)];
        let chains = chains.into_iter().filter_map(|(hook, rules)| Some((hook, rules?)));
        let chains: BTreeMap<_, _> = chains.collect();
        (!chains.is_empty()).then_some(Table { name: name.into(), chains, foreign: 0 })
    }

    /// The iptables chains: flannel's chains, rule by rule. If the kernel has no nftables, a chain
    /// of tweed runs before them.
    fn chains(&self, host: &Firewalls) -> Vec<Chain> {
        let chains = [
            (Base::EarlyPostrouting, self.fixed().filter(|_| !host.nftables)),
            (Base::Postrouting, self.nat()),
            (Base::Forward, self.forward()),
        ];
        let (iptables, family) = (host.iptables, self.network.family());
        let name = |base| ChainName { iptables, family, base };
        let chain = |(base, rules): (_, Option<_>)| Some(Chain::of(name(base), rules?));
        chains.into_iter().filter_map(chain).collect()
    }

    /// Rules that give packets to pods of other nodes a fixed source in our subnet (SNAT). They run
    /// before the masquerade rules: the kernel ends a masqueraded connection once its packets leave by
    /// another link, as they do when the path to a node changes. None if not needed.
    ///
    /// The source is the gateway address of our subnet: peers send to it by the same path as to our
    /// pods. They do not for the base address of the subnet: to that they keep a route through the
    /// tunnel. No link needs to have the address, because the kernel translates answers before it
    /// routes them.
    fn fixed(&self) -> Option<Vec<Rule>> {
        let Self { policy, config, network, subnet } = *self;
        let Masquerade { ports, mark } = policy.marked;
        let unmarked = Condition::Marked(IsNot, mark);
        let exempt = match policy.masquerade {
            // Pod-to-pod packets keep their source.
            Some(_) => vec![unmarked, Condition::source(Is, network)],
            None if config.mixed => vec![unmarked],
            None => return None,
        };
        Some(vec![
            Rule::of([Condition::destination(IsNot, network)], Verdict::Return),
            Rule::of([Condition::destination(Is, subnet)], Verdict::Return),
            Rule::of(exempt, Verdict::Return),
            // Encapsulation keeps the mark: the outer packet would be masqueraded.
            Rule::of([], Verdict::Unmark(mark)),
            Rule::of([], Verdict::SourceNat { to: subnet.gateway(), ports }),
        ])
    }

    /// Masquerade rules; the first match decides. None if nothing is masqueraded.
    fn nat(&self) -> Option<Vec<Rule>> {
        let Self { policy, config, network, subnet } = *self;
        let masquerade = policy.masquerade.as_ref()?;
        let family = network.family();
        let (from, to) = (Condition::source::<Prefix>, Condition::destination::<Prefix>);
        let first = [
            Rule::of([Condition::Marked(Is, masquerade.mark)], Verdict::Return),
            Rule::of([from(Is, subnet), to(Is, network)], Verdict::Return),
            Rule::of([from(Is, network), to(Is, subnet)], Verdict::Return),
            // Pods of this node see the original source.
            Rule::of([from(IsNot, network), to(Is, subnet)], Verdict::Return),
        ];
        let exempt = config.non_masquerade.iter().filter(|range| range.family() == family);
        let exempt = exempt.map(|range| {
            // A rule with a prefix of length 0 reads back as a rule without one.
            let to_range = (range.prefix_len() > 0).then(|| to(Is, *range));
            Rule::of([from(Is, network)].into_iter().chain(to_range), Verdict::Return)
        });
        let source_nat = || Verdict::Masquerade(masquerade.ports);
        let last = [
            Rule::of([from(Is, network), to(IsNot, family.multicast().into())], source_nat()),
            // Answers of pods on other nodes have to return through this node, which translates them
            // back.
            Rule::of([from(IsNot, network), to(Is, network)], source_nat()),
        ];
        Some(first.into_iter().chain(exempt).chain(last).collect())
    }

    /// Rules that accept packets from and to pods; none if the policy leaves that to other programs.
    fn forward(&self) -> Option<Vec<Rule>> {
        let network = self.network;
        let ends = [Condition::source(Is, network), Condition::destination(Is, network)];
        let accept = |end| Rule::of([end], Verdict::Accept);
        (self.policy.forward == Forward::Accept).then(|| ends.map(accept).to_vec())
    }
}

/// The names of the tables that a node with this VNI may have, including those of an earlier run
/// and of flanneld. Daemons on the same host have different VNIs, so different tables.
pub fn table_names(vni: u32) -> BTreeSet<TableName> {
    let of =
        |firewall| Family::ALL.into_iter().map(move |family| table_name(firewall, family, vni));
    of(Firewall::Nftables).chain(of(Firewall::Iptables)).chain(flannels_tables()).collect()
}

pub fn flannels_tables() -> impl Iterator<Item = TableName> {
    let name = |family: Family| match family {
        Family::V4 => "flannel-ipv4",
        Family::V6 => "flannel-ipv6",
    };
    Family::ALL.into_iter().map(move |family| TableName { family, name: name(family).to_owned() })
}

/// Each firewall has its own name, so that new rules exist before the old ones are removed.
fn table_name(firewall: Firewall, family: Family, vni: u32) -> TableName {
    let name = match firewall {
        Firewall::Nftables => format!("tweed.{vni}"),
        Firewall::Iptables => format!("tweed-source.{vni}"),
    };
    TableName { family, name }
}
