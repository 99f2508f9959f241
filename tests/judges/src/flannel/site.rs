//! Nodes with one etcd, each with a real flanneld or with `tweedd`.

use std::fmt::{Display, Formatter};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ipnetwork::IpNetwork;
use tweed_lab::{
    Backend, Connections, Daemon, DaemonPlan, Etcd, Family, Lab, Node, Pair, Path, Proxy, Segment,
    Stack, Worker, wait_for_paths,
};

use super::Programs;

const CONFIG: &str = "/coreos.com/network/config";
pub(super) const SUBNETS: &str = "/coreos.com/network/subnets/";
const REPORTS: &str = "/coreos.com/network/tweed/nodes/";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    Flanneld,
    Tweedd,
}

/// Where flanneld writes its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Firewall {
    Iptables,
    Nftables,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub(super) stack: Stack,
    pub(super) backend: Backend,
    pub(super) firewall: Firewall,
    /// `--ip-masq`, as manifests and units of both have it.
    pub(super) masquerade: bool,
}

pub(super) struct Site {
    pub(super) etcd: Etcd,
    pub(super) segment: Segment,
    pub(super) nodes: Vec<Node>,
    pub(super) setting: Setting,
    running: Vec<Daemon>,
    flanneld: std::path::PathBuf,
    pub(super) lab: Lab,
}

impl Setting {
    /// What flannel's own manifest has.
    pub(super) const SHIPPED: Self = Self {
        stack: Stack::V4,
        backend: Backend::Vxlan,
        firewall: Firewall::Iptables,
        masquerade: true,
    };

    pub(super) fn config(self) -> String {
        let (backend, nftables) = (self.backend.name(), self.firewall == Firewall::Nftables);
        let rest = format!(r#""EnableNFTables":{nftables},"Backend":{{"Type":"{backend}"}}"#);
        self.stack.config(&rest)
    }

    pub(super) fn path(self) -> Path {
        match self.backend {
            Backend::Vxlan => Path::Tunnel,
            Backend::HostGw => Path::Direct,
        }
    }
}

impl Display for Setting {
    fn fmt(&self, out: &mut Formatter<'_>) -> std::fmt::Result {
        let firewall = match self.firewall {
            Firewall::Iptables => "iptables",
            Firewall::Nftables => "nftables",
        };
        let stack = match self.stack {
            Stack::V4 => "IPv4",
            Stack::V6 => "IPv6",
            Stack::Dual => "dual stack",
        };
        let masquerade = if self.masquerade { "with" } else { "without" };
        write!(out, "{}, {stack}, {firewall}, {masquerade} --ip-masq", self.backend.name())
    }
}

impl Site {
    /// Nodes n1, n2, …, each with one of these programs that is ready, and a pod.
    pub(super) fn start(programs: &Programs, setting: Setting, run: &[Program]) -> Result<Self> {
        let lab = Lab::new(programs.binaries.clone())?;
        let etcd = lab.etcd()?;
        etcd.put(CONFIG, &setting.config())?;
        let segment = lab.segment(setting.stack.segment(1))?;
        let (nodes, running) = Default::default();
        let flanneld = programs.flanneld.clone();
        let mut site = Self { etcd, segment, nodes, setting, running, flanneld, lab };
        for program in run {
            site.join(*program)?;
        }
        site.wait_for_paths(|_, _| setting.path())?;
        Ok(site)
    }

    /// Adds a node with this program, and a pod.
    pub(super) fn join(&mut self, program: Program) -> Result<()> {
        let node = self.lab.node(&format!("n{}", self.nodes.len() + 1), &self.segment)?;
        let daemon = self.plan(&node, program).start()?;
        daemon.wait_ready()?;
        node.pod()?;
        self.nodes.push(node);
        self.running.push(daemon);
        Ok(())
    }

    fn plan(&self, node: &Node, program: Program) -> DaemonPlan {
        let plan = match program {
            Program::Flanneld => node.daemon(&self.etcd).with_program(&self.flanneld),
            Program::Tweedd => node.daemon(&self.etcd),
        };
        if self.setting.masquerade { plan.argument("--ip-masq") } else { plan }
    }

    /// Stops the daemon of the node, starts the other one, and waits until it is ready.
    pub(super) fn replace(&mut self, index: usize, program: Program) -> Result<()> {
        self.daemon(index)?.stop()?;
        let daemon = self.plan(self.node(index)?, program).start()?;
        daemon.wait_ready()?;
        *self.running.get_mut(index).context("no such daemon")? = daemon;
        Ok(())
    }

    /// From `tweedd` to flanneld, as docs/migration.md describes it.
    pub(super) fn give_back(&mut self, index: usize) -> Result<()> {
        self.replace(index, Program::Flanneld)?;
        let endpoints = format!("--etcd-endpoints={}", self.etcd.endpoints().join(","));
        let file = format!("--subnet-file={}", self.node(index)?.subnet_file().display());
        let done = self.tweedctl(index, &["handover", &file, &endpoints])?;
        self.is_clean(index).with_context(|| format!("after handover: {done}"))
    }

    /// Nothing of tweed is left on the node and in etcd.
    fn is_clean(&self, index: usize) -> Result<()> {
        let node = self.node(index)?;
        let tables = node.namespace().run("nft", &["list", "tables"])?;
        ensure!(!tables.contains("tweed"), "{}: {tables}", node.name());
        let nexthops = node.ip("nexthop show")?;
        ensure!(nexthops.is_empty(), "{}: {nexthops}", node.name());
        for family in self.setting.stack.families() {
            let routes = node.ip(format!("{} route show proto 241", family.flag()))?;
            ensure!(routes.is_empty(), "{}: {routes}", node.name());
            let own = format!("{:?}", node.address(*family)?.to_string());
            let reports = self.etcd.list(REPORTS)?;
            let ours = reports.iter().find(|report| report.value.contains(&own));
            ensure!(ours.is_none(), "{}: {ours:?}", node.name());
        }
        Ok(())
    }

    pub(super) fn restart(&mut self, index: usize) -> Result<Duration> {
        self.running.get_mut(index).context("no such daemon")?.restart()
    }

    pub(super) fn daemon(&self, index: usize) -> Result<&Daemon> {
        self.running.get(index).context("no such daemon")
    }

    pub(super) fn node(&self, index: usize) -> Result<&Node> {
        self.nodes.get(index).context("no such node")
    }

    /// The output of `tweedctl` on the node; an error if it fails.
    pub(super) fn tweedctl(&self, index: usize, arguments: &[&str]) -> Result<String> {
        let output = self.node(index)?.tweedctl(arguments)?;
        let [text, complaint] =
            [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it).into_owned());
        ensure!(
            output.status.success(),
            "tweedctl {arguments:?}: {}: {text}{complaint}",
            output.status
        );
        Ok(text)
    }

    /// `tweedctl migrate` from the first node, with the endpoints of etcd.
    pub(super) fn migrate(&self, words: &str) -> Result<String> {
        let endpoints = format!("--etcd-endpoints={}", self.etcd.endpoints().join(","));
        let arguments = ["migrate", &endpoints].into_iter().chain(words.split(' '));
        self.tweedctl(0, &arguments.collect::<Vec<_>>())
    }

    /// All subnets of the node.
    pub(super) fn subnets(&self, index: usize) -> Result<Vec<IpNetwork>> {
        Ok(self.node(index)?.subnet_env()?.subnets())
    }

    /// Waits until every node uses the `expected` path to every other, in all families.
    pub(super) fn wait_for_paths(&self, expected: impl Fn(usize, usize) -> Path) -> Result<()> {
        wait_for_paths(&self.nodes, self.setting.stack, expected).map(drop)
    }

    /// Waits until a ping from each pod to each other one is answered.
    pub(super) fn wait_until_all_answer(&self) -> Result<()> {
        let families = self.setting.stack.families();
        families.iter().try_for_each(|family| self.lab.all_reach_each_other(*family))
    }

    /// Every ordered pair of pods on different nodes, in all families.
    pub(super) fn pairs(&self) -> Vec<Pair> {
        self.setting.stack.families().iter().flat_map(|family| self.lab.pairs(*family)).collect()
    }

    /// Connections of every kind from each node to the next; kube-proxy's rules are those of its
    /// mode that fits the firewall.
    pub(super) fn connections(&self) -> Result<Connections> {
        let outside = self.lab.node("outside", &self.segment)?;
        if !self.setting.masquerade {
            // Then a pod's address must be known outside.
            for (index, node) in self.nodes.iter().enumerate() {
                for subnet in self.subnets(index)? {
                    let gateway = node.address(Family::of(subnet.ip()))?;
                    outside.ip(format!("route add {subnet} via {gateway}"))?;
                }
            }
        }
        let proxy = match self.setting.firewall {
            Firewall::Iptables => Proxy::KubeIptables,
            Firewall::Nftables => Proxy::KubeNftables,
        };
        let pods = self.lab.pods();
        let workers = self.nodes.iter().zip(&pods);
        let workers =
            workers.map(|(node, pod)| Worker { node: node.clone(), pod: pod.clone(), proxy });
        let count = self.nodes.len();
        let pairs = (0..count).map(|from| (from, (from + 1) % count));
        Connections::prepare(workers.collect(), pairs, &outside)
    }

    /// The leases as they stand in etcd.
    pub(super) fn leases(&self) -> Result<Vec<tweed_lab::Entry>> {
        self.etcd.list(SUBNETS)
    }

    /// The lease of the node.
    pub(super) fn lease(&self, index: usize) -> Result<tweed_lab::Entry> {
        let Some(subnet) = self.subnets(index)?.first().copied() else { bail!("no subnet") };
        let key = subnet.to_string().replace('/', "-");
        let is_own = |entry: &tweed_lab::Entry| entry.key.contains(&key);
        self.leases()?.into_iter().find(is_own).with_context(|| format!("no lease of {subnet}"))
    }
}
