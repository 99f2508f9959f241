//! Real flannel as the judge: the same entries, and nodes that change from one to the other.

mod change;
mod entries;
mod site;
mod sources;

use std::path::PathBuf;

use anyhow::Result;
use tweed_lab::{Backend, Binaries, Stack};

use crate::verdict::Verdicts;
use site::{Firewall, Setting};

pub(crate) struct Programs {
    pub(crate) flanneld: PathBuf,
    pub(crate) binaries: Binaries,
}

/// `short`: one case of each kind.
pub(crate) fn run(programs: &Programs, short: bool, verdicts: &mut Verdicts) -> Result<()> {
    let settings = if short { vec![Setting::SHIPPED] } else { settings() };
    for setting in settings.iter().filter(|it| it.masquerade) {
        let case = format!("the same entries: {setting}");
        verdicts.run(&case, || entries::compare(programs, *setting))?;
    }
    for setting in &settings {
        let case = format!("to tweedd and back: {setting}");
        verdicts.run(&case, || change::there_and_back(programs, *setting))?;
    }
    let story = "flanneld on vxlan → tweedd → Mixed → host-gw → flanneld on host-gw";
    verdicts.run(story, || change::whole_story(programs))?;
    let story = "the same, next to a flanneld that stays and restarts";
    verdicts.run(story, || change::story_with_one_that_stays(programs))
}

fn settings() -> Vec<Setting> {
    let mut settings = Vec::new();
    for (backend, stack) in [
        (Backend::Vxlan, Stack::V4),
        (Backend::Vxlan, Stack::Dual),
        (Backend::HostGw, Stack::V4),
        (Backend::HostGw, Stack::Dual),
    ] {
        for firewall in [Firewall::Iptables, Firewall::Nftables] {
            for masquerade in [true, false] {
                settings.push(Setting { stack, backend, firewall, masquerade });
            }
        }
    }
    settings
}
