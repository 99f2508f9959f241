//! The path from each node to each other: now, and once all are on one backend.

mod duplicates;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::rc::Rc;

use self::duplicates::Values;
use super::cluster::{ClusterView, Member};
use crate::model::config::{BackendType, NetworkConfig};
use crate::model::lease::{Endpoint, Lease, LeaseUpdate, Peer, Peers, Record, Rules, Vtep};
use crate::model::node::{Node, Uplink};
use crate::model::node_inputs::NodeInputs;
use crate::model::path::{Fallback, Fallbacks, Path};
use crate::model::policy::Policy;
use crate::model::prefix::{Family, Prefix};
use crate::model::report::NodeReport;
use crate::plan::backend::{self, Backend};

/// The backends of the nodes that report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backends {
    AsReported,
    All { kind: BackendType, mixed: bool },
}

/// The path of one node to another in one address family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reach {
    /// None if packets have no path.
    pub(super) path: Option<Path>,
    /// Why there is no path, or not the preferred one.
    pub(super) reason: Option<Rc<str>>,
}

/// The paths of one node.
#[derive(Debug)]
pub(super) struct Reaches {
    /// None for the paths of any node like it, also to the node itself.
    from: Option<usize>,
    /// Those of all nodes like it.
    row: Rc<ReachOfClass>,
    /// Those that differ.
    own: BTreeMap<(usize, Family), Reach>,
}

/// The paths to each node, in the order of the members, IPv4 first. Also to the node itself.
type ReachOfClass = Vec<[Option<Reach>; 2]>;

/// The paths that the nodes would plan, computed with the daemon's own plan: once for all nodes that
/// plan alike, because thousands of nodes have millions of pairs.
pub(super) struct Reachability<'a> {
    view: &'a ClusterView,
    backends: Backends,
    peers: Peers,
    /// By position.
    classes: Vec<usize>,
    /// The nodes that judge leases by their own values.
    singular: BTreeSet<usize>,
    /// The positions of the nodes by the first addresses of their subnets.
    owners: BTreeSet<(IpAddr, usize)>,
    /// The last class that was planned.
    current: Option<ClassPlan>,
}

/// What the nodes of one class plan.
struct ClassPlan {
    class: usize,
    row: Rc<ReachOfClass>,
    /// None if they do not report.
    planner: Option<Planner>,
}

/// Plans the path to one peer, as one node.
struct Planner {
    local: NodeInputs,
    backends: Vec<Backend>,
    /// All nodes without a report, because these answer no probe.
    silent: Fallbacks,
}

/// The values that determine the paths of a node, apart from those that are unique to it.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Class<'a> {
    backend: Option<(BackendType, bool)>,
    link: Option<(&'a str, bool, &'a [Prefix])>,
    families: Vec<(Family, &'a str)>,
    singular: Option<usize>,
}

impl Reaches {
    /// None if both are one node, or have not both this family.
    pub(super) fn to(&self, to: usize, family: Family) -> Option<&Reach> {
        let common = self.row.get(to)?.get(family as usize)?.as_ref()?;
        let is_other = self.from != Some(to);
        is_other.then(|| self.own.get(&(to, family)).unwrap_or(common))
    }

    /// Whether they are those of nodes that plan alike.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.row, &other.row)
    }

    /// Those of any node like it.
    pub(super) fn common(&self) -> Self {
        Self { from: None, row: Rc::clone(&self.row), own: BTreeMap::new() }
    }

    /// The ends of those that differ from the common ones.
    pub(super) fn own_ends(&self) -> impl Iterator<Item = (usize, Family)> {
        let itself = self.from.into_iter().flat_map(|at| Family::ALL.map(|family| (at, family)));
        itself.chain(self.own.keys().copied().filter(|(to, _)| self.from != Some(*to)))
    }

    /// [`Self::own_ends`] without those of `other`, which has the same node.
    pub(super) fn own_ends_but(&self, other: &Self) -> impl Iterator<Item = (usize, Family)> {
        let own = self.own.keys().copied();
        own.filter(|end| self.from != Some(end.0) && !other.own.contains_key(end))
    }
}

impl<'a> Reachability<'a> {
    pub(super) fn new(view: &'a ClusterView, backends: Backends) -> Self {
        let mut this = Self {
            view,
            backends,
            peers: Peers::default(),
            classes: Vec::new(),
            singular: BTreeSet::new(),
            owners: view.subnets().collect(),
            current: None,
        };
        let leases: Vec<Lease> = view.members.iter().map(|member| this.published(member)).collect();
        let values = view.members.iter().zip(&leases);
        let values: Vec<Values> =
            values.map(|(member, lease)| Values::of(lease, this.local(member).as_ref())).collect();
        let networks: Vec<Prefix> = view.state.config.networks().collect();
        this.singular = duplicates::positions(&values, &networks);
        this.classes = this.classified();
        let records =
            leases.into_iter().map(|lease| Record { id: lease.id.clone(), lease: Ok(lease) });
        this.peers.update(LeaseUpdate::Snapshot(records.collect()));
        this
    }

    /// Plans each node by its own values, as its daemon does.
    #[cfg(test)]
    pub(super) fn each_alone(mut self) -> Self {
        self.singular = (0..self.view.members.len()).collect();
        self.classes = self.classified();
        self
    }

    /// The number of the class of each node, in the order of the members.
    fn classified(&self) -> Vec<usize> {
        let mut numbers: BTreeMap<Class<'_>, usize> = BTreeMap::new();
        let class = |(at, member): (usize, &'a Member)| {
            let next = numbers.len();
            *numbers.entry(self.class(at, member)).or_insert(next)
        };
        self.view.members.iter().enumerate().map(class).collect()
    }

    fn class(&self, at: usize, member: &'a Member) -> Class<'a> {
        let singular = self.singular.contains(&at).then_some(at);
        let Some(report) = &member.report else {
            let published = member.lease.endpoints.iter();
            let families = published.map(|it| (it.subnet.family(), it.backend.as_str())).collect();
            return Class { backend: None, link: None, families, singular };
        };
        let node = &report.node;
        Class {
            backend: Some(self.backend(report)),
            link: Some((node.interface.as_str(), node.layer2, &node.on_link)),
            families: node.uplinks.iter().map(|uplink| (uplink.family(), "")).collect(),
            singular,
        }
    }

    pub(super) fn class_of(&self, from: usize) -> Option<usize> {
        self.classes.get(from).copied()
    }

    /// The paths from the node at this position. Nodes of one class should follow one another.
    pub(super) fn from(&mut self, from: usize) -> Reaches {
        let class = self.classes.get(from).copied().unwrap_or_default();
        let planned = self.current.take().filter(|planned| planned.class == class);
        let planned = planned.unwrap_or_else(|| self.plan(class, from));
        let own = self.exceptional(from, &planned);
        let row = Rc::clone(&planned.row);
        self.current = Some(planned);
        Reaches { from: Some(from), row, own }
    }

    fn plan(&mut self, class: usize, from: usize) -> ClassPlan {
        let Some(member) = self.view.members.get(from) else {
            return ClassPlan { class, row: Rc::default(), planner: None };
        };
        let Some(local) = self.local(member) else {
            return ClassPlan { class, row: Rc::new(self.assumed(member)), planner: None };
        };
        let rules = local.rules();
        self.peers.validate_by(if self.singular.contains(&from) {
            rules
        } else {
            Rules { own: None, macs: BTreeMap::new(), addresses: Vec::new(), ..rules }
        });
        let silent = self.silent(&local);
        let planner = Planner { backends: backend::backends(&local), local, silent };
        let row = self.view.members.iter();
        let row = row.map(|peer| planner.to(self.peers.peer(&peer.lease.id), &planner.silent));
        ClassPlan { class, row: Rc::new(row.collect()), planner: Some(planner) }
    }

    /// The paths that differ from those of its class: its probe failures, and what it reports, which
    /// takes precedence over its computed plan.
    fn exceptional(&self, from: usize, common: &ClassPlan) -> BTreeMap<(usize, Family), Reach> {
        let mut own = BTreeMap::new();
        let report = self.view.members.get(from).and_then(|member| member.report.as_ref());
        let Some((report, planner)) = report.zip(common.planner.as_ref()) else { return own };
        let owners = |base: IpAddr| self.owners.range((base, 0)..=(base, usize::MAX));
        let failing = report.failing.keys().flat_map(|base| owners(*base).map(|(_, to)| *to));
        for to in failing.collect::<BTreeSet<_>>() {
            let Some(peer) = self.view.members.get(to) else { continue };
            let bases = || peer.lease.subnets().map(Prefix::base);
            let known =
                |base| Some((base, *report.failing.get(&base).or(planner.silent.get(&base))?));
            let fallbacks: Fallbacks = bases().filter_map(known).collect();
            let reaches = planner.to(self.peers.peer(&peer.lease.id), &fallbacks);
            for (family, reach) in Family::ALL.into_iter().zip(reaches) {
                own.extend(reach.map(|reach| ((to, family), reach)));
            }
        }
        if self.backends == Backends::AsReported {
            for it in &report.exceptions {
                let Some(to) = self.view.position(&it.lease) else { continue };
                let reach = Reach { path: it.path, reason: Some(it.reason.as_str().into()) };
                let families = Family::ALL.into_iter();
                let families = families.filter(|family| it.family.is_none_or(|of| of == *family));
                own.extend(families.map(|family| ((to, family), reach.clone())));
            }
        }
        own
    }

    /// The direct paths of this node that are not used because the peer must answer before.
    fn silent(&self, local: &NodeInputs) -> Fallbacks {
        let leases = self.view.silent().filter_map(|peer| self.peers.lease(&peer.lease.id));
        let endpoints = leases.flat_map(|lease| &lease.endpoints);
        let config = Some(&local.config).filter(|config| config.comparing().is_some());
        let must_answer =
            |peer: &Endpoint| config.is_some_and(|it| backend::must_answer(it.backend.kind, peer));
        let silent = endpoints.filter(|endpoint| must_answer(endpoint));
        silent.map(|endpoint| (endpoint.subnet.base(), Fallback::Unanswered)).collect()
    }

    /// Flannel's rule: a tunnel from vxlan to vxlan, a route from host-gw to host-gw, nothing else.
    fn assumed(&self, member: &Member) -> ReachOfClass {
        let path = member.backend().map(|kind| match kind {
            BackendType::Vxlan => Path::Tunnel,
            BackendType::HostGw => Path::Direct,
        });
        let to = |other: &Member| {
            let peer = self.peers.lease(&other.lease.id).unwrap_or(&other.lease);
            Family::ALL.map(|family| {
                let (own, endpoint) = member.lease.endpoint(family).zip(peer.endpoint(family))?;
                let path = path.filter(|_| own.backend == endpoint.backend);
                let reason = || format!("flannel ignores a lease of {}", endpoint.backend.as_str());
                Some(Reach { path, reason: path.is_none().then(|| reason().into()) })
            })
        };
        self.view.members.iter().map(to).collect()
    }

    /// The backend of a node, and whether `Mixed` is on.
    const fn backend(&self, report: &NodeReport) -> (BackendType, bool) {
        match self.backends {
            Backends::All { kind, mixed } => (kind, mixed),
            Backends::AsReported => (report.backend, report.mixed),
        }
    }

    /// The plan's inputs of the node on these backends; none if it does not report.
    fn local(&self, member: &Member) -> Option<NodeInputs> {
        let report = member.report.as_ref()?;
        let mut config = NetworkConfig { rollout: None, ..self.view.state.config.clone() };
        (config.backend.kind, config.mixed) = self.backend(report);
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
            was_on_host_gw: false,
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

impl Planner {
    /// The path to `peer` in each family, IPv4 first.
    fn to(&self, peer: Option<Peer<'_>>, fallbacks: &Fallbacks) -> [Option<Reach>; 2] {
        let Some(judged) = peer else { return [None, None] };
        let node = &self.local.node;
        let mut reaches: BTreeMap<Family, Reach> = match judged {
            Ok(lease) => {
                let paths = backend::plan_peer(&self.backends, lease, fallbacks).paths.into_iter();
                paths.map(|(family, path)| (family, explained(family, path, lease, node))).collect()
            }
            Err(rejected) => {
                let family = node.uplinks.first().map_or(Family::V4, Uplink::family);
                let reason = Some(format!("rejected: {rejected}").into());
                [(family, Reach { path: None, reason })].into()
            }
        };
        Family::ALL.map(|family| reaches.remove(&family))
    }
}

/// The planned path, and why it is not the preferred one.
fn explained(
    family: Family,
    planned: Result<backend::PathPlan, backend::Unreachable>,
    lease: &Lease,
    node: &Node,
) -> Reach {
    let planned = match planned {
        Ok(planned) => planned,
        Err(why) => return Reach { path: None, reason: Some(format!("skipped: {why}").into()) },
    };
    let gateway = lease.endpoint(family).map(|endpoint| endpoint.public_ip);
    let distant = gateway.filter(|ip| planned.path == Path::Tunnel && !node.is_adjacent(*ip));
    let distant = distant.map(|ip| format!("{ip} is not on the link of {}", node.interface));
    let reason = planned.fallback.map(|fallback| fallback.to_string()).or(distant);
    Reach { path: Some(planned.path), reason: reason.map(Rc::from) }
}
