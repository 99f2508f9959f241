//! A small disk of one node, which can be full or read-only.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use tweed_lab::eventually;

use super::TIMEOUT;
use super::kernel::run;

pub(crate) struct Disk(PathBuf);

impl Disk {
    /// Replaces the content of `path` until it is dropped.
    pub(crate) fn at(path: &Path) -> Self {
        let mount = ["-t", "tmpfs", "-o", "size=512k", "tmpfs"];
        run(Command::new("mount").args(mount).arg(path));
        Self(path.to_owned())
    }

    pub(crate) fn make_read_only(&self) {
        self.remount("remount,ro");
    }

    pub(crate) fn make_writable(&self) {
        self.remount("remount,rw");
    }

    pub(crate) fn fill(&self) {
        let mut filler = File::create(self.filler()).unwrap();
        while filler.write(&[0; 4096]).is_ok_and(|written| written > 0) {}
    }

    pub(crate) fn make_room(&self) {
        fs::remove_file(self.filler()).unwrap();
    }

    /// A process that is just being started may hold a file of ours open for writing.
    fn remount(&self, options: &str) {
        let mut mount = Command::new("mount");
        mount.args(["-o", options]).arg(&self.0);
        eventually(TIMEOUT, || mount.status().is_ok_and(|status| status.success())).unwrap();
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
