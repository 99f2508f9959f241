//! A cluster in memory whose nodes apply the config.

use std::time::Duration;

use jiff::Timestamp;

use crate::mac::MacAddr;
use crate::model::config::{BackendType, NetworkConfig};
use crate::model::entry::LinkName;
use crate::model::lease::{Endpoint, Lease, LeaseId, Record, Vtep};
use crate::model::node::{Node, Uplink};
use crate::model::path::{Cause, Fallback, Fallbacks, Path, PeerReachability, UnreachableCause};
use crate::model::prefix::{Family, Prefix};
use crate::model::report::{Exception, FailingPeer, NodeReport, OtherMtu, Quality};
use crate::model::status::{PeerCounts, ReachabilityCounts};
use crate::operator::nodes::evidence::ClusterNode;
use crate::store::operator::StoredReport;

use super::super::cluster::{ClusterView, Member};
use super::super::options::{Order, StageOptions, Start};
use super::super::state::{MigrationState, Note, Stage, Step};

pub(super) const VXLAN: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
pub(super) const MIXED: &str =
    r#"{"Network":"10.244.0.0/16","Mixed":true,"Backend":{"Type":"vxlan"}}"#;

/// The content of the store, and the nodes that apply it.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) text: String,
    pub(super) revision: i64,
    pub(super) nodes: Vec<Machine>,
    pub(super) access: Access,
}

/// What the store does with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Answers,
    /// No request reaches it.
    Unreachable,
    /// It answers reads only, as etcd without a leader may.
    ReadOnly,
    /// The next write is executed, and its answer is lost.
    LosesAnswer,
    /// As in Kubernetes when another key of the ConfigMap changes before the next write.
    ChangesRevision,
}

/// One node: number `n` has the subnet 10.244.n.0/24 and, on segment `s`, the address 172.16.s.n.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    number: u8,
    segment: u8,
    pub(super) runs: Runs,
    /// Whether it applies new configs.
    pub(super) listens: Listens,
    pub(super) strict: bool,
    pub(super) keeps_connections: bool,
    /// The config that it applied last.
    doing: String,
    seen: i64,
    pub(super) exceptions: Vec<Exception>,
    /// The exceptions that its report only counts.
    pub(super) unlisted: usize,
    pub(super) is_dual: bool,
    pub(super) failing: Fallbacks,
    pub(super) quality: Option<Quality>,
    pub(super) other_mtu: OtherMtu,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Runs {
    Tweed,
    /// Stock flannel, on the backend of the config that it started with.
    Flannel,
    /// Nothing, since 12 minutes: it is powered off.
    Nothing,
    /// As `Tweed`, but its cable is pulled; the store is reached by another one.
    Unreachable,
}

impl Runs {
    const fn is_reached(self) -> bool {
        match self {
            Self::Tweed | Self::Flannel => true,
            Self::Nothing | Self::Unreachable => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listens {
    Yes,
    No,
}

impl World {
    /// Nodes number 1 to `near` on one segment, and `far` more behind a router.
    pub(super) fn new(text: &str, near: u8, far: u8) -> Self {
        let machine = |number| Machine {
            number,
            segment: u8::from(number > near),
            runs: Runs::Tweed,
            listens: Listens::Yes,
            strict: false,
            keeps_connections: true,
            doing: text.to_owned(),
            seen: 7,
            exceptions: Vec::new(),
            unlisted: 0,
            is_dual: false,
            failing: Fallbacks::new(),
            quality: None,
            other_mtu: OtherMtu::default(),
        };
        let nodes = (1..=near + far).map(machine).collect();
        Self { text: text.to_owned(), revision: 7, nodes, access: Access::Answers }
    }

    /// Writes the config, as another operator.
    pub(super) fn put(&mut self, text: &str) {
        text.clone_into(&mut self.text);
        self.revision += 1;
    }

    /// Every node that listens applies the config.
    pub(super) fn follow(&mut self) {
        let listens = |it: &&mut Machine| it.listens == Listens::Yes && it.runs != Runs::Nothing;
        for machine in self.nodes.iter_mut().filter(listens) {
            (machine.doing, machine.seen) = (self.text.clone(), self.revision);
        }
    }

    pub(super) fn records(&self) -> Vec<Record> {
        let leases = self.nodes.iter().map(Machine::lease);
        leases.map(|lease| Record { id: lease.id.clone(), lease: Ok(lease) }).collect()
    }

    pub(super) fn reports(&self) -> Vec<StoredReport> {
        let reporting = self.nodes.iter().filter(|it| it.runs != Runs::Flannel);
        let stored = |machine: &Machine| StoredReport {
            report: NodeReport {
                reachability: self.reachability(machine),
                failing_peers: self.failing_peers(machine),
                ..machine.report()
            },
            age: Some(Duration::from_secs(if machine.runs == Runs::Nothing { 720 } else { 7 })),
        };
        reporting.map(stored).collect()
    }

    /// Of the peers that `from` does not reach; the others are unknown.
    fn failing_peers(&self, from: &Machine) -> Vec<FailingPeer> {
        let failing = self.nodes.iter().filter(|to| !to.runs.is_reached());
        let failing = failing.filter(|to| from.runs == Runs::Tweed && to.number != from.number);
        let cause = UnreachableCause::PeerSilent;
        let reachability = PeerReachability::Unreachable { cause, since_ms: None };
        let peer = |to: &Machine| FailingPeer {
            lease: to.id(),
            family: Some(Family::V4),
            reachability,
            since: None,
        };
        failing.map(peer).collect()
    }

    fn reachability(&self, from: &Machine) -> ReachabilityCounts {
        let unreachable = self.failing_peers(from).len();
        ReachabilityCounts { unreachable, ..ReachabilityCounts::default() }
    }

    pub(super) fn state(&self) -> MigrationState {
        MigrationState::parse(&self.text, self.revision).unwrap()
    }

    pub(super) fn view(&self) -> ClusterView {
        ClusterView::new(self.state(), ClusterNode::all(self.records(), self.reports()))
    }

    /// Probes of node `from` report the direct path to node `to` as failed.
    pub(super) fn finds_failing(&mut self, from: usize, to: usize) {
        let (peer, failed) =
            (self.nodes[to - 1].subnet().base(), Fallback::Failed(Cause::NoAnswer));
        self.nodes[from - 1].failing.insert(peer, failed);
    }

    /// Node `from` reports this path to node `to`, and why.
    pub(super) fn reports_path(
        &mut self,
        from: usize,
        to: usize,
        path: Option<Path>,
        reason: &str,
    ) {
        let lease = self.nodes[to - 1].id();
        let (family, reason) = (Some(Family::V4), reason.to_owned());
        let exception = Exception { lease, family, path, reason, probing: false };
        self.nodes[from - 1].exceptions.push(exception);
    }
}

impl Machine {
    fn id(&self) -> LeaseId {
        LeaseId::new(format!("10.244.{}.0-24", self.number))
    }

    fn subnet(&self) -> Prefix {
        format!("10.244.{}.0/24", self.number).parse().unwrap()
    }

    fn public_ip(&self) -> std::net::IpAddr {
        format!("172.16.{}.{}", self.segment, self.number).parse().unwrap()
    }

    fn config(&self) -> NetworkConfig {
        let mut config = NetworkConfig::parse(self.doing.as_bytes()).unwrap();
        if let Some(rollout) = config.rollout.clone().filter(|it| !it.follows([self.public_ip()])) {
            config.backend.kind = rollout.from;
        }
        config
    }

    fn lease(&self) -> Lease {
        let config = self.config();
        let mac = MacAddr::derived_from(&self.number.to_string());
        let endpoint = Endpoint {
            subnet: self.subnet(),
            public_ip: self.public_ip(),
            backend: config.backend.kind.into(),
            vtep: config.has_tunnel().then_some(Vtep {
                vni: Some(1),
                mac,
                source: None,
                mixed: false,
            }),
        };
        Lease { id: self.id(), endpoints: vec![endpoint], created: 1, grant: Some(1) }
    }

    fn report(&self) -> NodeReport {
        let (config, ip) = (self.config(), self.public_ip());
        NodeReport {
            version: "0.1.0".into(),
            lease: self.id(),
            name: None,
            node: Node {
                interface: LinkName::new("eth0"),
                mtu: 1500,
                layer2: true,
                on_link: vec![Prefix::holding(ip, 24).unwrap()],
                uplinks: vec![Uplink { address: ip, public_ip: ip, source: ip, others: vec![] }],
                nexthops: false,
                firewalls: crate::model::node::Firewalls::default(),
                sysctls: crate::model::node::Sysctls::default(),
                kernel: crate::model::node::Release::default(),
                on_segment: Vec::new(),
            },
            subnets: vec![self.subnet(); if self.is_dual { 2 } else { 1 }],
            backend: config.backend.kind,
            mixed: config.mixed,
            config_revision: self.seen.unsigned_abs(),
            follows: true,
            pending: None,
            invalid: None,
            strict_filters: if self.strict { vec![LinkName::new("eth0")] } else { vec![] },
            pod_mtu: Some(1450),
            other_mtu: self.other_mtu.clone(),
            peers: PeerCounts::default(),
            reachability: ReachabilityCounts::default(),
            failing_peers: Vec::new(),
            groups: Vec::new(),
            refresh_seconds: Some(60),
            daemon: None,
            failing: self.failing.clone(),
            quality: self.quality,
            keeps_connections: self.keeps_connections,
            exceptions_total: self.exceptions.len() + self.unlisted,
            exceptions: self.exceptions.clone(),
        }
    }
}

pub(super) fn note(second: i64) -> Note {
    let at = Timestamp::from_second(1_795_269_720 + second).unwrap();
    Note { at, by: "root@n1".into() }
}

/// Carries out one step at once.
pub(super) fn step(world: &mut World, step: &Step) {
    let document = world.state().after(step, &note(0), None);
    world.put(document.text());
    world.follow();
}

pub(super) fn start(stage: Stage) -> Order {
    let (to, options) = (BackendType::HostGw, StageOptions::default());
    let percent = Some(stage.percent).filter(|percent| *percent > 0);
    Order::Start(Start { to, canary: stage.nodes, percent, options })
}

/// The nodes with a hash below `percent`.
pub(super) fn percent(percent: u8) -> Stage {
    Stage { percent, nodes: Vec::new() }
}

pub(super) fn named(node: &str) -> Stage {
    Stage { percent: 0, nodes: vec![node.to_owned()] }
}

#[test]
fn a_node_without_a_name_is_shown_by_its_public_ip() {
    let members = World::new(VXLAN, 1, 1).view().members;
    let names: Vec<String> = members.into_iter().map(|member| member.name).collect();
    assert_eq!(names, ["172.16.0.1", "172.16.1.2"]);
}

#[test]
fn a_named_node_is_known_by_its_name_and_own_public_ip() {
    let world = World::new(MIXED, 2, 0);
    let (mut records, mut reports) = (world.records(), world.reports());
    // The public IP in the lease may differ from the node's own.
    let lease = records[1].lease.as_mut().unwrap();
    lease.endpoints[0].public_ip = "203.0.113.7".parse().unwrap();
    reports[1].report.name = Some("worker-2".into());
    let view = ClusterView::new(world.state(), ClusterNode::all(records, reports));
    let member: &Member = &view.members[1];
    assert_eq!(
        (member.name.clone(), member.names().join(" ")),
        ("worker-2".into(), "172.16.0.2 worker-2".into())
    );
    let takes = |stage: Stage| view.following_at(&stage);
    assert_eq!(
        [named("worker-2"), named("172.16.0.2"), named("203.0.113.7")].map(takes),
        [1, 1, 0]
    );
}
