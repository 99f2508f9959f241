//! Kubernetes as the judge: kubelets, containerd and kube-proxy with the shipped manifest.

mod cases;
mod cluster;
mod e2e;
mod helm;
mod images;
mod machine;
mod names;
mod policies;
mod takeover;
mod workload;

use std::path::PathBuf;

use anyhow::{Context, Result};
use tweed_lab::{Binaries, Stack};

use crate::verdict::{Counted, Verdicts};
use cases::Story;
use helm::Helm;
use takeover::Origin;

pub(crate) struct Programs {
    /// One program that contains those of Kubernetes.
    pub(crate) kubernetes: PathBuf,
    pub(crate) plugin: PathBuf,
    /// The folder of flanneld, its helpers and its manifest.
    pub(crate) flannel: PathBuf,
    pub(crate) binaries: Binaries,
    /// The folder of an older tweed, with its manifest.
    pub(crate) former: PathBuf,
    /// The folder of Helm, of the DNS server, and of kube-network-policies.
    pub(crate) tools: PathBuf,
}

impl Programs {
    /// Next to the programs of Kubernetes.
    fn test(&self, name: &str) -> PathBuf {
        self.kubernetes.with_file_name(name)
    }

    fn of_flannel(&self, name: &str) -> PathBuf {
        self.flannel.join(name)
    }

    /// flannel's manifest as in its source. It selects pods by fewer labels than the released one.
    fn source_manifest(&self) -> PathBuf {
        self.of_flannel("kube-flannel.yml")
    }
}

pub(crate) fn run(programs: &Programs, verdicts: &mut Verdicts) -> Result<()> {
    for stack in [Stack::V4, Stack::Dual, Stack::V6] {
        story(programs, stack, verdicts)?;
    }
    verdicts.run("three nodes are Ready by the chart, and its values change", || {
        helm::install_and_upgrade(programs)
    })?;
    for (name, origin) in [
        ("released manifest", Origin::ReleasedManifest),
        ("source's manifest", Origin::ManifestOfSource),
        ("chart", Origin::Chart(Helm::V4)),
        ("chart, by Helm 3", Origin::Chart(Helm::V3)),
    ] {
        let case = format!("flannel → tweedd → flannel, with flannel's {name}");
        verdicts.run(&case, || takeover::there_and_back(programs, origin))?;
    }
    policies::run(programs, verdicts)?;
    verdicts.run("tests of Kubernetes for networks", || e2e::run(programs))?;
    verdicts.run("upgrade of an older tweed, and back", || takeover::upgrade(programs))
}

/// Cases in one cluster: each begins where the one before has ended.
fn story(programs: &Programs, stack: Stack, verdicts: &mut Verdicts) -> Result<()> {
    let mut story = None;
    let mut case = |name: &str, play: &mut dyn FnMut(&mut Option<Story>) -> Result<Counted>| {
        let case = match stack {
            Stack::V4 => name.to_owned(),
            Stack::Dual => format!("{name}, dual stack"),
            Stack::V6 => format!("{name}, IPv6"),
        };
        verdicts.run(&case, || play(&mut story))
    };
    case("three nodes are Ready by the manifest", &mut |it| Story::begin(programs, stack, it))?;
    for (name, play) in Story::CASES {
        case(name, &mut |story| play(story.as_mut().context("there is no cluster")?))?;
    }
    Ok(())
}
