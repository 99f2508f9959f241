//! Kubernetes as the judge: kubelets, containerd and kube-proxy with the shipped manifest.

mod cases;
mod cluster;
mod images;
mod machine;
mod takeover;
mod workload;

use std::path::PathBuf;

use anyhow::{Context, Result};
use tweed_lab::{Binaries, Stack};

use crate::verdict::{Counted, Verdicts};
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

pub(crate) fn run(programs: &Programs, verdicts: &mut Verdicts) -> Result<()> {
    story(programs, Stack::V4, verdicts)?;
    story(programs, Stack::Dual, verdicts)?;
    for (name, manifest) in [("released", Manifest::Released), ("source's", Manifest::OfSource)] {
        let case = format!("flannel → tweedd → flannel, with flannel's {name} manifest");
        verdicts.run(&case, || takeover::there_and_back(programs, manifest))?;
    }
    verdicts.run("upgrade of an older tweed, and back", || takeover::upgrade(programs))
}

/// Cases in one cluster: each begins where the one before has ended.
fn story(programs: &Programs, stack: Stack, verdicts: &mut Verdicts) -> Result<()> {
    let mut story = None;
    let mut case = |name: &str, play: &mut dyn FnMut(&mut Option<Story>) -> Result<Counted>| {
        let case = if stack == Stack::V4 { name.to_owned() } else { format!("{name}, dual stack") };
        verdicts.run(&case, || play(&mut story))
    };
    case("three nodes are Ready by the manifest", &mut |it| Story::begin(programs, stack, it))?;
    for (name, play) in Story::CASES {
        case(name, &mut |story| play(story.as_mut().context("there is no cluster")?))?;
    }
    Ok(())
}
