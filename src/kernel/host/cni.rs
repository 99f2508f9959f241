//! Reads the CNI configs and the names of the plugins that container runtimes use.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{Places, names, unreadable};
use crate::plan::preflight::cni::{Cni, CniConfig, PluginFolder};
use crate::plan::preflight::facts::{Obstacle, Unread};

/// Where containerd and CRI-O look for configs and plugins by default, relative to the root.
pub(super) const CONFIGS: &str = "etc/cni/net.d";
pub(super) const PLUGINS: [&str; 3] = ["opt/cni/bin", "usr/libexec/cni", "usr/lib/cni"];
/// The endings of the files that runtimes read.
const ENDINGS: [&str; 3] = ["conf", "conflist", "json"];

/// The config that runtimes use, with its text; none if there is no config.
pub fn cni_config(places: &Places) -> io::Result<Option<(CniConfig, String)>> {
    let Some(path) = paths(&places.cni_configs).into_iter().next() else { return Ok(None) };
    let text = fs::read_to_string(&path)?;
    Ok(Some((CniConfig::parse(places.on_host(&path), &text), text)))
}

/// The configs and plugins, and what could not be read.
pub(super) fn read(places: &Places) -> (Cni, Vec<Unread>) {
    let (configs, no_configs) = configs(places);
    let (folders, no_plugins) = match folders(places) {
        Ok(folders) => (folders, None),
        Err(unread) => (Vec::new(), Some(unread)),
    };
    (Cni { configs, folders }, no_configs.into_iter().chain(no_plugins).collect())
}

fn configs(places: &Places) -> (Vec<CniConfig>, Vec<Unread>) {
    let what = "configs of CNI plugins";
    let unread = |path: &Path, error: &io::Error| match error.kind() {
        io::ErrorKind::NotFound if places.is_in_pod() => {
            Some(Unread { what, place: places.on_host(path), obstacle: Obstacle::Pod })
        }
        // A host may have no CNI, and a file may be removed meanwhile.
        io::ErrorKind::NotFound => None,
        _ => Some(Unread { what, place: places.on_host(path), obstacle: unreadable(error) }),
    };
    let folder = &places.cni_configs;
    let unlisted = fs::read_dir(folder).err().and_then(|error| unread(folder, &error));
    let (mut configs, mut all_unread) = (Vec::new(), Vec::from_iter(unlisted));
    for path in paths(folder) {
        match fs::read_to_string(&path) {
            Ok(text) => configs.push(CniConfig::parse(places.on_host(&path), &text)),
            Err(error) => all_unread.extend(unread(&path, &error)),
        }
    }
    (configs, all_unread)
}

/// In the order in which runtimes read them.
fn paths(folder: &Path) -> Vec<PathBuf> {
    let paths = names(folder).into_iter().map(|name| folder.join(name));
    paths.filter(|path| is_cni_config(path)).collect()
}

/// Whether runtimes read this file of the folder of configs.
pub fn is_cni_config(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    ending.is_some_and(|ending| ENDINGS.contains(&ending)) && !path.is_dir()
}

/// All folders, or the first that cannot be read: it may have plugins that no other has.
fn folders(places: &Places) -> Result<Vec<PluginFolder>, Unread> {
    let what = "CNI plugins";
    let read = |folder: &PathBuf| match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && places.is_in_pod() => Ok(None),
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Unread { what, place: places.on_host(folder), obstacle: unreadable(&error) })
        }
        Ok(_) | Err(_) => {
            Ok(Some(PluginFolder { path: places.on_host(folder), plugins: executables(folder) }))
        }
    };
    let folders = places.cni_plugins.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let folders: Vec<PluginFolder> = folders.into_iter().flatten().collect();
    match places.cni_plugins.first() {
        Some(first) if folders.is_empty() => {
            Err(Unread { what, place: places.on_host(first), obstacle: Obstacle::Pod })
        }
        _ => Ok(folders),
    }
}

fn executables(folder: &Path) -> BTreeSet<String> {
    let is_executable = |name: &String| {
        let file = fs::metadata(folder.join(name));
        file.is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    names(folder).into_iter().filter(is_executable).collect()
}
