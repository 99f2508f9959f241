//! Network policies: kube-network-policies, which flannel's chart and ours install next to the daemon.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tweed_lab::{PATIENCE, Pair, Probe, ProbePlan, Report, Stack, eventually};

use super::cases::{DAEMONS, ECHO, Load, RATE, Story};
use super::cluster::Cluster;
use super::helm::Helm;
use super::takeover::{install_chart, upgrade_to_tweed};
use super::{Programs, images, workload};
use crate::verdict::{Counted, Verdicts};

/// Pods that accept connections only from `FRIEND`, and two kinds of pods that connect to them; one of
/// each on every node.
const GUARDED: &str = "guarded";
const FRIEND: &str = "friend";
const OTHER: &str = "other";
/// Packets per second and pair that a policy drops: the program examines each of them.
const REFUSED_RATE: u32 = 20;
/// A connection that is not accepted within this time is refused.
const REFUSED_AFTER: Duration = Duration::from_millis(500);

struct Site {
    story: Story,
}

type Case = (&'static str, fn(&Site) -> Result<Counted>);

impl Site {
    const CASES: &[Case] = &[
        ("vxlan → host-gw → vxlan by edits", |site| {
            site.under_load(|probe| site.story.flip(probe, || site.are_refused()))
        }),
        ("rollout restart", |site| {
            site.under_load(|_| {
                site.story.cluster.kubectl(&format!("rollout restart {DAEMONS}"))?;
                site.story.cluster.wait_rolled_out(DAEMONS)
            })
        }),
        ("without them, all pods reach each other", Self::remove_policies),
    ];

    /// Policies apply with flannel's chart, and then with ours.
    fn begin(programs: &Programs, site: &mut Option<Self>) -> Result<Counted> {
        let cluster = Cluster::start(programs, Stack::V4)?;
        let flags = format!("--set netpol.enabled=true,netpol.image.tag={}", images::TAG);
        install_chart(&cluster, programs, Helm::V4, &flags)?;
        cluster.wait_ready()?;
        let story = Story::of(cluster)?;
        for name in [GUARDED, FRIEND, OTHER] {
            workload::on_each_node(&story.cluster, name)?;
        }
        let site = site.insert(Self { story });
        site.are_accepted(OTHER).context("before there is a policy")?;
        site.apply_policies()?;
        site.under_load(|_| upgrade_to_tweed(&site.story.cluster, Helm::V4))
    }

    fn apply_policies(&self) -> Result<()> {
        let policy = |name: &str, ingress| {
            self.story.cluster.apply_object(&json!({
                "apiVersion": "networking.k8s.io/v1",
                "kind": "NetworkPolicy",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {
                    "podSelector": {"matchLabels": {"app": GUARDED}},
                    "policyTypes": ["Ingress"],
                    "ingress": ingress,
                },
            }))
        };
        policy("none", json!([]))?;
        policy("friends", json!([{"from": [{"podSelector": {"matchLabels": {"app": FRIEND}}}]}]))?;
        eventually(PATIENCE, || self.are_refused())?;
        self.are_accepted(FRIEND)
    }

    fn remove_policies(&self) -> Result<Counted> {
        self.story.cluster.kubectl("delete networkpolicy none friends")?;
        self.are_accepted(OTHER)?;
        Ok(Counted::default())
    }

    /// During a change, pods without a policy and those that one allows lose nothing, and no packet that
    /// one refuses arrives.
    fn under_load(&self, change: impl FnOnce(&Probe) -> Result<()>) -> Result<Counted> {
        let cluster = &self.story.cluster;
        let allowed = self.pairs(FRIEND)?;
        let allowed = Load::start(&allowed, &ProbePlan::new(&allowed, RATE).established())?;
        let refused = ProbePlan::new(&self.pairs(OTHER)?, REFUSED_RATE).cold().start()?;
        let echo = workload::pods(cluster, ECHO)?;
        let others = workload::pairs(cluster, &echo, &echo);
        let others = Load::start(&others, &ProbePlan::new(&others, RATE))?;
        change(others.probe())?;
        self.are_refused()?;
        self.are_accepted(FRIEND)?;
        let mut counted = others.finish().context("pods without a policy")?;
        // While the program restarts, new connections are dropped.
        let allowed = allowed.finish_established().context("allowed by a policy")?;
        let refused = all_dropped(&refused.finish()?)?;
        counted.packets.sent += allowed.packets.sent;
        counted.remark =
            format!("{refused} packets refused, none of them arrived; {}", allowed.remark);
        Ok(counted)
    }

    /// From pods of this name to guarded ones on other nodes.
    fn pairs(&self, from: &str) -> Result<Vec<Pair>> {
        let cluster = &self.story.cluster;
        let (from, to) = (workload::pods(cluster, from)?, workload::pods(cluster, GUARDED)?);
        Ok(workload::pairs(cluster, &from, &to))
    }

    fn are_accepted(&self, from: &str) -> Result<()> {
        for pair in self.pairs(from)? {
            eventually(PATIENCE, || connect(&pair)).with_context(|| pair.to_string())?;
        }
        Ok(())
    }

    fn are_refused(&self) -> Result<()> {
        for pair in self.pairs(OTHER)? {
            ensure!(connect(&pair).is_err(), "{pair}: connected against the policy");
        }
        Ok(())
    }
}

pub(super) fn run(programs: &Programs, verdicts: &mut Verdicts) -> Result<()> {
    let mut site = None;
    verdicts.run("network policies: flannel's chart → tweed's chart", || {
        Site::begin(programs, &mut site)
    })?;
    for (name, play) in Site::CASES {
        let case = format!("network policies: {name}");
        verdicts.run(&case, || play(site.as_ref().context("there is no cluster")?))?;
    }
    Ok(())
}

/// To the web server of the pod.
fn connect(pair: &Pair) -> Result<()> {
    let target = SocketAddr::new(pair.to.address(pair.family)?, 80);
    let stream =
        pair.from.namespace().within(|| TcpStream::connect_timeout(&target, REFUSED_AFTER))?;
    stream.map(drop).with_context(|| format!("connecting to {target}"))
}

fn all_dropped(report: &Report) -> Result<u64> {
    for pair in &report.pairs {
        let arrived = pair.count.sent - pair.count.lost;
        ensure!(arrived == 0, "{} → {}: {arrived} packets arrived", pair.from, pair.to);
    }
    Ok(report.lost())
}
