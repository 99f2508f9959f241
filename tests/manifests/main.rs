//! What Kubernetes gets is valid, and is what the daemon and flannel's users expect.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::missing_panics_doc, reason = "a test that panics is a test that fails")]
#![allow(unreachable_pub, reason = "nothing of a test binary can be reached from outside")]

mod chart;
mod document;
mod image;
mod kustomize;
mod policies;
mod release;
mod rights;
mod single_file;
mod systemd;

use std::fs;
use std::path::{Path, PathBuf};

pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

pub fn read(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files in a folder, by name.
pub fn files(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.is_file());
    files.sort();
    files
}

/// All files below a folder, relative to the project.
pub fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).unwrap();
    let paths = entries.map(|entry| folder.join(entry.unwrap().file_name()));
    let nested = |path: PathBuf| {
        if root().join(&path).is_dir() { files_below(&path) } else { vec![path] }
    };
    let mut files: Vec<_> = paths.flat_map(nested).collect();
    files.sort();
    files
}
