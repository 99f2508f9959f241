//! The path from each node to each other: now, and once all are on one backend.

use std::collections::BTreeMap;

use serde::Serialize;

use super::cluster::{ClusterView, Member};
use crate::model::config::{BackendType, NetworkConfig};
use crate::model::lease::{Lease, LeaseUpdate, Peers, Record, Vtep};
use crate::model::node::{Node, Uplink};
use crate::model::node_inputs::NodeInputs;
use crate::model::path::{Fallback, Fallbacks, Path};
use crate::model::policy::Policy;
use crate::model::prefix::Family;
use crate::plan::backend;

/// The backends of the nodes that report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backends {
    AsReported,
    All { kind: BackendType, mixed: bool },
}

/// The paths of one node, by the index of the other node among the members, and by family.
pub(super) type Reaches = BTreeMap<(usize, Family), Reach>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reach {
    /// None if packets have no path.
    pub(super) path: Option<Path>,
    /// Why there is no path, or not the preferred one.
    pub(super) reason: Option<String>,
}

/// The path of one node to one other in one address family, now and later.
#[derive(Debug, Serialize)]
pub(super) struct Pair<'a> {
    pub(super) from: &'a str,
    pub(super) to: &'a str,
    family: Family,
    pub(super) now: Option<Path>,
    pub(super) then: Option<Path>,
    pub(super) reason: Option<String>,
    /// Whether it will not take the preferred path of the backend.
    #[serde(skip)]
    pub(super) is_special: bool,
    #[serde(skip)]
    pub(super) both_report: bool,
}

/// The paths that the nodes would plan, computed with the daemon's own plan.
pub(super) struct Reachability<'a> {
    view: &'a ClusterView,
    backends: Backends,
    peers: Peers,
}

/// Every pair, with its path once the nodes are on `then`.
pub(super) fn pairs(view: &ClusterView, then: Backends) -> impl Iterator<Item = Pair<'_>> {
    let now = Reachability::new(view, Backends::AsReported).of_members();
    let then = Reachability::new(view, then).of_members();
    now.zip(then).flat_map(move |((from, mut now), (_, then))| {
        let pair = move |((to, family), then): ((usize, Family), Reach)| {
            let now = now.remove(&(to, family)).unwrap_or_default();
            let to = view.members.get(to)?;
            Some(Pair {
                from: &from.name,
                to: &to.name,
                family,
                now: now.path,
                then: then.path,
                is_special: then.reason.is_some(),
                reason: then.reason.or(now.reason),
                both_report: from.report.is_some() && to.report.is_some(),
            })
        };
        then.into_iter().filter_map(pair)
    })
}

impl<'a> Reachability<'a> {
    pub(super) fn new(view: &'a ClusterView, backends: Backends) -> Self {
        let mut this = Self { view, backends, peers: Peers::default() };
        let leases = view.members.iter().map(|member| this.published(member));
        let records = leases.map(|lease| Record { id: lease.id.clone(), lease: Ok(lease) });
        let snapshot = LeaseUpdate::Snapshot(records.collect());
        this.peers.update(snapshot);
        this
    }

    /// Every node with its paths to all others, in the order of the members.
    pub(super) fn of_members(mut self) -> impl Iterator<Item = (&'a Member, Reaches)> {
        self.view.members.iter().map(move |member| {
            let reaches = match self.local(member) {
                Some(local) => self.planned(member, &local),
                None => self.assumed(member),
            };
            (member, reaches)
        })
    }

    fn planned(&mut self, member: &Member, local: &NodeInputs) -> Reaches {
        let backends = backend::backends(local);
        self.peers.validate_by(local.rules());
        let fallbacks = self.fallbacks(member, local);
        let reports = member.report.iter().filter(|_| self.backends == Backends::AsReported);
        let exceptions: BTreeMap<_, _> =
            reports.flat_map(|report| &report.exceptions).map(|it| (&it.lease, it)).collect();
        let mut reaches = Reaches::new();
        for (to, peer) in self.view.members.iter().enumerate() {
            match self.peers.peer(&peer.lease.id) {
                None => {}
                Some(Ok(lease)) => {
                    let exception = exceptions.get(&lease.id);
                    for (family, planned) in backend::plan_peer(&backends, lease, &fallbacks).paths
                    {
                        // What the node reports takes precedence over its computed plan.
                        let reported =
                            exception.filter(|it| it.family.is_none_or(|of| of == family));
                        let (path, reason) = match reported {
                            Some(it) => (it.path, Some(it.reason.clone())),
                            None => explained(family, planned, lease, &local.node),
                        };
                        reaches.insert((to, family), Reach { path, reason });
                    }
                }
                Some(Err(rejected)) => {
                    let family = local.node.uplinks.first().map_or(Family::V4, Uplink::family);
                    let reason = Some(format!("rejected: {rejected}"));
                    reaches.insert((to, family), Reach { path: None, reason });
                }
            }
        }
        reaches
    }

    /// The probe failures that `member` reports, and all nodes without a report, because these
    /// answer no probe.
    fn fallbacks(&self, member: &Member, local: &NodeInputs) -> Fallbacks {
        let leases = self.view.silent().filter_map(|peer| self.peers.lease(&peer.lease.id));
        let endpoints = leases.flat_map(|lease| &lease.endpoints);
        let silent = endpoints.filter(|endpoint| backend::must_answer(&local.config, endpoint));
        let silent = silent.map(|endpoint| (endpoint.subnet.base(), Fallback::Unanswered));
        let failing = member.report.iter().flat_map(|report| report.failing.clone());
        silent.chain(failing).collect()
    }

    /// Flannel's rule: a tunnel from vxlan to vxlan, a route from host-gw to host-gw, nothing else.
    fn assumed(&self, member: &Member) -> Reaches {
        let path = member.backend().map(|kind| match kind {
            BackendType::Vxlan => Path::Tunnel,
            BackendType::HostGw => Path::Direct,
        });
        let mut reaches = Reaches::new();
        for (to, other) in self.view.members.iter().enumerate() {
            let peer = self.peers.lease(&other.lease.id).unwrap_or(&other.lease);
            for endpoint in &peer.endpoints {
                let family = endpoint.subnet.family();
                let own = member.lease.endpoint(family);
                let Some(own) = own.filter(|_| other.lease.id != member.lease.id) else { continue };
                let path = path.filter(|_| own.backend == endpoint.backend);
                let reason = || format!("flannel ignores a lease of {}", endpoint.backend.as_str());
                let reason = path.is_none().then(reason);
                reaches.insert((to, family), Reach { path, reason });
            }
        }
        reaches
    }

    /// The plan's inputs of the node on these backends; none if it does not report.
    fn local(&self, member: &Member) -> Option<NodeInputs> {
        let report = member.report.as_ref()?;
        let mut config = NetworkConfig { rollout: None, ..self.view.state.config.clone() };
        (config.backend.kind, config.mixed) = match self.backends {
            Backends::All { kind, mixed } => (kind, mixed),
            Backends::AsReported => (report.backend, report.mixed),
        };
        let vni = config.backend.tunnel.vni;
        let mac = |uplink: &Uplink| {
            let family = uplink.family();
            let vtep = member.lease.endpoint(family).and_then(|endpoint| endpoint.vtep);
            (family, vtep.map_or_else(|| Vtep::derived_mac(uplink.public_ip, vni), |vtep| vtep.mac))
        };
        Some(NodeInputs {
            config,
            macs: report.node.uplinks.iter().map(mac).collect(),
            node: report.node.clone(),
            own: Some(member.lease.clone()),
            strict: [].into(),
            leaving: [].into(),
            policy: Policy::default(),
        })
    }

    /// The present lease, or the future one.
    fn published(&self, member: &Member) -> Lease {
        let lease = member.lease.clone();
        match self.local(member).filter(|_| self.backends != Backends::AsReported) {
            Some(local) => {
                let endpoints = local.attributes().published_for(lease.subnets());
                Lease { endpoints, ..lease }
            }
            None => lease,
        }
    }
}

/// The planned path, and why it is not the preferred one.
fn explained(
    family: Family,
    planned: Result<backend::PathPlan, backend::Unreachable>,
    lease: &Lease,
    node: &Node,
) -> (Option<Path>, Option<String>) {
    let planned = match planned {
        Ok(planned) => planned,
        Err(why) => return (None, Some(format!("skipped: {why}"))),
    };
    let gateway = lease.endpoint(family).map(|endpoint| endpoint.public_ip);
    let distant = gateway.filter(|ip| planned.path == Path::Tunnel && !node.is_adjacent(*ip));
    let distant = distant.map(|ip| format!("{ip} is not on the link of {}", node.interface));
    (Some(planned.path), planned.fallback.map(|fallback| fallback.to_string()).or(distant))
}
