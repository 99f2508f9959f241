//! Helm, by the commands of the guide: a new cluster gets the chart, and its values change.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tweed_lab::{Backend, Stack};

use super::Programs;
use super::cases::{DAEMONS, Story};
use super::cluster::Cluster;
use super::takeover::guide;
use crate::verdict::Counted;

/// Both versions are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Helm {
    V3,
    V4,
}

impl Helm {
    pub(super) const fn program(self) -> &'static str {
        match self {
            Self::V3 => "helm3",
            Self::V4 => "helm",
        }
    }
}

/// A new cluster, in which values of the chart change under load.
pub(super) fn install_and_upgrade(programs: &Programs) -> Result<Counted> {
    let cluster = Cluster::start(programs, Stack::V4)?;
    cluster.shell(&guide_block("helm install flannel")?)?;
    cluster.wait_ready()?;
    cluster.wait_rolled_out(DAEMONS)?;
    let story = Story::of(cluster)?;
    // The guide has the values of a cluster on host-gw.
    let upgrade = guide_block("helm upgrade flannel")?.replace("host-gw", "vxlan");
    story.under_load(|probe| {
        probe.mark("rollout");
        story
            .cluster
            .shell(&format!("{} --set flannel.podAnnotations.round=second", upgrade.trim()))?;
        story.cluster.wait_rolled_out(DAEMONS)?;
        for (name, mixed, backend) in [
            ("Mixed on", true, Backend::Vxlan),
            ("host-gw", true, Backend::HostGw),
            ("Mixed off", false, Backend::HostGw),
        ] {
            probe.mark(name);
            let values = format!("flannel.mixed={mixed},flannel.backend={}", backend.name());
            story.cluster.shell(&format!("{} --set {values}", upgrade.trim())).context(name)?;
            story.wait_for_config(mixed, backend).context(name)?;
            story.cluster.wait_for_routes(backend).context(name)?;
            probe.run_for(Duration::from_secs(2));
        }
        probe.mark("an edit that Helm overwrites");
        story.write_config(true, Backend::HostGw)?;
        let values = "flannel.backend=host-gw,flannel.mixed=false";
        let upgrade = format!("{} --set {values}", upgrade.trim());
        let refused = story.cluster.shell(&upgrade).err().map(|error| format!("{error:#}"));
        let is_conflict = refused.as_ref().is_some_and(|it| it.contains("with 1 conflict"));
        ensure!(is_conflict, "Helm 4 does not refuse to overwrite the edit: {refused:?}");
        story.cluster.shell(&format!("{upgrade} --force-conflicts"))?;
        story.wait_for_config(false, Backend::HostGw)
    })
}

/// The commands of the guide's block that contains this text.
fn guide_block(text: &str) -> Result<String> {
    let guide = guide()?;
    let mut blocks = guide.split("\n```\n");
    let block = blocks.find(|block| block.lines().any(|line| line.starts_with(text)));
    block.map(str::to_owned).with_context(|| format!("the guide has no command {text}"))
}
