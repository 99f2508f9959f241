//! Collects the host settings that may affect tweed. Settings that cannot be read count as absent.

mod cni;
mod firewall;
mod processes;
mod systemd;

pub use cni::{cni_config, is_cni_config};
pub use processes::{other_daemons, stopped_listener};

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::model::node::Interface;
use crate::model::prefix::Family;
use crate::plan::preflight::addresses::neighbour_sysctls;
use crate::plan::preflight::facts::{Host, Needs, Obstacle, Unread};
use crate::plan::preflight::firewall::{
    ALL_FILTERS, BRIDGE_NETFILTER, filter_sysctl, forwarding_sysctl,
};

/// The paths to read from.
#[derive(Clone, Debug)]
pub struct Places {
    /// The root of the host's file system, as mounted for this process.
    pub root: PathBuf,
    /// The proc file system of this process's network namespace.
    pub proc: PathBuf,
    /// The control socket of a daemon that may run in another process.
    pub control_socket: Option<PathBuf>,
    /// The folder of the CNI configs.
    pub cni_configs: PathBuf,
    /// The folders of the CNI plugins.
    pub cni_plugins: Vec<PathBuf>,
}

impl Places {
    pub fn below(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        Self {
            proc: PathBuf::from("/proc"),
            control_socket: None,
            cni_configs: root.join(cni::CONFIGS),
            cni_plugins: cni::PLUGINS.iter().map(|folder| root.join(folder)).collect(),
            root,
        }
    }

    /// Whether this process runs in a pod of Kubernetes, and looks at the files of the pod.
    fn is_in_pod(&self) -> bool {
        service().is_some() && self.root == Path::new("/")
    }

    /// The path as processes of the host know it.
    fn on_host(&self, path: &Path) -> String {
        let path =
            path.strip_prefix(&self.root).map_or(path.to_owned(), |it| Path::new("/").join(it));
        path.display().to_string()
    }
}

impl Default for Places {
    fn default() -> Self {
        Self::below("/")
    }
}

/// The name of this host. It is short, but the file that contains it may be longer.
pub fn name() -> String {
    let mut name = String::new();
    let file = fs::File::open("/proc/sys/kernel/hostname");
    let read = file.and_then(|file| file.take(64).read_to_string(&mut name));
    if read.is_ok() { name.trim().to_owned() } else { "unknown".to_owned() }
}

/// The service address of the API server, which the kubelet writes to each pod.
pub(super) fn service() -> Option<IpAddr> {
    std::env::var("KUBERNETES_SERVICE_HOST").ok()?.parse().ok()
}

/// Collects the host settings; `links` come from the kernel.
pub fn gather(needs: &Needs, links: Vec<Interface>, places: &Places) -> Host {
    let lacks_nftables = firewall::lacks_nftables();
    let (chains, no_chains) = firewall::chains();
    // A kernel without nftables has none.
    let no_chains = no_chains.filter(|_| !lacks_nftables);
    let (legacy_tables, no_legacy) = firewall::legacy_tables(&places.proc);
    let (cni, no_cni) = cni::read(places);
    let unread = no_chains.into_iter().chain(no_legacy).chain(no_cni).chain(outside_pod(places));
    Host {
        sysctls: sysctls(needs, &places.proc),
        links,
        other_daemons: other_daemons(places),
        sockets: processes::sockets(needs, places),
        chains,
        legacy_tables,
        lacks_nftables,
        lacks_vxlan: lacks_vxlan(places),
        systemd: systemd::read(&places.root),
        service: service(),
        cni,
        unread: unread.collect(),
    }
}

/// What a pod does not see of its host.
fn outside_pod(places: &Places) -> Option<Unread> {
    places.is_in_pod().then(|| Unread {
        what: "processes, networkd and udev of the host",
        place: "/proc, /etc/systemd".to_owned(),
        obstacle: Obstacle::Pod,
    })
}

fn unreadable(error: &io::Error) -> Obstacle {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Obstacle::Forbidden,
        _ => Obstacle::Failed(error.to_string()),
    }
}

fn sysctls(needs: &Needs, proc: &Path) -> BTreeMap<String, String> {
    let links = needs.underlay.iter().chain(&needs.tunnels);
    let fixed = [BRIDGE_NETFILTER, ALL_FILTERS].into_iter().map(str::to_owned);
    let of_families = Family::ALL.into_iter().flat_map(|family| {
        neighbour_sysctls(family).into_iter().chain([forwarding_sysctl(family).to_owned()])
    });
    let names = fixed.chain(of_families).chain(links.map(filter_sysctl));
    let value = |name: &str| Some(text(&proc.join("sys").join(name))?.trim().to_owned());
    names.filter_map(|name| value(&name).map(|value| (name, value))).collect()
}

/// A module that is built in or loaded has a folder in sysfs; otherwise it is loadable if it is
/// listed as a file. Without the lists, that is not known.
fn lacks_vxlan(places: &Places) -> bool {
    let release = text(&places.proc.join("sys/kernel/osrelease")).unwrap_or_default();
    let modules = places.root.join("lib/modules").join(release.trim());
    let lists = ["modules.dep", "modules.builtin"].map(|list| text(&modules.join(list)));
    let is_listed = lists.iter().flatten().any(|list| list.contains("/vxlan.ko"));
    let is_there = is_listed || places.root.join("sys/module/vxlan").exists();
    !is_there && lists.iter().any(Option::is_some)
}

fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// The sorted names in `folder`.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}
