//! Kubernetes as the judge: kubelets, containerd and kube-proxy with the shipped manifest.

mod cases;
mod cluster;
mod images;
mod machine;
mod takeover;
mod workload;

use std::path::PathBuf;

use anyhow::Result;
use tweed_lab::Binaries;

use crate::verdict::Verdicts;
use cases::Story;
use takeover::Manifest;

pub(crate) struct Programs {
    /// One program that contains those of Kubernetes.
    pub(crate) kubernetes: PathBuf,
    pub(crate) plugin: PathBuf,
    /// The folder of flanneld, its helpers and its manifest.
    pub(crate) flannel: PathBuf,
    pub(crate) binaries: Binaries,
    /// The folder of an older tweed, with its manifest.
    pub(crate) former: PathBuf,
}

impl Programs {
    fn of_flannel(&self, name: &str) -> PathBuf {
        self.flannel.join(name)
    }

    /// flannel's manifest as in its source. It selects pods by fewer labels than the released one.
    fn source_manifest(&self) -> PathBuf {
        self.of_flannel("kube-flannel.yml")
    }
}

/// All cases in order, in one cluster: each begins where the one before has ended. The last three have
/// clusters of their own.
pub(crate) fn run(programs: &Programs, verdicts: &mut Verdicts) -> Result<()> {
    story(programs, verdicts)?;
    for (name, manifest) in [("released", Manifest::Released), ("source's", Manifest::OfSource)] {
        let case = format!("flannel → tweedd → flannel, with flannel's {name} manifest");
        verdicts.run(&case, || takeover::there_and_back(programs, manifest))?;
    }
    verdicts.run("upgrade of an older tweed, and back", || takeover::upgrade(programs))
}

fn story(programs: &Programs, verdicts: &mut Verdicts) -> Result<()> {
    let mut story = None;
    verdicts.run("three nodes are Ready by the manifest", || Story::begin(programs, &mut story))?;
    let Some(mut story) = story else { return Ok(()) };
    verdicts.run("pods on three nodes reach each other", || story.pods_reach_each_other())?;
    verdicts.run("services by kube-proxy", || story.services_answer())?;
    verdicts.run("0 → 60 → 0 pods leave nothing", || story.pods_leave_nothing())?;
    verdicts.run("vxlan → host-gw → vxlan by edits", || story.flip())?;
    verdicts.run("rollout restart", || story.rollout_restart())?;
    verdicts.run("a node is deleted and joins again", || story.node_joins_again())?;
    verdicts.run("a node loses its power", || story.reboot())?;
    verdicts.run("a node loses its power while the API server is away", || {
        story.reboot_without_server()
    })
}
