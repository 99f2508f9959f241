//! What prevents a migration.

use std::collections::{BTreeMap, BTreeSet};

use super::cluster::{ClusterView, Member};
use super::reachability::Pair;
use crate::model::config::Kind;
use crate::model::report::NodeReport;

/// A reason not to start, with the node or pair that it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Obstacle {
    pub(super) text: String,
    pub(super) forgivable: Forgivable,
}

/// Whether `--force` accepts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forgivable {
    /// The nodes that it concerns stay as they are: one that does not report, a pair in the tunnel.
    Yes,
    No,
}

/// What prevents that the cluster moves to `kind`, with these pairs.
pub(super) fn obstacles(view: &ClusterView, kind: Kind, pairs: &[Pair<'_>]) -> Vec<Obstacle> {
    let of_nodes = view.members.iter().flat_map(of_node);
    of_nodes.chain(failing(view, kind)).chain(pairs.iter().filter_map(cut)).collect()
}

/// Those of `nodes` that do not exist.
pub(super) fn unknown_nodes(view: &ClusterView, nodes: &[String]) -> Vec<Obstacle> {
    let known: BTreeSet<String> = view.members.iter().flat_map(Member::names).collect();
    let unknown = nodes.iter().filter(|node| !known.contains(*node));
    unknown.map(|node| Obstacle::fatal(format!("{node} is the public IP of no node"))).collect()
}

fn of_node(member: &Member) -> Vec<Obstacle> {
    let node = &member.name;
    let Some(report) = &member.report else {
        let text = format!("{node} sends no report: it runs flannel or an older tweedd, or none");
        return vec![Obstacle { text, forgivable: Forgivable::Yes }];
    };
    let invalid = report.invalid.iter().map(|why| format!("{node} cannot use the config: {why}"));
    let waits = report.pending.iter().map(|what| format!("{node} waits: {what}"));
    invalid.chain(waits).chain(strict(node, report)).map(Obstacle::fatal).collect()
}

fn strict(node: &str, report: &NodeReport) -> Option<String> {
    let links: Vec<String> = report.strict_filters.iter().map(ToString::to_string).collect();
    // Mixed, where it is on, has loosened all filters that tweedd may change.
    let is_strict = report.mixed && !links.is_empty();
    let links = links.join(" and ");
    is_strict
        .then(|| format!("{node} filters strictly on {links}, and its tweedd may not change that"))
}

/// The pairs on a link whose direct path, which they are to take on `kind`, carries no packets.
pub(super) fn failing(view: &ClusterView, kind: Kind) -> Vec<Obstacle> {
    if kind != Kind::HostGw {
        return Vec::new();
    }
    let subnets =
        view.members.iter().rev().flat_map(|member| {
            member.lease.subnets().map(move |subnet| (subnet.base(), &member.name))
        });
    let owners: BTreeMap<_, _> = subnets.collect();
    let failing = view.reporting().flat_map(|(from, report)| {
        let owners = &owners;
        report.failing.iter().map(move |(peer, why)| {
            let to = owners.get(peer).map_or_else(|| peer.to_string(), ToString::to_string);
            let text = format!("{} would stay in the tunnel to {to}: {why}", from.name);
            Obstacle { text, forgivable: Forgivable::Yes }
        })
    });
    failing.collect()
}

/// A pair that has a path and would lose it.
pub(super) fn cut(pair: &Pair<'_>) -> Option<Obstacle> {
    if pair.now.is_none() || pair.then.is_some() {
        return None;
    }
    let why = pair.reason.as_deref().unwrap_or_default();
    let text = format!("{} would no longer reach {}: {why}", pair.from, pair.to);
    let forgivable = if pair.both_report { Forgivable::No } else { Forgivable::Yes };
    Some(Obstacle { text, forgivable })
}

impl Obstacle {
    const fn fatal(text: String) -> Self {
        Self { text, forgivable: Forgivable::No }
    }
}
