//! The input of every decision: the config, all leases and all reports, at one moment.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use super::state::{ALL, MigrationState, Stage};
use crate::model::config::{BackendType, Rollout, share};
use crate::model::lease::{Lease, LeaseId};
use crate::model::path::Path;
use crate::model::prefix::Family;
use crate::model::report::{Exception, NodeReport, Quality};
use crate::operator::nodes::evidence::{ClusterNode, Evidence, NodeState};
use crate::store::etcd::key;

#[derive(Clone, Debug)]
pub(super) struct ClusterView {
    pub(super) state: MigrationState,
    /// In the order of their leases.
    pub(super) members: Vec<Member>,
    positions: BTreeMap<LeaseId, usize>,
}

/// A node, known by its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// As in [`ClusterNode::name`].
    pub(super) name: String,
    pub(super) lease: Lease,
    /// None for stock flannel, for a tweedd that is not running, and for one older than reports.
    pub(super) report: Option<NodeReport>,
    /// None if its peers reach it, and if it does not report.
    pub(super) outage: Option<Outage>,
    /// Why it is degraded, stale or not ready, as `tweedctl nodes` shows it.
    pub(super) failure: Option<String>,
}

/// Peers do not reach a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outage {
    state: NodeState,
    reason: String,
    /// What to do.
    fix: String,
}

/// Each trouble with its reason.
pub(super) type Troubles = BTreeMap<Subject, String>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    /// A node that its peers do not reach.
    Outage(String),
    /// Two nodes, and the path of an address family between them.
    Pair(String, Option<Family>, Option<Path>),
    Node(String),
    /// The result of a node's probes in the last minute.
    Probes(String),
}

impl ClusterView {
    pub(super) fn new(state: MigrationState, nodes: Vec<ClusterNode>) -> Self {
        let evidence = Evidence::of(&nodes);
        let judge = |node| (Outage::of(node, &evidence), failure(node, &evidence));
        let judged: Vec<_> = nodes.iter().map(judge).collect();
        let mut members: Vec<Member> = nodes.into_iter().zip(judged).map(Member::new).collect();
        members.sort_by_key(|member| member.lease.subnets().next());
        let ids = members.iter().map(|member| member.lease.id.clone());
        let positions = ids.zip(0..).collect();
        Self { state, members, positions }
    }

    pub(super) fn member(&self, id: &LeaseId) -> Option<&Member> {
        self.members.get(self.position(id)?)
    }

    pub(super) fn position(&self, id: &LeaseId) -> Option<usize> {
        self.positions.get(id).copied()
    }

    /// The first address of each subnet, with the position of its node.
    pub(super) fn subnets(&self) -> impl DoubleEndedIterator<Item = (IpAddr, usize)> {
        let of = |(at, member): (usize, &Member)| -> Vec<_> {
            member.lease.subnets().map(|subnet| (subnet.base(), at)).collect()
        };
        self.members.iter().enumerate().flat_map(of)
    }

    /// The nodes that report, with their reports; without dead ones, which have stopped to.
    pub(super) fn reporting(&self) -> impl Iterator<Item = (&Member, &NodeReport)> {
        let alive = self.members.iter().filter(|member| !member.is_dead());
        alive.filter_map(|member| Some((member, member.report.as_ref()?)))
    }

    pub(super) fn silent(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.report.is_none())
    }

    /// Loss and latency between the nodes; none if they do not probe.
    pub(super) fn quality(&self) -> Option<Quality> {
        Quality::of_all(self.reporting().filter_map(|(_, report)| report.quality))
    }

    /// The number of reporting nodes that are on the new backend or will change to it.
    pub(super) fn following(&self) -> usize {
        self.count_following(self.state.config.rollout.as_ref())
    }

    /// The number of reporting nodes that would be on the new backend at `stage`.
    pub(super) fn following_at(&self, stage: &Stage) -> usize {
        self.count_following(Some(&stage.rollout(self.state.config.backend.kind)))
    }

    /// The smallest stage with the named nodes of `stage` and `percent` of the nodes in all, rounded
    /// down, at least one. With 100, also nodes that are added later.
    pub(super) fn stage_of(&self, percent: u8, stage: &Stage) -> Stage {
        if percent >= ALL {
            return stage.at(ALL);
        }
        let mut hashes: Vec<u8> = self.unnamed(stage).map(|(_, hash)| hash).collect();
        hashes.sort_unstable();
        let all = self.reporting().count();
        let (wanted, named) = (all * usize::from(percent) / usize::from(ALL), all - hashes.len());
        let last = wanted.max(1).saturating_sub(named).checked_sub(1);
        let last = last.filter(|_| !hashes.is_empty());
        stage.at(last.map_or(0, |last| hashes.get(last).map_or(ALL, |hash| hash + 1)))
    }

    /// The nodes with the largest hash of `stage`, if they are several: no percentage moves one of
    /// them alone.
    pub(super) fn tie(&self, stage: &Stage) -> Option<Vec<&str>> {
        let last = stage.percent.checked_sub(1).filter(|_| !stage.is_all())?;
        let tied = self.unnamed(stage).filter(|(_, hash)| *hash == last);
        let tied: Vec<&str> = tied.map(|(member, _)| member.name.as_str()).collect();
        (tied.len() > 1).then_some(tied)
    }

    /// The reporting nodes that `stage` does not name, with their hashes.
    fn unnamed(&self, stage: &Stage) -> impl Iterator<Item = (&Member, u8)> {
        let named = stage.at(0).rollout(self.state.config.backend.kind);
        let members = self.reporting().map(|(member, _)| member);
        let others = members.filter(move |member| !member.follows(Some(&named)));
        others.filter_map(|member| Some((member, share(member.names().first()?))))
    }

    fn count_following(&self, rollout: Option<&Rollout>) -> usize {
        self.reporting().filter(|(member, _)| member.follows(rollout)).count()
    }

    /// The nodes that have not applied the config, with the reason; nodes without a report count as
    /// unknown.
    pub(super) fn lags(&self) -> Vec<String> {
        let lag = |(member, report): (&Member, &NodeReport)| {
            Some(format!("{} {}", member.name, self.lag(member, report)?))
        };
        self.reporting().filter_map(lag).collect()
    }

    fn lag(&self, member: &Member, report: &NodeReport) -> Option<String> {
        let config = &self.state.config;
        let wanted = match &config.rollout {
            Some(rollout) if !member.follows(Some(rollout)) => rollout.from,
            Some(_) | None => config.backend.kind,
        };
        if let Some(why) = &report.invalid {
            Some(format!("cannot use the config: {why}"))
        } else if i64::try_from(report.config_revision).is_ok_and(|it| it < self.state.revision) {
            Some("has not seen the config yet".to_owned())
        } else if let Some(what) = &report.pending {
            Some(format!("waits: {what}"))
        } else if report.backend != wanted {
            Some(format!("is still on {}", report.backend.as_str()))
        } else if report.mixed != config.mixed {
            Some(format!("still has Mixed {}", if report.mixed { "on" } else { "off" }))
        } else {
            let mut awaited = report.exceptions.iter().filter(|exception| exception.probing);
            let awaited = awaited.find(|exception| !self.is_outage(member, &exception.lease))?;
            Some(format!("still uses the tunnel to {}: {}", awaited.lease, awaited.reason))
        }
    }

    /// The troubles that nodes report. A node that its peers do not reach is one trouble, not one
    /// per peer.
    pub(super) fn troubles(&self) -> Troubles {
        let outages = self.members.iter().filter_map(|member| {
            Some((Subject::Outage(member.name.clone()), member.outage.as_ref()?.to_string()))
        });
        let reported =
            self.reporting().flat_map(|(member, report)| self.troubles_of(member, report));
        reported.chain(outages).collect()
    }

    /// Whether what `member` reports about its peer `lease` is explained by an outage of one of them.
    fn is_outage(&self, member: &Member, lease: &LeaseId) -> bool {
        let has_outage = |member: &Member| member.outage.is_some();
        has_outage(member) || self.member(lease).is_some_and(has_outage)
    }

    fn troubles_of(&self, member: &Member, report: &NodeReport) -> Vec<(Subject, String)> {
        let node = || Subject::Node(member.name.clone());
        let pair = |exception: &Exception| {
            let to = self.member(&exception.lease);
            let to = to.map_or_else(|| exception.lease.to_string(), |to| to.name.clone());
            let pair = format!("{} → {to}", member.name);
            let family = exception.family.filter(|_| report.subnets.len() > 1);
            (Subject::Pair(pair, family, exception.path), exception.reason.clone())
        };
        let lasting = report.exceptions.iter().filter(|exception| !exception.probing);
        let lasting = lasting.filter(|exception| !self.is_outage(member, &exception.lease));
        // Those that are still probed are listed before the lasting ones with a path: how many of the
        // others are lasting is not known yet.
        let is_probing = report.exceptions.last().is_some_and(|exception| exception.probing);
        let unlisted = report.exceptions_total.saturating_sub(report.exceptions.len());
        let more = (unlisted > 0 && !is_probing)
            .then(|| (node(), format!("{unlisted} more peers like these")));
        let invalid = report.invalid.as_ref();
        let invalid = invalid.map(|why| (node(), format!("cannot use the config: {why}")));
        lasting.map(pair).chain(more).chain(invalid).collect()
    }

    /// Troubles that are not in `before`; also nodes that left or stopped reporting.
    pub(super) fn degraded(&self, before: &Self) -> Troubles {
        let known = before.troubles();
        let mut troubles = self.troubles();
        troubles.retain(|subject, _| !known.contains_key(subject));
        troubles.extend(before.members.iter().filter_map(|member| self.degraded_node(member)));
        troubles
    }

    fn degraded_node(&self, before: &Member) -> Option<(Subject, String)> {
        let name = before.name.clone();
        let now = self.member(&before.lease.id);
        if now.is_some_and(|now| now.outage.is_some()) {
            return None;
        }
        match (&before.report, now.map(|now| &now.report)) {
            (_, None) => Some((Subject::Node(name), "its lease is removed".to_owned())),
            (Some(_), Some(None)) => Some((Subject::Node(name), "it no longer reports".to_owned())),
            (Some(before), Some(Some(now))) => {
                Some((Subject::Probes(name), now.quality?.worse_than(before.quality?)?))
            }
            (None, Some(_)) => None,
        }
    }
}

impl Member {
    fn new((node, (outage, failure)): (ClusterNode, (Option<Outage>, Option<String>))) -> Self {
        let name = node.name();
        // Views of large clusters are copied; these parts are evidence only.
        let light = |report| NodeReport { failing_peers: Vec::new(), groups: Vec::new(), ..report };
        let report = node.report.map(|stored| light(stored.report));
        Self { name, lease: node.lease, report, outage, failure }
    }

    pub(super) fn is_dead(&self) -> bool {
        self.outage.as_ref().is_some_and(|outage| outage.state == NodeState::Dead)
    }

    /// The names of the node in a rollout. These are the ones that the node itself uses: the public
    /// IP in its lease may differ.
    pub(super) fn names(&self) -> Vec<String> {
        match &self.report {
            Some(report) => report.node.names().chain(report.name.clone()).collect(),
            None => self.lease.endpoints.iter().map(|it| it.public_ip.to_string()).collect(),
        }
    }

    pub(super) fn follows(&self, rollout: Option<&Rollout>) -> bool {
        rollout.is_none_or(|rollout| rollout.follows(self.names()))
    }

    /// The backend in its report, else in its lease; none if tweed does not know that backend.
    pub(super) fn backend(&self) -> Option<BackendType> {
        let published = || self.lease.endpoints.first()?.backend.supported();
        self.report.as_ref().map(|report| report.backend).or_else(published)
    }
}

impl Outage {
    fn of(node: &ClusterNode, evidence: &Evidence<'_>) -> Option<Self> {
        node.report.as_ref()?;
        let (state, reason) = evidence.outage(node)?;
        let fix = if state == NodeState::Dead {
            let lease = &node.lease;
            let subnet = lease.subnets().next().filter(|_| !key::claimed(&lease.id).is_empty());
            let delete = subnet.map_or_else(
                || format!("kubectl delete node {}", lease.id),
                |subnet| format!("tweedctl leases release {subnet}"),
            );
            format!("start it, or, if it is gone, run {delete}")
        } else {
            "tweedctl connectivity test shows the causes".to_owned()
        };
        Some(Self { state, reason, fix })
    }
}

/// As in `n7 is degraded: …`; none if it is ready, does not report, or has an outage.
fn failure(node: &ClusterNode, evidence: &Evidence<'_>) -> Option<String> {
    let (state, reason) = evidence.verdict(node);
    let is_outage = matches!(state, NodeState::Dead | NodeState::Unreachable);
    let reason = reason.filter(|_| state.is_failing() && !is_outage);
    reason.map(|reason| format!("{} is {state}: {reason}", node.name()))
}

/// As in `dead: its report is not refreshed for 12 min, …`.
impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, reason, fix } = self;
        write!(f, "{state}: {reason}; {fix}")
    }
}

/// A trouble in words.
pub(super) fn sentence((subject, why): (&Subject, &String)) -> String {
    match subject {
        Subject::Outage(node) => format!("{node} is {why}"),
        Subject::Pair(..) | Subject::Node(_) | Subject::Probes(_) => format!("{subject}: {why}"),
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outage(subject) | Self::Node(subject) | Self::Probes(subject) => {
                f.write_str(subject)
            }
            Self::Pair(pair, family, path) => {
                f.write_str(pair)?;
                if let Some(family) = family {
                    write!(f, " ({family})")?;
                }
                f.write_str(match path {
                    None => "",
                    Some(Path::Direct) => ", direct",
                    Some(Path::Tunnel) => ", by tunnel",
                })
            }
        }
    }
}
