//! nftables rules that protect the tunnel: only peers may send into it, no pod may forge it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::model::config::Tunnel;
use crate::model::entry::{
    Hook, LinkName, Match, Renewal, Rule, RuleCondition, Table, TableName, Verdict,
};
use crate::model::policy::{Conntrack, Guard, Pods, UnknownSources};
use crate::model::prefix::{Family, Prefix};

/// The inputs of the rules of one address family.
#[derive(Clone, Copy, Debug)]
pub struct Guarded<'a> {
    pub tunnel: &'a Tunnel,
    pub device: &'a LinkName,
    /// The link below the tunnel.
    pub underlay: &'a LinkName,
    /// The UDP port of path probes; none if paths are not probed.
    pub probe_port: Option<u16>,
    /// The addresses of this node that peers send to.
    pub ends: &'a [IpAddr],
    pub network: Prefix,
}

pub fn table(guard: Guard, guarded: Guarded<'_>) -> Table {
    let mut chains = BTreeMap::new();
    if guard.conntrack == Conntrack::Untracked {
        chains.insert(Hook::RawPrerouting, vec![untracked(guarded, RuleCondition::FromPeer)]);
        chains.insert(Hook::RawOutput, vec![untracked(guarded, RuleCondition::ToPeer)]);
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

fn table_name(family: Family, vni: u32) -> TableName {
    TableName { family, name: format!("tweed-tunnel.{vni}") }
}

/// Untracks only packets to or from a peer: a packet with the same port and VNI but another address
/// may belong to another program.
fn untracked(guarded: Guarded<'_>, end: fn(Family) -> RuleCondition) -> Rule {
    let Guarded { tunnel, network, .. } = guarded;
    let also =
        [RuleCondition::UdpTo(tunnel.port), RuleCondition::Vni(tunnel.vni), end(network.family())];
    Rule::of(also, Verdict::Untrack)
}

/// Input rules: accept tunnel packets of peers, drop all others to the tunnel port.
///
/// Peers send only to the addresses in `ends`; a packet to any other address of the node is
/// dropped. A packet without a complete VXLAN header is never accepted as one of another tunnel: it
/// may be a short first fragment.
fn input_rules(guarded: Guarded<'_>) -> Vec<Rule> {
    let to = |end: &IpAddr| Some(Match::Is(Prefix::host(*end)));
    let to_an_end = |rule: Rule| {
        guarded.ends.iter().map(move |end| Rule { destination: to(end), ..rule.clone() })
    };
    let mut rules = of_others(guarded).to_vec();
    rules.extend(of_peers(guarded).into_iter().flat_map(to_an_end));
    rules.push(Rule::of([RuleCondition::UdpTo(guarded.tunnel.port)], Verdict::Drop));
    rules.extend(guarded.probe_port.into_iter().flat_map(|port| probe_rules(guarded, port)));
    rules
}

/// Probes come from pod addresses of peers, over the underlay or through the tunnel. Others, such
/// as probes from pods of this node, are dropped before the daemon has to read them.
fn probe_rules(guarded: Guarded<'_>, port: u16) -> [Rule; 3] {
    let to_port = || RuleCondition::UdpTo(port);
    let from_pods_by = |link: &LinkName| Rule {
        source: Some(Match::Is(guarded.network)),
        ..Rule::of([to_port(), RuleCondition::FromLink(link.clone())], Verdict::Accept)
    };
    [
        from_pods_by(guarded.underlay),
        from_pods_by(guarded.device),
        Rule::of([to_port()], Verdict::Drop),
    ]
}

/// Forward rules. This node may route for other nodes, and pods may run VXLAN tunnels between each
/// other; both keep working. A pod that forges the address of a node sends from a link that has no
/// route to that node. Pod packets may also match that for a moment while a path changes.
fn forward_rules(guarded: Guarded<'_>) -> Vec<Rule> {
    let Guarded { tunnel, network, .. } = guarded;
    let to_port = || RuleCondition::UdpTo(tunnel.port);
    let to_peer = [to_port(), RuleCondition::ToPeer(network.family())];
    let of_pods = Rule {
        source: Some(Match::Is(network)),
        destination: Some(Match::IsNot(network)),
        ..Rule::of([to_port(), RuleCondition::Vni(tunnel.vni)], Verdict::Drop)
    };
    let forged = [to_port(), RuleCondition::Vni(tunnel.vni), RuleCondition::FromUnroutedLink];
    let forged = Rule { source: Some(Match::IsNot(network)), ..Rule::of(forged, Verdict::Drop) };
    let mut rules = of_others(guarded).to_vec();
    rules.extend(of_peers(guarded));
    rules.extend([Rule::of(to_peer, Verdict::Drop), of_pods, forged]);
    rules
}

/// Accepts packets of other tunnels, and all packets once no daemon renews the set of peers:
/// without a daemon, a node that joins would never be added to it.
fn of_others(Guarded { tunnel, .. }: Guarded<'_>) -> [Rule; 2] {
    let accept = |what| Rule::of([RuleCondition::UdpTo(tunnel.port), what], Verdict::Accept);
    [accept(RuleCondition::Unrenewed), accept(RuleCondition::OtherVni(tunnel.vni))]
}

/// Accepts tunnel packets from a peer that arrive on the underlay, or on any link that has the
/// route back to it. Pods can forge a source address, but not the link that they send from.
fn of_peers(guarded: Guarded<'_>) -> [Rule; 2] {
    let Guarded { tunnel, underlay, network, .. } = guarded;
    let to_port = || RuleCondition::UdpTo(tunnel.port);
    let from_peer = || RuleCondition::FromPeer(network.family());
    [
        Rule::of(
            [to_port(), RuleCondition::FromLink(underlay.clone()), from_peer()],
            Verdict::Accept,
        ),
        Rule::of([to_port(), from_peer(), RuleCondition::FromRoutedLink], Verdict::Accept),
    ]
}
