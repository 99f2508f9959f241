//! Who may send into the tunnel, and what else keeps it clean: the rules, as data.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::model::config::Tunnel;
use crate::model::entry::{
    Condition, Hook, LinkName, Match, Renewal, Rule, Table, TableName, Verdict,
};
use crate::model::policy::{Connections, Guard, Pods, Strangers};
use crate::model::prefix::{Family, Prefix};

/// What the rules of one family are about.
#[derive(Clone, Copy, Debug)]
pub struct Guarded<'a> {
    pub tunnel: &'a Tunnel,
    /// Its device.
    pub device: &'a LinkName,
    /// The link below the tunnel.
    pub underlay: &'a LinkName,
    /// The UDP port of path probes, if there are any.
    pub probe_port: Option<u16>,
    /// The addresses of this node that peers send to.
    pub ends: &'a [IpAddr],
    /// All pods' addresses.
    pub network: Prefix,
}

/// The table that guards a tunnel.
pub fn table(guard: Guard, guarded: Guarded<'_>) -> Table {
    let mut chains = BTreeMap::new();
    if guard.connections == Connections::Untracked {
        chains.insert(Hook::RawPrerouting, vec![untracked(guarded, Condition::FromPeer)]);
        chains.insert(Hook::RawOutput, vec![untracked(guarded, Condition::ToPeer)]);
    }
    if guard.strangers == Strangers::Drop {
        chains.insert(Hook::Input, let_in(guarded));
    }
    if guard.pods == Pods::Drop {
        chains.insert(Hook::Forward, passed_on(guarded));
    }
    let name = table_name(guarded.network.family(), guarded.tunnel.vni);
    Table { name: name.into(), chains, foreign: 0 }
}

/// What has to be kept up for `table` to drop packets; none if it drops none.
pub fn renewal(table: &Table) -> Option<Renewal> {
    table.is_renewed().then(|| Renewal::of(table.name.clone()))
}

/// The tables that a node whose tunnel has this VNI may have, now or from an earlier life.
pub fn table_names(vni: u32) -> [TableName; 2] {
    Family::ALL.map(|family| table_name(family, vni))
}

fn table_name(family: Family, vni: u32) -> TableName {
    TableName { family, name: format!("tweed-tunnel.{vni}") }
}

/// What looks like a packet of the tunnel and goes elsewhere is somebody else's.
fn untracked(guarded: Guarded<'_>, end: fn(Family) -> Condition) -> Rule {
    let Guarded { tunnel, network, .. } = guarded;
    let also = [Condition::UdpTo(tunnel.port), Condition::Vni(tunnel.vni), end(network.family())];
    Rule::of(also, Verdict::Untrack)
}

/// What comes to this node is opened behind this chain, whatever address of the node it is for:
/// peers send to its ends alone. A packet without a whole VXLAN header belongs to no other tunnel: the
/// first of its fragments may be so short.
fn let_in(guarded: Guarded<'_>) -> Vec<Rule> {
    let to = |end: &IpAddr| Some(Match::Is(Prefix::host(*end)));
    let to_an_end = |rule: Rule| {
        guarded.ends.iter().map(move |end| Rule { destination: to(end), ..rule.clone() })
    };
    let mut rules = of_others(guarded).to_vec();
    rules.extend(of_peers(guarded).into_iter().flat_map(to_an_end));
    rules.push(Rule::of([Condition::UdpTo(guarded.tunnel.port)], Verdict::Drop));
    rules.extend(guarded.probe_port.into_iter().flat_map(|port| of_probes(guarded, port)));
    rules
}

/// Probes come from the subnets of peers, by the underlay or through the tunnel. What comes from
/// elsewhere, such as the pods of this node, is dropped before the daemon has to read it.
fn of_probes(guarded: Guarded<'_>, port: u16) -> [Rule; 3] {
    let to_port = || Condition::UdpTo(port);
    let from_pods_by = |link: &LinkName| Rule {
        source: Some(Match::Is(guarded.network)),
        ..Rule::of([to_port(), Condition::CameBy(link.clone())], Verdict::Accept)
    };
    [
        from_pods_by(guarded.underlay),
        from_pods_by(guarded.device),
        Rule::of([to_port()], Verdict::Drop),
    ]
}

/// Other nodes may stand behind this one, and pods may have tunnels of their own among each other.
/// A pod that claims the address of a node sends by a link that does not lead there; between two
/// changes of a path, packets of pods may do so too.
fn passed_on(guarded: Guarded<'_>) -> Vec<Rule> {
    let Guarded { tunnel, network, .. } = guarded;
    let to_port = || Condition::UdpTo(tunnel.port);
    let to_peer = [to_port(), Condition::ToPeer(network.family())];
    let of_pods = Rule {
        source: Some(Match::Is(network)),
        destination: Some(Match::IsNot(network)),
        ..Rule::of([to_port(), Condition::Vni(tunnel.vni)], Verdict::Drop)
    };
    let forged = [to_port(), Condition::Vni(tunnel.vni), Condition::CameUnrouted];
    let forged = Rule { source: Some(Match::IsNot(network)), ..Rule::of(forged, Verdict::Drop) };
    let mut rules = of_others(guarded).to_vec();
    rules.extend(of_peers(guarded));
    rules.extend([Rule::of(to_peer, Verdict::Drop), of_pods, forged]);
    rules
}

/// Accepts everything once no daemon keeps the set of peers: one that joins then would be kept out.
/// And packets of other tunnels.
fn of_others(Guarded { tunnel, .. }: Guarded<'_>) -> [Rule; 2] {
    let accept = |what| Rule::of([Condition::UdpTo(tunnel.port), what], Verdict::Accept);
    [accept(Condition::Unrenewed), accept(Condition::OtherVni(tunnel.vni))]
}

/// Accepts packets of the tunnel that come from a peer: by the underlay, or by whatever link leads
/// back to it. Pods can claim any source, but they come by links of theirs.
fn of_peers(guarded: Guarded<'_>) -> [Rule; 2] {
    let Guarded { tunnel, underlay, network, .. } = guarded;
    let to_port = || Condition::UdpTo(tunnel.port);
    let from_peer = || Condition::FromPeer(network.family());
    [
        Rule::of([to_port(), Condition::CameBy(underlay.clone()), from_peer()], Verdict::Accept),
        Rule::of([to_port(), from_peer(), Condition::CameAsRouted], Verdict::Accept),
    ]
}
