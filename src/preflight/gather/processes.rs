//! Processes beside us.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Places, names, text};
use crate::preflight::facts::{Place, Process};

const RIVAL: &str = "flanneld";

/// Daemons that would keep the routes of this network namespace as we do.
pub fn rivals(places: &Places) -> Vec<Process> {
    let own = network(&places.proc.join("thread-self"));
    let rivals = all(&places.proc).filter(|pid| name(&places.proc, *pid).as_deref() == Some(RIVAL));
    let rivals = rivals.filter(|pid| *pid != std::process::id());
    rivals
        .filter_map(|pid| {
            let place = place(network(&places.proc.join(pid.to_string())), own.as_ref().ok())?;
            Some(Process { pid, name: RIVAL.to_owned(), place })
        })
        .collect()
}

pub(super) fn all(proc: &Path) -> impl Iterator<Item = u32> + use<> {
    names(proc).into_iter().filter_map(|name| name.parse().ok())
}

pub(super) fn name(proc: &Path, pid: u32) -> Option<String> {
    Some(text(&proc.join(format!("{pid}/comm")))?.trim_end().to_owned())
}

fn network(process: &Path) -> io::Result<PathBuf> {
    fs::read_link(process.join("ns/net"))
}

/// None for one that lives elsewhere, or no longer.
fn place(theirs: io::Result<PathBuf>, ours: Option<&PathBuf>) -> Option<Place> {
    match theirs {
        Ok(theirs) => (ours? == &theirs).then_some(Place::Ours),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Some(Place::Unknown),
        Err(_) => None,
    }
}
