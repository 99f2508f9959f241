//! The files of networkd and udev, in the order in which they are read.

use std::collections::BTreeMap;
use std::path::Path;

use super::{names, text};
use crate::plan::preflight::facts::Systemd;
use crate::plan::preflight::unit::Unit;

/// A file hides files of the same name in later folders.
const FOLDERS: [&str; 4] =
    ["etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd"];
const CONFIG: &str = "networkd.conf";
/// The folders that contain `systemd/`, or `<architecture>/systemd/`, with systemd's library.
const LIBRARIES: [&str; 3] = ["lib", "usr/lib", "usr/lib64"];

/// Skips networkd or udev if it is not running.
pub(super) fn read(root: &Path) -> Systemd {
    // Its folder exists on hosts without it, too.
    let networkd = root.join("run/systemd/netif/state").exists();
    let udev = root.join("run/udev").exists();
    Systemd {
        version: version(root),
        networkd: networkd.then(|| config(root)),
        networks: if networkd { units(root, ".network") } else { Vec::new() },
        links: if udev { units(root, ".link") } else { Vec::new() },
    }
}

/// By the name of the library that all programs of systemd share; of several versions, the lowest.
fn version(root: &Path) -> Option<u32> {
    let folders = LIBRARIES.map(|folder| root.join(folder));
    let is_of_architecture = |name: &String| name.contains("-linux-");
    let of_architectures = folders.iter().flat_map(|folder| {
        names(folder).into_iter().filter(is_of_architecture).map(|name| folder.join(name))
    });
    let folders = folders.iter().cloned().chain(of_architectures);
    let files = folders.flat_map(|folder| names(&folder.join("systemd")));
    files.filter_map(|file| leading_number(file.strip_prefix("libsystemd-shared-")?)).min()
}

fn leading_number(text: &str) -> Option<u32> {
    text.split(|digit: char| !digit.is_ascii_digit()).next()?.parse().ok()
}

/// If there is no file, the path where it would be created.
fn config(root: &Path) -> Unit {
    let found = FOLDERS.map(|folder| format!("{folder}/{CONFIG}"));
    let path = found.iter().find(|path| root.join(path).exists()).or(found.first());
    unit(root, path.map_or("", String::as_str), CONFIG)
}

/// The units of all folders, by name; an empty file masks its unit.
fn units(root: &Path, ending: &str) -> Vec<Unit> {
    let paths = by_name(root, "network", ending);
    let non_empty = paths
        .into_iter()
        .filter(|(_, path)| text(&root.join(path)).is_some_and(|text| !text.trim().is_empty()));
    non_empty.map(|(name, path)| unit(root, &path, &format!("network/{name}"))).collect()
}

fn unit(root: &Path, path: &str, name: &str) -> Unit {
    let drop_ins = by_name(root, &format!("{name}.d"), ".conf").into_values();
    let texts = [path.to_owned()].into_iter().chain(drop_ins);
    Unit::parse(format!("/{path}"), texts.filter_map(|path| text(&root.join(path))))
}

/// The files in the subfolder `folder` of each systemd folder, below `root`.
fn by_name(root: &Path, folder: &str, ending: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for place in FOLDERS {
        let folder = format!("{place}/{folder}");
        for name in names(&root.join(&folder)).into_iter().filter(|name| name.ends_with(ending)) {
            let path = format!("{folder}/{name}");
            found.entry(name).or_insert(path);
        }
    }
    found
}
