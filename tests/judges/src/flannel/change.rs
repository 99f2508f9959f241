//! Nodes that change from flanneld to `tweedd` and back, under traffic.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tweed_lab::{Backend, Connections, Kind, Node, PATIENCE, Path, Probe, Traffic, eventually};

use super::Programs;
use super::site::{Firewall, Program, Setting, Site};
use crate::verdict::{Counted, all_open};

/// Packets per second and ordered pair of pods, in each family.
const RATE: u32 = 1000;
/// Between two steps.
const PAUSE: Duration = Duration::from_millis(500);

/// What runs during a change.
struct Load {
    probe: Probe,
    traffic: Traffic,
    connections: Connections,
}

impl Load {
    fn start(site: &Site) -> Result<Self> {
        let pairs = site.pairs();
        let mut connections = site.connections()?;
        connections.open()?;
        let traffic = Traffic::start(&pairs)?;
        let probe = site.lab.probe(&pairs, RATE)?;
        probe.run_for(PAUSE);
        Ok(Self { probe, traffic, connections })
    }

    /// One step; connections of earlier steps stay open.
    fn step(&mut self, name: &str, step: impl FnOnce() -> Result<()>) -> Result<()> {
        self.probe.mark(name);
        step().with_context(|| name.to_owned())?;
        self.probe.run_for(PAUSE);
        self.connections.open().with_context(|| format!("connections after {name}"))
    }

    /// Connections that were masqueraded before `tweedd` started on their node end with the first
    /// change of the path, as docs/masquerade.md explains. Nodes changed in order, and each step
    /// before opened one connection of each kind per node. Returns how many ended.
    fn take_old_ones(&self) -> Result<usize> {
        let mut ended = 0;
        for ((kind, node), outcome) in self.connections.take()? {
            let old = match kind {
                Kind::OutsideToPod | Kind::HostToService => node.trim_start_matches('n').parse()?,
                Kind::HostToPod | Kind::PodToHost | Kind::PodToOutside => 0,
            };
            let broken = outcome.broken;
            ensure!(broken.len() <= old, "more than the {old} old ones ended: {broken:?}");
            ended += broken.len();
        }
        Ok(ended)
    }

    fn finish(self) -> Result<Counted> {
        let connections = all_open(&self.connections.take()?)?;
        let report = self.probe.finish()?;
        let tally = self.traffic.finish()?;
        ensure!(report.lost() == 0, "lost packets:\n{report}");
        ensure!(tally.broken == 0 && tally.failed == 0, "{tally:?}");
        let remark = format!("{} messages in streams, {} pages", tally.echoes, tally.pages);
        Ok(Counted { packets: report.total(), connections, remark })
    }

    /// The end of a story in which this number of [old ones](Self::take_old_ones) ended.
    fn finish_without(self, old: usize) -> Result<Counted> {
        let counted = self.finish()?;
        let old = format!("{old} connections that flanneld's rules had masqueraded");
        let remark = format!("{}; {old} ended at the flip, as documented", counted.remark);
        Ok(Counted { remark, ..counted })
    }
}

/// Three nodes of flanneld; each gets `tweedd`, one after the other, and then flanneld again.
pub(super) fn there_and_back(programs: &Programs, setting: Setting) -> Result<Counted> {
    let mut site = Site::start(programs, setting, &[Program::Flanneld; 3])?;
    let mut load = Load::start(&site)?;
    let before = site.nodes.iter().map(Node::snapshot).collect::<Result<Vec<_>>>()?;
    let leases = leases(&site)?;
    let all = 0..site.nodes.len();
    for index in all.clone() {
        let name = format!("n{} to tweedd", index + 1);
        load.step(&name, || {
            site.replace(index, Program::Tweedd)?;
            unchanged(&site, &leases)
        })?;
    }
    for index in all {
        let name = format!("n{} to flanneld", index + 1);
        load.step(&name, || {
            site.give_back(index)?;
            unchanged(&site, &leases)
        })?;
    }
    for (node, before) in site.nodes.iter().zip(&before) {
        let mut changes = before.changes(&node.snapshot()?);
        // The address of the tunnel stays there for connections of the host, until the next boot.
        changes.retain(|line| !line.split_whitespace().any(|word| word == "lo"));
        ensure!(changes.is_empty(), "{} is not as it was: {changes:#?}", node.name());
    }
    load.step("a node of flanneld joins", || {
        site.join(Program::Flanneld)?;
        site.wait_for_paths(|_, _| setting.path())?;
        site.wait_until_all_answer()
    })?;
    load.finish()
}

/// Keys and values without the ids of etcd's leases.
fn leases(site: &Site) -> Result<Vec<(String, String)>> {
    Ok(site.leases()?.into_iter().map(|entry| (entry.key, entry.value)).collect())
}

fn unchanged(site: &Site, before: &[(String, String)]) -> Result<()> {
    let now = leases(site)?;
    ensure!(now == before, "other leases: {now:#?}, not {before:#?}");
    Ok(())
}

/// Four nodes of flanneld on vxlan; in the end, four of flanneld on host-gw.
pub(super) fn whole_story(programs: &Programs) -> Result<Counted> {
    let mut site = Site::start(programs, Setting::SHIPPED, &[Program::Flanneld; 4])?;
    let mut load = Load::start(&site)?;
    let all = 0..site.nodes.len();
    for index in all.clone() {
        load.step(&format!("n{} to tweedd", index + 1), || site.replace(index, Program::Tweedd))?;
    }
    load.step("start, half of the nodes", || {
        wait_for_plan(&site)?;
        site.migrate("start --to host-gw --percent 50").map(drop)
    })?;
    load.step("all nodes", || {
        site.migrate("next --percent 100")?;
        site.wait_for_paths(|_, _| Path::Direct)
    })?;
    let old = load.take_old_ones()?;
    load.step("finish", || site.migrate("finish").map(drop))?;
    site.setting = Setting { backend: Backend::HostGw, ..site.setting };
    for index in all {
        load.step(&format!("n{} to flanneld", index + 1), || site.give_back(index))?;
    }
    load.step("a node of flanneld joins", || {
        site.join(Program::Flanneld)?;
        site.wait_for_paths(|_, _| Path::Direct)?;
        site.wait_until_all_answer()
    })?;
    load.finish_without(old)
}

/// A node counts for `migrate` once it has sent its report.
fn wait_for_plan(site: &Site) -> Result<()> {
    eventually(PATIENCE, || site.migrate("plan --to host-gw").map(drop)).map(drop)
}

/// One of four nodes keeps flanneld on vxlan. It keeps its entries of peers that go to host-gw, but
/// reads none of them at its start: so `migrate` refuses, and with `--force` nothing is lost as long
/// as it restarts only after the others are back.
pub(super) fn story_with_one_that_stays(programs: &Programs) -> Result<Counted> {
    const STAYS: usize = 3;
    let setting = Setting { firewall: Firewall::Nftables, ..Setting::SHIPPED };
    let mut site = Site::start(programs, setting, &[Program::Flanneld; 4])?;
    let mut load = Load::start(&site)?;
    for index in 0..STAYS {
        load.step(&format!("n{} to tweedd", index + 1), || site.replace(index, Program::Tweedd))?;
    }
    load.step("the one that stays restarts", || {
        site.restart(STAYS)?;
        site.wait_for_paths(|_, _| Path::Tunnel)
    })?;
    load.step("migrate refuses", || {
        let refused = site.migrate("start --to host-gw --percent 100");
        let reason = refused.err().context("it started")?.to_string();
        ensure!(reason.contains("sends no report"), "{reason}");
        site.wait_for_paths(|_, _| Path::Tunnel)
    })?;
    let stays = |from: usize, to: usize| from == STAYS || to == STAYS;
    load.step("migrate with --force", || {
        site.migrate("start --to host-gw --percent 100 --force")?;
        site.wait_for_paths(|from, to| if stays(from, to) { Path::Tunnel } else { Path::Direct })
    })?;
    let old = load.take_old_ones()?;
    load.step("back", || {
        site.migrate("rollback")?;
        site.migrate("finish")?;
        site.wait_for_paths(|_, _| Path::Tunnel)
    })?;
    load.step("the one that stays restarts again", || {
        site.restart(STAYS)?;
        site.wait_for_paths(|_, _| Path::Tunnel)
    })?;
    for index in 0..STAYS {
        load.step(&format!("n{} to flanneld again", index + 1), || site.give_back(index))?;
    }
    load.finish_without(old)
}
