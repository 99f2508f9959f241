//! What stands in the way of a migration.

use std::net::IpAddr;

use crate::model::config::Kind;
use crate::model::entry::LinkName;
use crate::model::path::Detour;

use super::outlook::{Mixing, Outlook, Reach, Situation};
use super::picture::{Member, Picture};

/// A reason not to start, with the node or pair that it is about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    #[error("{node} sends no report: it runs flannel or an older tweedd, or none")]
    Silent { node: String },
    #[error("{node} cannot use the config: {why}")]
    Invalid { node: String, why: String },
    #[error("{node} waits: {what}")]
    Waits { node: String, what: String },
    #[error("{node} filters strictly on {}, and its tweedd may not change that", listed(links))]
    Strict { node: String, links: Vec<LinkName> },
    #[error("{node} is the public IP of no node")]
    Stranger { node: String },
    #[error("{from} would stay in the tunnel to {to}: {why}")]
    Fails { from: String, to: String, why: Detour },
    #[error("{from} would no longer reach {to}: {why}")]
    Cut { from: String, to: String, why: String, forgivable: Forgivable },
}

/// Whether `--force` accepts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgivable {
    /// Who it concerns stays as it is: a node that does not report, a pair in the tunnel.
    Yes,
    No,
}

impl Obstacle {
    pub const fn forgivable(&self) -> Forgivable {
        match self {
            Self::Silent { .. } | Self::Fails { .. } => Forgivable::Yes,
            Self::Cut { forgivable, .. } => *forgivable,
            Self::Invalid { .. }
            | Self::Waits { .. }
            | Self::Strict { .. }
            | Self::Stranger { .. } => Forgivable::No,
        }
    }
}

/// What stands between the picture and a cluster on `kind`.
pub fn obstacles(picture: &Picture, kind: Kind) -> Vec<Obstacle> {
    let of_nodes = picture.members.iter().flat_map(of_node);
    let failing = failing(picture, kind);
    of_nodes
        .chain(failing)
        .chain(cuts(picture, Situation::Once { kind, mixing: Mixing::On }))
        .collect()
}

/// Those of `nodes` that do not exist.
pub(super) fn strangers(picture: &Picture, nodes: &[String]) -> Vec<Obstacle> {
    let known: Vec<String> = picture.members.iter().flat_map(Member::names).collect();
    let unknown = nodes.iter().filter(|node| !known.contains(node));
    unknown.map(|node| Obstacle::Stranger { node: node.clone() }).collect()
}

fn of_node(member: &Member) -> Vec<Obstacle> {
    let node = || member.name();
    let Some(report) = &member.report else { return vec![Obstacle::Silent { node: node() }] };
    let invalid = report.invalid.clone().map(|why| Obstacle::Invalid { node: node(), why });
    let waits = report.pending.clone().map(|what| Obstacle::Waits { node: node(), what });
    // Without Mixed nothing was loosened yet.
    let links =
        Some(report.strict_filters.clone()).filter(|links| report.mixed && !links.is_empty());
    let strict = links.map(|links| Obstacle::Strict { node: node(), links });
    invalid.into_iter().chain(waits).chain(strict).collect()
}

/// The pairs on a link whose direct path, which they are to take on `kind`, carries no packets.
pub(super) fn failing(picture: &Picture, kind: Kind) -> Vec<Obstacle> {
    let members = picture.members.iter().filter(|_| kind == Kind::HostGw);
    let failing = members.filter_map(|from| Some((from, &from.report.as_ref()?.failing)));
    let pairs = failing.flat_map(|(from, failing)| {
        let to = |peer: &IpAddr| {
            let owns = |to: &&Member| to.lease.subnets().any(|subnet| subnet.base() == *peer);
            picture.members.iter().find(owns).map_or_else(|| peer.to_string(), Member::name)
        };
        let pair = move |(peer, why): (&IpAddr, &Detour)| Obstacle::Fails {
            from: from.name(),
            to: to(peer),
            why: *why,
        };
        failing.iter().map(pair)
    });
    pairs.collect()
}

/// The pairs that have a path and would lose it.
pub(super) fn cuts(picture: &Picture, then: Situation) -> Vec<Obstacle> {
    let now = Outlook::new(picture, Situation::Now);
    let then = Outlook::new(picture, then);
    let mut cuts = Vec::new();
    for ((from, now), (_, then)) in now.views().zip(then.views()) {
        for then in then.iter().filter(|reach| reach.path.is_none()) {
            let is_same = |now: &&Reach| (now.to, now.family) == (then.to, then.family);
            let had_path = now.iter().find(is_same).is_some_and(|now| now.path.is_some());
            let Some(to) = picture.members.get(then.to).filter(|_| had_path) else { continue };
            cuts.push(cut(from, to, then.reason.clone().unwrap_or_default()));
        }
    }
    cuts
}

fn cut(from: &Member, to: &Member, why: String) -> Obstacle {
    let both_report = from.report.is_some() && to.report.is_some();
    let forgivable = if both_report { Forgivable::No } else { Forgivable::Yes };
    Obstacle::Cut { from: from.name(), to: to.name(), why, forgivable }
}

fn listed(links: &[LinkName]) -> String {
    links.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}
