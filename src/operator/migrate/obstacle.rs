//! What prevents a migration, or one of its stages.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::cluster::{ClusterView, Member};
use super::options::StageOptions;
use super::outcome::{Outcome, refused};
use super::pairs::Pair;
use crate::model::config::BackendType;
use crate::model::report::NodeReport;
use crate::operator::layout::counted;

/// The reasons not to start or continue, with the nodes or pairs concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Obstacles {
    /// Those that `--force` does not accept.
    pub(super) fatal: FirstObstacles,
    /// Those that `--force` accepts: the nodes concerned keep their state. One is dead, unreachable or
    /// sends no report, or a pair keeps the tunnel.
    pub(super) forgivable: FirstObstacles,
}

/// The first obstacles of a kind, and the number of all. Each pair of a large cluster may be one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FirstObstacles {
    pub(super) first: Vec<String>,
    pub(super) total: usize,
}

/// The number of obstacles of a kind that are listed.
const MOST: usize = 1000;

impl FirstObstacles {
    fn add(&mut self, text: impl FnOnce() -> String) {
        if self.first.len() < MOST {
            self.first.push(text());
        }
        self.total += 1;
    }
}

impl Obstacles {
    /// The nodes that their peers do not reach, and those that send no report.
    pub(super) fn of_absent(view: &ClusterView) -> Self {
        let mut obstacles = Self::default();
        if view.reporting().next().is_none() {
            // Neither what they do nor how many of them a percentage means is known.
            obstacles.fatal.add(|| "no node sends a report that can be read".to_owned());
        }
        for Member { name, outage, report, .. } in &view.members {
            if let Some(outage) = outage {
                obstacles.forgivable.add(|| format!("{name} is {outage}"));
            } else if report.is_none() {
                obstacles.forgivable.add(|| {
                    format!(
                        "{name} sends no report that can be read: it runs flannel, another tweedd, \
                         or no daemon"
                    )
                });
            }
        }
        obstacles
    }

    /// Those of the nodes themselves.
    pub(super) fn of_nodes(view: &ClusterView) -> Self {
        let mut obstacles = Self::of_absent(view);
        for member in view.members.iter().filter(|member| member.outage.is_none()) {
            let texts = member.report.iter().flat_map(|report| of_report(member, report));
            texts.for_each(|text| obstacles.fatal.add(|| text));
        }
        obstacles
    }

    /// The pairs on one link that would change to a direct path on which probes fail, because one of
    /// the two nodes is among those that are `added` to the ones on the backend `to`. Not those of
    /// an outage.
    pub(super) fn add_failing(
        &mut self,
        view: &ClusterView,
        to: BackendType,
        added: &BTreeSet<usize>,
    ) {
        if to != BackendType::HostGw {
            return;
        }
        // Of two leases with one first address, the earlier one counts.
        let owners: BTreeMap<IpAddr, usize> = view.subnets().rev().collect();
        for (from, member) in view.members.iter().enumerate() {
            for (peer, why) in member.report.iter().flat_map(|report| &report.failing) {
                let owner = owners.get(peer);
                if !added.contains(&from) && !owner.is_some_and(|to| added.contains(to)) {
                    continue;
                }
                let to = owner.and_then(|to| view.members.get(*to));
                if [Some(member), to].into_iter().flatten().any(|it| it.outage.is_some()) {
                    continue;
                }
                self.forgivable.add(|| {
                    let to = to.map_or_else(|| peer.to_string(), |to| to.name.clone());
                    format!("{} would stay in the tunnel to {to}: {why}", member.name)
                });
            }
        }
    }

    /// The names in `nodes` that match no node.
    pub(super) fn add_unknown(&mut self, view: &ClusterView, nodes: &[String]) {
        let known: BTreeSet<String> = view.members.iter().flat_map(Member::names).collect();
        for node in nodes.iter().filter(|node| !known.contains(*node)) {
            self.fatal.add(|| format!("no node has the public IP or name {node}"));
        }
    }

    /// `pair`, if it would lose its path, and both nodes are reached now.
    pub(super) fn add_cut(&mut self, pair: &Pair<'_>) {
        if pair.is_cut() && !pair.has_outage {
            let listing = if pair.both_report { &mut self.fatal } else { &mut self.forgivable };
            listing.add(|| {
                let why = pair.reason.as_deref().unwrap_or_default();
                format!("{} would no longer reach {}: {why}", pair.from, pair.to)
            });
        }
    }

    pub(super) const fn total(&self) -> usize {
        self.fatal.total + self.forgivable.total
    }

    /// A refusal, unless there is none but what `--force` accepts.
    pub(super) fn refuse(mut self, options: StageOptions) -> Result<(), Outcome> {
        if options.force {
            self.forgivable = FirstObstacles::default();
        }
        if self.total() == 0 {
            return Ok(());
        }
        let message = format!("blocked by {}", counted(self.total(), "problem"));
        Err(refused(message).with(self.into_texts()))
    }

    pub(super) fn into_texts(self) -> Vec<String> {
        self.fatal.first.into_iter().chain(self.forgivable.first).collect()
    }
}

fn of_report(member: &Member, report: &NodeReport) -> impl Iterator<Item = String> {
    let node = &member.name;
    let invalid =
        report.invalid.iter().map(move |why| format!("{node} cannot use the config: {why}"));
    let waits = report.pending.iter().map(move |what| format!("{node} waits: {what}"));
    let links: Vec<String> = report.strict_filters.iter().map(ToString::to_string).collect();
    let links = links.join(" and ");
    // With Mixed, tweedd has already loosened all filters that it may change.
    let strict = (report.mixed && !links.is_empty()).then(|| {
        format!(
            "{node} has a strict reverse-path filter on {links}, and its tweedd may not change it"
        )
    });
    invalid.chain(waits).chain(strict)
}
