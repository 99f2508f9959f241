//! How every node reaches every other: now, and once all are on one backend.

use std::collections::BTreeMap;

use crate::model::config::{Kind, NetworkConfig};
use crate::model::lease::{Lease, LeaseUpdate, Peers, Record};
use crate::model::local::Local;
use crate::model::node::{Node, Uplink};
use crate::model::path::{Detour, Detours, Path};
use crate::model::policy::Policy;
use crate::model::prefix::Family;
use crate::model::report::{Exception, NodeReport};
use crate::plan::backend::{self, Network};

use super::picture::{Member, Picture};

/// When to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Situation {
    Now,
    /// Every node that reports is on this backend.
    Once {
        kind: Kind,
        mixing: Mixing,
    },
}

/// Whether nodes route to peers of another backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixing {
    On,
    Off,
}

/// How one node reaches one other in one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Index among the members of the picture.
    pub to: usize,
    pub family: Family,
    /// None if packets have no way.
    pub path: Option<Path>,
    /// Why there is no path, or not the one that is wanted.
    pub reason: Option<String>,
}

/// What the nodes of a picture would plan, by the daemon's own plan.
pub struct Outlook<'a> {
    picture: &'a Picture,
    situation: Situation,
    peers: Peers,
}

impl<'a> Outlook<'a> {
    pub fn new(picture: &'a Picture, situation: Situation) -> Self {
        let mut outlook = Self { picture, situation, peers: Peers::default() };
        let record = |member: &Member| {
            let lease = outlook.published(member);
            Record { id: lease.id.clone(), lease: Ok(lease) }
        };
        let records = picture.members.iter().map(record).collect();
        outlook.peers.apply(LeaseUpdate::Snapshot(records));
        outlook
    }

    /// Every node with how it reaches all others, in the order of the members.
    pub fn views(mut self) -> impl Iterator<Item = (&'a Member, Vec<Reach>)> {
        self.picture.members.iter().map(move |member| (member, self.view(member)))
    }

    fn view(&mut self, member: &Member) -> Vec<Reach> {
        match self.local(member) {
            Some(local) => self.planned(member, &local),
            None => self.assumed(member),
        }
    }

    fn planned(&mut self, member: &Member, local: &Local) -> Vec<Reach> {
        let networks = backend::networks(local);
        self.peers.judge_by(local.rules());
        let detours = self.detours(member, local);
        let reports = member.report.iter().filter(|_| self.situation == Situation::Now);
        let exceptions: BTreeMap<_, _> =
            reports.flat_map(|report| &report.exceptions).map(|it| (&it.lease, it)).collect();
        let mut view = Vec::new();
        for (to, peer) in self.picture.members.iter().enumerate() {
            let Some(peer) = self.peers.peer(&peer.lease.id) else { continue };
            match peer {
                Ok(lease) => {
                    let told = exceptions.get(&lease.id).copied();
                    view.extend(
                        reaches(to, lease, &networks, &detours, &local.node)
                            .map(|reach| overlaid(reach, told)),
                    );
                }
                Err(rejected) => view.push(Reach {
                    to,
                    family: local.node.uplinks.first().map_or(Family::V4, Uplink::family),
                    path: None,
                    reason: Some(format!("set aside: {rejected}")),
                }),
            }
        }
        view
    }

    /// What speaks against direct paths of `member`: what its probes found, and that a node without
    /// a report answers none.
    fn detours(&self, member: &Member, local: &Local) -> Detours {
        let leases = self.picture.silent().filter_map(|peer| self.peers.lease(&peer.lease.id));
        let endpoints = leases.flat_map(|lease| &lease.endpoints);
        let silent = endpoints.filter(|endpoint| backend::must_answer(&local.config, endpoint));
        let silent = silent.map(|endpoint| (endpoint.subnet.base(), Detour::Unanswered));
        let failing = member.report.iter().flat_map(|report| report.failing.clone());
        silent.chain(failing).collect()
    }

    /// Flannel's rule: a tunnel to vxlan from vxlan, a route to host-gw from host-gw, and nothing else.
    fn assumed(&self, member: &Member) -> Vec<Reach> {
        let others = self.picture.members.iter().enumerate();
        let others = others.filter(|(_, other)| other.lease.id != member.lease.id);
        let reaches = others.flat_map(|(to, other)| {
            let peer = self.peers.lease(&other.lease.id).unwrap_or(&other.lease);
            peer.endpoints.iter().filter_map(move |endpoint| {
                let family = endpoint.subnet.family();
                let own = member.lease.endpoint(family)?;
                let agrees = own.backend == endpoint.backend;
                let path = member.backend().filter(|_| agrees).map(Path::of);
                let reason = || format!("flannel ignores a lease of {}", endpoint.backend.as_str());
                Some(Reach { to, family, path, reason: path.is_none().then(reason) })
            })
        });
        reaches.collect()
    }

    /// The node in this situation; none if it does not report.
    fn local(&self, member: &Member) -> Option<Local> {
        let report = member.report.as_ref()?;
        let config = self.picture.course.config.clone();
        let mut config = NetworkConfig { rollout: None, ..config };
        let (kind, mixing) = self.situation.of(report);
        (config.backend.kind, config.mixed) = (kind, mixing == Mixing::On);
        let vni = config.backend.tunnel.vni;
        let mac = |uplink: &Uplink| {
            let vtep = member.lease.endpoint(uplink.family()).and_then(|endpoint| endpoint.vtep);
            (
                uplink.family(),
                vtep.map_or_else(|| backend::derived_mac(uplink, vni), |vtep| vtep.mac),
            )
        };
        let macs = report.node.uplinks.iter().map(mac).collect();
        let (node, own) = (report.node.clone(), Some(member.lease.clone()));
        Some(Local {
            config,
            node,
            macs,
            own,
            strict: [].into(),
            leaving: [].into(),
            policy: Policy::default(),
        })
    }

    /// The lease as it stands, or as it will.
    fn published(&self, member: &Member) -> Lease {
        let local = self.local(member).filter(|_| self.situation != Situation::Now);
        let endpoints = local.map(|local| local.attributes().published_for(member.lease.subnets()));
        Lease {
            endpoints: endpoints.unwrap_or_else(|| member.lease.endpoints.clone()),
            ..member.lease.clone()
        }
    }
}

impl Situation {
    /// What is in force on a node that reports.
    const fn of(self, report: &NodeReport) -> (Kind, Mixing) {
        match self {
            Self::Once { kind, mixing } => (kind, mixing),
            Self::Now => (report.backend, if report.mixed { Mixing::On } else { Mixing::Off }),
        }
    }
}

impl Path {
    /// The way that flannel goes with a backend.
    const fn of(kind: Kind) -> Self {
        match kind {
            Kind::Vxlan => Self::Tunnel,
            Kind::HostGw => Self::Direct,
        }
    }
}

fn reaches(
    to: usize,
    lease: &Lease,
    networks: &[Box<dyn Network>],
    detours: &Detours,
    node: &Node,
) -> impl Iterator<Item = Reach> {
    let plan = backend::plan_peer(networks, lease, detours);
    plan.ways.into_iter().map(move |(family, way)| match way {
        Ok(way) => {
            let gateway = lease.endpoint(family).map(|endpoint| endpoint.public_ip);
            let away = gateway.filter(|ip| way.path == Path::Tunnel && !node.is_adjacent(*ip));
            let reason = away.map(|ip| format!("{ip} is not on the link of {}", node.interface));
            let failing = way.detour.map(|detour| detour.to_string());
            Reach { to, family, path: Some(way.path), reason: failing.or(reason) }
        }
        Err(why) => Reach { to, family, path: None, reason: Some(format!("left out: {why}")) },
    })
}

/// What the node itself tells counts more than what it should do.
fn overlaid(reach: Reach, told: Option<&Exception>) -> Reach {
    match told.filter(|told| told.family.is_none_or(|family| family == reach.family)) {
        Some(told) => Reach { path: told.path, reason: Some(told.reason.clone()), ..reach },
        None => reach,
    }
}
