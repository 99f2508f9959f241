//! Daemons are replaced by others, as the guide has it: flannel's by ours and back, older ones by newer.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tweed_lab::{Backend, Stack};

use super::cases::{DAEMONS, Story};
use super::cluster::Cluster;
use super::{Programs, images, workload};
use crate::verdict::Counted;

/// Which of flannel's two manifests the cluster has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manifest {
    /// Made by kustomize. It selects pods by the labels by which ours does.
    Released,
    OfSource,
}

impl Manifest {
    fn file(self, cluster: &Cluster, programs: &Programs) -> Result<PathBuf> {
        if self == Self::OfSource {
            return Ok(programs.source_manifest());
        }
        let folder = programs.of_flannel("kube-flannel").display().to_string();
        let file = cluster.file("released.yml");
        std::fs::write(&file, cluster.kubectl(&format!("kustomize {folder}"))?)?;
        Ok(file)
    }

    /// Other selectors need another object: then the old one is deleted without its pods.
    fn change_to(self, cluster: &Cluster, manifest: &Path) -> Result<()> {
        if self == Self::OfSource {
            let here = "--namespace=kube-flannel";
            cluster.kubectl(&format!(
                "label pods {here} -l app=flannel k8s-app=flannel --overwrite"
            ))?;
            cluster.kubectl(&format!("delete {DAEMONS} --cascade=orphan"))?;
        }
        cluster.apply(manifest)?;
        if self == Self::OfSource {
            cluster.kubectl(&format!("rollout restart {DAEMONS}"))?;
        }
        cluster.wait_rolled_out(DAEMONS)
    }
}

/// The commands are those of docs/guides/kubernetes-install.md.
pub(super) fn there_and_back(programs: &Programs, manifest: Manifest) -> Result<Counted> {
    let cluster = Cluster::start(programs, Stack::V4)?;
    let flannel = manifest.file(&cluster, programs)?;
    cluster.apply(&flannel)?;
    cluster.wait_ready()?;
    let story = Story::of(cluster)?;
    let subnets = story.cluster.subnets()?;
    let counted = story.under_load(|probe| {
        probe.mark("to tweedd");
        let tweed = Path::new("config/kubernetes/tweed-keep-config.yml");
        manifest.change_to(&story.cluster, tweed).context("to tweedd")?;
        story.wait_for_config(false, Backend::Vxlan)?;
        // New pods, by the other plugin.
        workload::scale(&story.cluster, "new", 6)?;
        story.reach_each_other("new").context("new pods")?;
        probe.mark("back to flannel");
        manifest.change_to(&story.cluster, &flannel).context("back to flannel")?;
        probe.mark("handover");
        hand_over(&story.cluster)?;
        probe.mark("without the init container");
        story.cluster.kubectl(&format!("rollout undo {DAEMONS}"))?;
        story.cluster.wait_rolled_out(DAEMONS).context("rollout undo")
    })?;
    ensure!(story.cluster.subnets()? == subnets, "other subnets than {subnets:?}");
    for machine in &story.cluster.machines {
        let tables = machine.node().namespace().run("nft", &["list", "tables"])?;
        ensure!(!tables.contains("tweed"), "{} has tables of tweed: {tables}", machine.name());
        let nexthops = machine.node().ip("nexthop show")?;
        ensure!(nexthops.trim().is_empty(), "{} has nexthops: {nexthops}", machine.name());
    }
    story.reach_each_other("new")?;
    Ok(counted)
}

/// The older daemons and the newer ones also share a cluster, while one after the other is replaced.
pub(super) fn upgrade(programs: &Programs) -> Result<Counted> {
    let cluster = Cluster::start(programs, Stack::V4)?;
    let (file, image) = (programs.former.join("tweed.yml"), images::FORMER);
    let manifest = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let former = cluster.file("former.yml");
    let lines = manifest.lines().map(|line| match line.split_once("image: ") {
        Some((indent, _)) => format!("{indent}image: {image}\n"),
        None => format!("{line}\n"),
    });
    std::fs::write(&former, lines.collect::<String>())?;
    cluster.apply(&former)?;
    cluster.wait_ready()?;
    let story = Story::of(cluster)?;
    let subnets = story.cluster.subnets()?;
    let counted = story.under_load(|probe| {
        probe.mark("upgrade");
        story.cluster.apply(Path::new("config/kubernetes/tweed-keep-config.yml"))?;
        story.cluster.wait_rolled_out(DAEMONS).context("upgrade")?;
        story.wait_for_config(false, Backend::Vxlan)?;
        probe.mark("rollback");
        story.cluster.kubectl(&format!("rollout undo {DAEMONS}"))?;
        story.cluster.wait_rolled_out(DAEMONS).context("rollback")?;
        probe.mark("upgrade again");
        story.cluster.kubectl(&format!("rollout undo {DAEMONS}"))?;
        story.cluster.wait_rolled_out(DAEMONS).context("upgrade again")
    })?;
    ensure!(story.cluster.subnets()? == subnets, "other subnets than {subnets:?}");
    Ok(counted)
}

fn hand_over(cluster: &Cluster) -> Result<()> {
    let container = json!({
        "name": "handover",
        "image": images::TWEED,
        "command": ["tweedctl", "handover"],
        "securityContext": {"capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]}},
        "volumeMounts": [
            {"name": "run", "mountPath": "/run/flannel"},
            {"name": "state", "mountPath": "/var/lib/tweed"},
        ],
    });
    let volume = json!({"name": "state", "hostPath": {"path": "/var/lib/tweed"}});
    let add = |path: &str, value| json!({"op": "add", "path": format!("/spec/template/spec/{path}/-"), "value": value});
    let patch = json!([add("initContainers", container), add("volumes", volume)]).to_string();
    let [place, name, daemons] = DAEMONS.split(' ').collect::<Vec<_>>()[..] else {
        return Err(anyhow::anyhow!("no such place: {DAEMONS}"));
    };
    cluster.kubectl_of(&["patch", place, name, daemons, "--type=json", "--patch", &patch])?;
    cluster.wait_rolled_out(DAEMONS).context("handover")
}
