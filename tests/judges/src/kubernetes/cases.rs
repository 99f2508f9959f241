//! The cases, each of which begins where the one before has ended.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tweed_lab::{
    Backend, Family, GREETING, PATIENCE, Pair, Pod, Probe, ProbePlan, Stack, Tally, Traffic,
    eventually,
};

use super::Programs;
use super::cluster::{Cluster, items, text};
use super::machine::Machine;
use super::{names, workload};
use crate::verdict::Counted;

/// Packets per second and ordered pair of pods.
pub(super) const RATE: u32 = 1000;
/// The pods that the cases look at, one on each node.
pub(super) const ECHO: &str = "echo";
/// The daemons, and what they read, for kubectl.
pub(super) const DAEMONS: &str = "--namespace=kube-flannel daemonset kube-flannel-ds";
const CONFIG: [&str; 3] = ["--namespace=kube-flannel", "configmap", "kube-flannel-cfg"];

pub(super) struct Story {
    pub(super) cluster: Cluster,
}

type Case = (&'static str, fn(&mut Story) -> Result<Counted>);

impl Story {
    pub(super) const CASES: &[Case] = &[
        ("pods on three nodes reach each other", |story| story.under_load(|_| Ok(()))),
        ("services by kube-proxy", |story| story.services_answer()),
        ("0 → 60 → 0 pods leave nothing", |story| story.pods_leave_nothing()),
        ("vxlan → host-gw → vxlan by edits", |story| {
            story.under_load(|probe| story.flip(probe, || Ok(())))
        }),
        ("rollout restart", |story| story.rollout_restart()),
        ("a node is deleted and joins again", Self::node_joins_again),
        ("a node loses its power", Self::reboot),
        ("a node loses its power while the API server is away", Self::reboot_without_server),
        ("names by CoreDNS, also during a flip", |story| names::resolve(story)),
    ];

    pub(super) fn begin(
        programs: &Programs,
        stack: Stack,
        story: &mut Option<Self>,
    ) -> Result<Counted> {
        let cluster = Cluster::start(programs, stack)?;
        let begun = Instant::now();
        if stack == Stack::V4 {
            install_as_the_readme(&cluster)?;
        } else {
            cluster.apply(&manifest_for(&cluster)?)?;
        }
        cluster.wait_ready()?;
        cluster.wait_rolled_out(DAEMONS)?;
        let ready = begun.elapsed();
        *story = Some(Self::of(cluster)?);
        Ok(remark(format!("Ready {:.0} s after the manifest was applied", ready.as_secs_f64())))
    }

    /// A cluster that has a network of pods gets one pod on each node.
    pub(super) fn of(cluster: Cluster) -> Result<Self> {
        workload::on_each_node(&cluster, ECHO)?;
        Ok(Self { cluster })
    }

    /// All pods of this name.
    pub(super) fn reach_each_other(&self, name: &str) -> Result<()> {
        self.load(&workload::pods(&self.cluster, name)?)?.finish().map(drop)
    }

    fn services_answer(&self) -> Result<Counted> {
        let (services, port) = workload::service(&self.cluster, ECHO)?;
        let answers = |from: &tweed_lab::Namespace, to: SocketAddr| {
            eventually(PATIENCE, || {
                let answer = from.get(to, "/")?;
                ensure!(answer.body == GREETING, "{to}: {} {}", answer.status, answer.body);
                Ok(())
            })
        };
        let mut requests = 0;
        // Each of the three pods behind the service is hit, by chance.
        for _ in 0..10 {
            for service in &services {
                for pod in workload::pods(&self.cluster, ECHO)? {
                    answers(pod.namespace(), (*service, 80).into())?;
                    requests += 1;
                }
                for machine in &self.cluster.machines {
                    answers(machine.node().namespace(), (*service, 80).into())?;
                    let node = machine.node().address(Family::of(*service))?;
                    answers(self.cluster.control.namespace(), (node, port).into())?;
                    requests += 2;
                }
            }
        }
        Ok(remark(format!("{requests} requests from pods, hosts and outside")))
    }

    fn pods_leave_nothing(&self) -> Result<Counted> {
        const MANY: &str = "many";
        let remains = || self.cluster.machines.iter().map(remains).collect::<Result<Vec<_>>>();
        let before = remains()?;
        workload::scale(&self.cluster, MANY, 60)?;
        let during = remains()?;
        ensure!(during != before, "60 pods left no trace: {during:?}");
        workload::scale(&self.cluster, MANY, 0)?;
        eventually(PATIENCE * 2, || {
            let after = remains()?;
            ensure!(after == before, "before {before:?}, after {after:?}");
            Ok(())
        })?;
        let sums: usize = before.iter().flatten().sum();
        Ok(remark(format!("{sums} reservations and interfaces, before and after")))
    }

    /// `judge` runs after each edit.
    pub(super) fn flip(&self, probe: &Probe, judge: impl Fn() -> Result<()>) -> Result<()> {
        for (name, mixed, backend) in [
            ("Mixed on", true, Backend::Vxlan),
            ("host-gw", true, Backend::HostGw),
            ("Mixed off", false, Backend::HostGw),
            ("Mixed on again", true, Backend::HostGw),
            ("vxlan", true, Backend::Vxlan),
            ("Mixed off at the end", false, Backend::Vxlan),
        ] {
            probe.mark(name);
            self.write_config(mixed, backend).context(name)?;
            self.wait_for_config(mixed, backend).context(name)?;
            self.cluster.wait_for_routes(backend).context(name)?;
            probe.run_for(Duration::from_secs(2));
            judge().context(name)?;
        }
        Ok(())
    }

    pub(super) fn write_config(&self, mixed: bool, backend: Backend) -> Result<()> {
        let rest = format!(r#""Mixed":{mixed},"Backend":{{"Type":"{}"}}"#, backend.name());
        let config = self.cluster.stack.config(&rest);
        let patch = json!({"data": {"net-conf.json": config}}).to_string();
        let patch = [&["patch"], &CONFIG[..], &["--type=merge", "--patch", &patch]].concat();
        self.cluster.kubectl_of(&patch).map(drop)
    }

    /// Kubelets write the edit into the pods after a while.
    pub(super) fn wait_for_config(&self, mixed: bool, backend: Backend) -> Result<()> {
        eventually(PATIENCE * 2, || {
            for machine in &self.cluster.machines {
                let status = self.status(machine)?;
                let is_mixed = status.pointer("/mixed").and_then(Value::as_bool);
                let is = text(&status, "/backend");
                let is_so = is_mixed == Some(mixed) && is == backend.name();
                ensure!(is_so, "{}: mixed {is_mixed:?}, backend {is}", machine.name());
            }
            Ok(())
        })
        .map(drop)
    }

    fn status(&self, machine: &Machine) -> Result<Value> {
        let tweedctl = self.cluster.tweedctl.display().to_string();
        Ok(serde_json::from_str(&machine.host().run(&tweedctl, &["status", "-o", "json"])?)?)
    }

    fn rollout_restart(&self) -> Result<Counted> {
        self.under_load(|_| {
            self.cluster.kubectl(&format!("rollout restart {DAEMONS}"))?;
            self.cluster.wait_rolled_out(DAEMONS)
        })
    }

    /// The node gets another subnet, so its pods are deleted.
    fn node_joins_again(&mut self) -> Result<Counted> {
        let before = self.cluster.subnets()?;
        self.change_last(|story, last| {
            story.cluster.kubectl(&format!("delete node {last}"))?;
            story.with_last(Machine::restart_kubelet)?;
            story.cluster.wait_ready()?;
            let here = format!("--field-selector=spec.nodeName={last}");
            story.cluster.kubectl(&format!("delete pods -l app={ECHO} {here}"))?;
            ensure!(story.cluster.subnets()? != before, "{last} has the same subnet");
            Ok(())
        })
    }

    fn reboot(&mut self) -> Result<Counted> {
        self.change_last(|story, _| {
            story.with_last(|machine, _| machine.cut_power())?;
            story.with_last(Machine::boot)
        })
    }

    fn reboot_without_server(&mut self) -> Result<Counted> {
        self.change_last(|story, _| {
            story.cluster.stop_server()?;
            story.with_last(|machine, _| machine.cut_power())?;
            story.with_last(Machine::boot)?;
            std::thread::sleep(Duration::from_secs(20));
            story.cluster.start_server()
        })
    }

    fn with_last(
        &mut self,
        change: impl FnOnce(&mut Machine, &Cluster) -> Result<()>,
    ) -> Result<()> {
        let mut machine = self.cluster.machines.pop().context("no machine")?;
        let changed = change(&mut machine, &self.cluster);
        self.cluster.machines.push(machine);
        changed
    }

    /// All nodes are Ready, and new pods on all of them reach each other.
    fn back_to_normal(&self) -> Result<()> {
        self.cluster.wait_ready()?;
        self.cluster.wait_rolled_out(DAEMONS)?;
        self.cluster.wait_for_routes(Backend::Vxlan)?;
        self.cluster.wait_rolled_out(&format!("daemonset {ECHO}"))?;
        // A pod may end and start again while its node comes back.
        eventually(PATIENCE * 2, || {
            let pods = self.cluster.get(&format!("pods -l app={ECHO}"))?;
            let running =
                items(&pods).filter(|pod| text(pod, "/status/phase") == "Running").count();
            let wanted = self.cluster.machines.len();
            ensure!(running == wanted, "{running} pods run, not {wanted}");
            self.under_load(|_| Ok(())).map(drop)
        })
        .map(drop)
    }

    /// Traffic between pods.
    fn load(&self, pods: &[Pod]) -> Result<Load> {
        let pairs = workload::pairs(&self.cluster, pods, pods);
        Load::start(&pairs, &ProbePlan::new(&pairs, RATE))
    }

    /// Traffic between all pods during a change, of which nothing may be lost.
    pub(super) fn under_load(&self, change: impl FnOnce(&Probe) -> Result<()>) -> Result<Counted> {
        let load = self.load(&workload::pods(&self.cluster, ECHO)?)?;
        change(&load.probe)?;
        load.finish()
    }

    /// A change of the last node, during which the pods of the others lose nothing.
    fn change_last(
        &mut self,
        change: impl FnOnce(&mut Self, &str) -> Result<()>,
    ) -> Result<Counted> {
        let last = self.cluster.machines.last().context("no machine")?.name().to_owned();
        let mut pods = workload::pods(&self.cluster, ECHO)?;
        pods.retain(|pod| pod.node() != last);
        let load = self.load(&pods)?;
        change(self, &last)?;
        let counted = load.finish()?;
        self.back_to_normal()?;
        Ok(counted)
    }
}

/// Packets, and streams and requests by TCP.
pub(super) struct Load {
    probe: Probe,
    traffic: Traffic,
}

impl Load {
    pub(super) fn start(pairs: &[Pair], packets: &ProbePlan) -> Result<Self> {
        let traffic = Traffic::start(pairs)?;
        let probe = packets.start()?;
        probe.run_for(Duration::from_secs(1));
        Ok(Self { probe, traffic })
    }

    pub(super) fn probe(&self) -> &Probe {
        &self.probe
    }

    pub(super) fn finish(self) -> Result<Counted> {
        let (counted, tally) = self.count()?;
        ensure!(tally.failed == 0, "{tally:?}");
        Ok(counted)
    }

    /// Requests, each by a new connection, may fail.
    pub(super) fn finish_established(self) -> Result<Counted> {
        self.count().map(|(counted, _)| counted)
    }

    fn count(self) -> Result<(Counted, Tally)> {
        self.probe.run_for(Duration::from_secs(1));
        let report = self.probe.finish()?;
        let tally = self.traffic.finish()?;
        ensure!(report.lost() == 0, "lost packets:\n{report}");
        ensure!(tally.broken == 0, "{tally:?}");
        let remark = format!("{} messages in streams, {} pages", tally.echoes, tally.pages);
        Ok((Counted { packets: report.total(), remark, ..Counted::default() }, tally))
    }
}

/// Runs the README's commands, as they are written.
pub(super) fn install_as_the_readme(cluster: &Cluster) -> Result<()> {
    let readme = std::fs::read_to_string("README.md").context("README.md")?;
    let mut blocks = readme.split("\n```\n");
    let commands = blocks.find(|block| block.contains("| kubectl apply -f -"));
    cluster.shell(commands.context("the README has no command that applies a manifest")?)
}

/// The shipped one, with the networks of the cluster's stack in its network config.
fn manifest_for(cluster: &Cluster) -> Result<PathBuf> {
    const SHIPPED: &str = "config/kubernetes/tweed.yml";
    const NETWORK: &str = r#""Network": "10.244.0.0/16","#;
    let shipped = std::fs::read_to_string(SHIPPED).context(SHIPPED)?;
    ensure!(shipped.contains(NETWORK), "{SHIPPED} has another network");
    let config = cluster.stack.config("");
    let networks = config.trim_start_matches('{').trim_end_matches('}');
    let file = cluster.file("networks.yml");
    std::fs::write(&file, shipped.replace(NETWORK, networks))?;
    Ok(file)
}

pub(super) fn remark(remark: String) -> Counted {
    Counted { remark, ..Counted::default() }
}

/// The number of reservations of addresses and of interfaces on the bridge.
fn remains(machine: &Machine) -> Result<[usize; 2]> {
    let reserved = machine.host().list("/var/lib/cni/networks/cbr0")?;
    let reserved = reserved.iter().filter(|name| name.parse::<std::net::IpAddr>().is_ok()).count();
    let ports = machine.node().ip("-brief link show master cni0")?.lines().count();
    Ok([reserved, ports])
}
