//! nftables rules that protect the tunnel: only peers may send into it, no pod may forge it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::model::config::Tunnel;
use crate::model::entry::Match::{Is, IsNot};
use crate::model::entry::{
    Condition, Hook, LinkName, PEERS, RENEWED, Renewal, Rule, Side, Table, TableName, Verdict,
};
use crate::model::policy::{Conntrack, Guard, Pods, UnknownSources};
use crate::model::prefix::{Family, Prefix};

/// The inputs of the rules of one address family.
#[derive(Clone, Copy, Debug)]
pub struct Guarded<'a> {
    pub tunnel: &'a Tunnel,
    pub device: &'a LinkName,
    /// The link below the tunnel, and others of its segment.
    pub underlays: &'a [LinkName],
    /// The UDP port of path probes; none if paths are not probed.
    pub probe_port: Option<u16>,
    /// The addresses of this node that peers send to.
    pub ends: &'a [IpAddr],
    pub network: Prefix,
    /// Whether the kernel looks up the route back to a source only before routing.
    pub looks_back_early: bool,
}

pub fn table(guard: Guard, guarded: Guarded<'_>) -> Table {
    let mut chains = BTreeMap::new();
    let mut prerouting = Vec::new();
    if guard.conntrack == Conntrack::Untracked {
        prerouting.push(untracked(guarded, Side::Source));
        chains.insert(Hook::RawOutput, vec![untracked(guarded, Side::Destination)]);
    }
    let drops = guard.unknown_sources == UnknownSources::Drop || guard.pods == Pods::Drop;
    if drops && guarded.looks_back_early {
        prerouting.extend(prerouting_rules(guarded));
    }
    if !prerouting.is_empty() {
        chains.insert(Hook::RawPrerouting, prerouting);
    }
    if guard.unknown_sources == UnknownSources::Drop {
        chains.insert(Hook::Input, input_rules(guarded));
    }
    if guard.pods == Pods::Drop {
        chains.insert(Hook::Forward, forward_rules(guarded));
    }
    let name = table_name(guarded.network.family(), guarded.tunnel.vni);
    Table { name: name.into(), chains, foreign: 0 }
}

/// The timer that has to be renewed for `table` to drop packets; none if the table drops none.
pub fn renewal(table: &Table) -> Option<Renewal> {
    table.is_renewed().then(|| Renewal::of(table.name.clone()))
}

/// The names of the tables that a node with this VNI may have, including those of an earlier run.
pub fn table_names(vni: u32) -> [TableName; 2] {
    Family::ALL.map(|family| table_name(family, vni))
}

const NAME: &str = "tweed-tunnel.";

fn table_name(family: Family, vni: u32) -> TableName {
    TableName { family, name: format!("{NAME}{vni}") }
}

/// Whether the table protects a tunnel.
pub fn is_guard(table: &TableName) -> bool {
    table.name.starts_with(NAME)
}

/// Untracks only packets to or from a peer: a packet with the same port and VNI but another address
/// may belong to another program.
fn untracked(guarded: Guarded<'_>, side: Side) -> Rule {
    let Guarded { tunnel, network, .. } = guarded;
    let (to_port, vni) = (Condition::UdpTo(tunnel.port), Condition::Vni(Is, tunnel.vni));
    Rule::of([to_port, vni, is_peer(side, network)], Verdict::Untrack)
}

/// The address of `side` is in the set of peers.
fn is_peer(side: Side, network: Prefix) -> Condition {
    Condition::AddressIn(side, Is, PEERS.to_owned(), network.family())
}

/// Rules before routing, for a kernel that looks up the route back only there: drop packets that forge the
/// address of a peer. The later chains then accept all packets from addresses of peers.
fn prerouting_rules(guarded: Guarded<'_>) -> Vec<Rule> {
    let from_peer = is_peer(Side::Source, guarded.network);
    let forged = [Condition::UdpTo(guarded.tunnel.port), from_peer, Condition::ReversePath(IsNot)];
    let mut rules = of_others(guarded).to_vec();
    rules.extend(by_underlays(guarded));
    rules.push(Rule::of(forged, Verdict::Drop));
    rules
}

/// Input rules: accept tunnel packets of peers, drop all others to the tunnel port.
///
/// Peers send only to the addresses in `ends`; a packet to any other address of the node is
/// dropped. A packet without a complete VXLAN header is never accepted as one of another tunnel: it
/// may be a short first fragment.
fn input_rules(guarded: Guarded<'_>) -> Vec<Rule> {
    let to_an_end = |rule: Rule| {
        guarded.ends.iter().map(move |end| {
            let mut rule = rule.clone();
            rule.conditions.push(Condition::destination(Is, *end));
            rule
        })
    };
    let mut rules = of_others(guarded).to_vec();
    rules.extend(of_peers(guarded).into_iter().flat_map(to_an_end));
    rules.push(Rule::of([Condition::UdpTo(guarded.tunnel.port)], Verdict::Drop));
    rules.extend(guarded.probe_port.into_iter().flat_map(|port| probe_rules(guarded, port)));
    rules
}

/// Probes come from pod addresses of peers, over the underlay or through the tunnel. Others, such
/// as probes from pods of this node, are dropped before the daemon has to read them.
fn probe_rules(guarded: Guarded<'_>, port: u16) -> Vec<Rule> {
    let to_port = || Condition::UdpTo(port);
    let from_pods = || Condition::source(Is, guarded.network);
    let from_pods_by = |link| Rule::of([to_port(), arrived_on(link), from_pods()], Verdict::Accept);
    let mut rules: Vec<Rule> =
        guarded.underlays.iter().chain([guarded.device]).map(from_pods_by).collect();
    rules.push(Rule::of([to_port()], Verdict::Drop));
    rules
}

/// Forward rules. This node may route for other nodes, and pods may run VXLAN tunnels between each
/// other; both keep working. A pod that forges the address of a node sends from a link that has no
/// route to that node. Pod packets may also match that for a moment while a path changes; and so do
/// frames that virtual machines exchange by a bridge of this host, but these stay on their bridge. A kernel
/// that looks up the route back only before routing cannot distinguish these: there, a pod can still forge
/// an address that is no peer's, towards an address that is no peer's.
fn forward_rules(guarded: Guarded<'_>) -> Vec<Rule> {
    let Guarded { tunnel, underlays, network, .. } = guarded;
    let (to_port, vni) = (|| Condition::UdpTo(tunnel.port), || Condition::Vni(Is, tunnel.vni));
    let source = |test| Condition::source(test, network);
    let to_peer = [to_port(), is_peer(Side::Destination, network)];
    let of_pods = [to_port(), vni(), source(Is), Condition::destination(IsNot, network)];
    let bridged =
        underlays.iter().map(|link| Rule::of([to_port(), arrived_on(link)], Verdict::Accept));
    let forged = underlays.iter().map(|link| {
        let to_underlay = Condition::OutputInterface(link.to_string());
        let forged = [to_port(), vni(), to_underlay, Condition::ReversePath(IsNot), source(IsNot)];
        Rule::of(forged, Verdict::Drop)
    });
    let mut rules = of_others(guarded).to_vec();
    rules.extend(of_peers(guarded));
    rules.extend([Rule::of(to_peer, Verdict::Drop), Rule::of(of_pods, Verdict::Drop)]);
    rules.extend(bridged);
    rules.extend(forged.filter(|_| !guarded.looks_back_early));
    rules
}

/// Accepts packets of other tunnels, and all packets once no daemon renews the set of peers:
/// without a daemon, a node that joins would never be added to it.
fn of_others(Guarded { tunnel, .. }: Guarded<'_>) -> [Rule; 2] {
    let accept = |what| Rule::of([Condition::UdpTo(tunnel.port), what], Verdict::Accept);
    let unrenewed = Condition::ProtocolIn(IsNot, RENEWED.to_owned());
    [accept(unrenewed), accept(Condition::Vni(IsNot, tunnel.vni))]
}

/// Accepts tunnel packets from a peer that arrive on an underlay, or on any link that has the
/// route back to it. Pods can forge a source address, but not the link that they send from.
fn of_peers(guarded: Guarded<'_>) -> Vec<Rule> {
    let to_port = Condition::UdpTo(guarded.tunnel.port);
    let from_peer = is_peer(Side::Source, guarded.network);
    if guarded.looks_back_early {
        return vec![Rule::of([to_port, from_peer], Verdict::Accept)];
    }
    let back = Rule::of([to_port, from_peer, Condition::ReversePath(Is)], Verdict::Accept);
    by_underlays(guarded).chain([back]).collect()
}

fn by_underlays(guarded: Guarded<'_>) -> impl Iterator<Item = Rule> {
    guarded.underlays.iter().map(move |link| {
        let from_peer = is_peer(Side::Source, guarded.network);
        let conditions = [Condition::UdpTo(guarded.tunnel.port), arrived_on(link), from_peer];
        Rule::of(conditions, Verdict::Accept)
    })
}

fn arrived_on(link: &LinkName) -> Condition {
    Condition::InputInterface(link.to_string())
}
