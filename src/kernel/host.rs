//! Looking at the host; whatever cannot be read is as if it were not there.

mod firewall;
mod processes;
mod systemd;

pub use processes::rivals;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::kernel::service;
use crate::model::node::Interface;
use crate::model::prefix::Family;
use crate::plan::preflight::addresses::neighbour_sysctls;
use crate::plan::preflight::facts::{Host, Module, Needs};
use crate::plan::preflight::firewall::{
    ALL_FILTERS, BRIDGE_NETFILTER, filter_sysctl, forwarding_sysctl,
};

/// Where to look.
#[derive(Clone, Debug)]
pub struct Places {
    /// The host's files, as seen from here.
    pub root: PathBuf,
    /// What the kernel tells of this process's network.
    pub proc: PathBuf,
    /// Where our daemon answers, if one may run besides this process.
    pub control_socket: Option<PathBuf>,
}

impl Places {
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), proc: PathBuf::from("/proc"), control_socket: None }
    }
}

impl Default for Places {
    fn default() -> Self {
        Self::below("/")
    }
}

/// What the host is like, of which the kernel has told the `links`.
pub fn gather(needs: &Needs, links: Vec<Interface>, places: &Places) -> Host {
    Host {
        sysctls: sysctls(needs, &places.proc),
        links,
        rivals: rivals(places),
        sockets: processes::sockets(needs, places),
        chains: firewall::chains(),
        legacy_tables: firewall::legacy_tables(&places.proc),
        nftables: firewall::nftables(),
        vxlan: vxlan(places),
        systemd: systemd::read(&places.root),
        service: service(),
    }
}

fn sysctls(needs: &Needs, proc: &Path) -> BTreeMap<String, String> {
    let links = needs.underlay.iter().chain(needs.tunnels.iter().map(|(link, _)| link));
    let fixed = [BRIDGE_NETFILTER, ALL_FILTERS].into_iter().map(str::to_owned);
    let of_families = Family::ALL.into_iter().flat_map(|family| {
        neighbour_sysctls(family).into_iter().chain([forwarding_sysctl(family).to_owned()])
    });
    let names = fixed.chain(of_families).chain(links.map(filter_sysctl));
    let value = |name: &str| Some(text(&proc.join("sys").join(name))?.trim().to_owned());
    names.filter_map(|name| value(&name).map(|value| (name, value))).collect()
}

/// Built in or loaded, it has a folder; else it can be loaded if there is a file.
fn vxlan(places: &Places) -> Module {
    let release = text(&places.proc.join("sys/kernel/osrelease")).unwrap_or_default();
    let modules = places.root.join("lib/modules").join(release.trim());
    let lists = ["modules.dep", "modules.builtin"].map(|list| text(&modules.join(list)));
    let is_listed = lists.iter().flatten().any(|list| list.contains("/vxlan.ko"));
    if is_listed || places.root.join("sys/module/vxlan").exists() {
        Module::Available
    } else if lists.iter().any(Option::is_some) {
        Module::Missing
    } else {
        Module::Unknown
    }
}

fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// What `folder` holds, by name.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}
