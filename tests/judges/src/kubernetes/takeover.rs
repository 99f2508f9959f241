//! Daemons are replaced by others, as the guide has it: flannel's by ours and back, older ones by newer.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tweed_lab::{Backend, Stack};

use super::cases::{DAEMONS, Story};
use super::cluster::Cluster;
use super::helm::Helm;
use super::{Programs, images, workload};
use crate::verdict::Counted;

const GUIDE: &str = "docs/guides/kubernetes-install.md";

/// How flannel came into the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Made by kustomize. It selects pods by the labels by which ours does.
    ReleasedManifest,
    ManifestOfSource,
    Chart(Helm),
}

impl Origin {
    fn install(self, cluster: &Cluster, programs: &Programs) -> Result<()> {
        match self {
            Self::Chart(helm) => install_chart(cluster, programs, helm, ""),
            Self::ReleasedManifest | Self::ManifestOfSource => {
                cluster.apply(&self.manifest(cluster, programs)?)
            }
        }
    }

    fn change_to_tweed(self, cluster: &Cluster) -> Result<()> {
        match self {
            Self::Chart(helm) => upgrade_to_tweed(cluster, helm),
            Self::ReleasedManifest | Self::ManifestOfSource => {
                self.change_to(cluster, Path::new("config/kubernetes/tweed-keep-config.yml"))
            }
        }
    }

    fn change_back(self, cluster: &Cluster, programs: &Programs) -> Result<()> {
        match self {
            Self::Chart(helm) => {
                cluster.shell_with(helm, "helm rollback flannel --namespace kube-flannel")?;
                cluster.wait_rolled_out(DAEMONS)
            }
            Self::ReleasedManifest | Self::ManifestOfSource => {
                self.change_to(cluster, &self.manifest(cluster, programs)?)
            }
        }
    }

    fn manifest(self, cluster: &Cluster, programs: &Programs) -> Result<PathBuf> {
        if self == Self::ManifestOfSource {
            return Ok(programs.source_manifest());
        }
        let folder = programs.of_flannel("kube-flannel").display().to_string();
        let file = cluster.file("released.yml");
        std::fs::write(&file, cluster.kubectl(&format!("kustomize {folder}"))?)?;
        Ok(file)
    }

    /// Other selectors need another object: then the old one is deleted without its pods.
    fn change_to(self, cluster: &Cluster, manifest: &Path) -> Result<()> {
        if self == Self::ManifestOfSource {
            let here = "--namespace=kube-flannel";
            cluster.kubectl(&format!(
                "label pods {here} -l app=flannel k8s-app=flannel --overwrite"
            ))?;
            cluster.kubectl(&format!("delete {DAEMONS} --cascade=orphan"))?;
        }
        cluster.apply(manifest)?;
        if self == Self::ManifestOfSource {
            cluster.kubectl(&format!("rollout restart {DAEMONS}"))?;
        }
        cluster.wait_rolled_out(DAEMONS)
    }
}

/// By the commands of flannel's own README, with more flags.
pub(super) fn install_chart(
    cluster: &Cluster,
    programs: &Programs,
    helm: Helm,
    flags: &str,
) -> Result<()> {
    let chart = std::fs::canonicalize(programs.of_flannel("chart"))?;
    cluster.shell_with(
        helm,
        &format!(
            "kubectl create ns kube-flannel
            kubectl label --overwrite ns kube-flannel pod-security.kubernetes.io/enforce=privileged
            helm install flannel --set podCidr=10.244.0.0/16 --namespace kube-flannel {flags} {}",
            chart.display()
        ),
    )
}

pub(super) fn upgrade_to_tweed(cluster: &Cluster, helm: Helm) -> Result<()> {
    let guide = guide()?;
    let mut commands = guide.split('`');
    let upgrade = commands.find(|command| command.starts_with("helm upgrade flannel"));
    cluster
        .shell_with(helm, upgrade.context("the guide does not upgrade from flannel's chart")?)?;
    cluster.wait_rolled_out(DAEMONS)
}

pub(super) fn guide() -> Result<String> {
    std::fs::read_to_string(GUIDE).context(GUIDE)
}

/// The commands are those of the guide.
pub(super) fn there_and_back(programs: &Programs, origin: Origin) -> Result<Counted> {
    let cluster = Cluster::start(programs, Stack::V4)?;
    origin.install(&cluster, programs)?;
    cluster.wait_ready()?;
    let story = Story::of(cluster)?;
    let subnets = story.cluster.subnets()?;
    let counted = story.under_load(|probe| {
        probe.mark("to tweedd");
        origin.change_to_tweed(&story.cluster).context("to tweedd")?;
        story.wait_for_config(false, Backend::Vxlan)?;
        // New pods, by the other plugin.
        workload::scale(&story.cluster, "new", 6)?;
        story.reach_each_other("new").context("new pods")?;
        probe.mark("back to flannel");
        origin.change_back(&story.cluster, programs).context("back to flannel")?;
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
