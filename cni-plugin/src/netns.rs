//! Network namespaces: which one a path names, work inside it, and its settings.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process;

use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::{FsType, PROC_SUPER_MAGIC, fstatfs};

use crate::protocol::error::Error;
use crate::protocol::request::NetnsRule;

const NSFS_MAGIC: FsType = FsType(0x6e73_6673);

/// A network namespace that stays as long as this lives.
#[derive(Debug)]
pub struct Netns(File);

/// What is at the path that a runtime gives.
#[derive(Debug)]
pub(crate) enum Found {
    /// A container's.
    Foreign(Netns),
    /// That of the host, which is never a container's.
    Own,
    /// None, or none any more.
    Gone,
}

impl Netns {
    /// A new one, without a name: it ends with this value, and with this process.
    pub fn create() -> Result<Self, Error> {
        let home = Self::own()?;
        unshare(CloneFlags::CLONE_NEWNET)
            .map_err(|errno| Error::failed(format!("creating a network namespace: {errno}")))?;
        let created = Self::own();
        home.enter()?;
        created
    }

    /// Its path for other processes.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", process::id(), self.0.as_raw_fd()))
    }

    /// The namespace of this process.
    pub(crate) fn own() -> Result<Self, Error> {
        let path = "/proc/thread-self/ns/net";
        let file = File::open(path);
        file.map(Self).map_err(|error| Error::failed(format!("{path}: {error}")))
    }

    /// The namespace at `path`, which must not be this process's own unless `rule` allows it.
    pub(crate) fn of_container(path: &Path, rule: NetnsRule) -> Result<Self, Error> {
        let shown = path.display();
        match Self::find(path, rule)? {
            Found::Foreign(netns) => Ok(netns),
            Found::Own => Err(Error::invalid_namespace(format!(
                "plugin's netns and netns from CNI_NETNS={shown} should not be the same"
            ))),
            Found::Gone if path.exists() => Err(Error::failed(format!(
                "failed to open netns: \"{shown}\" is not a network namespace"
            ))),
            // The words of the plugin that operators know.
            Found::Gone => Err(Error::failed(format!(
                "failed to open netns \"{shown}\": failed to Statfs \"{shown}\": \
                 no such file or directory"
            ))),
        }
    }

    pub(crate) fn find(path: &Path, rule: NetnsRule) -> Result<Found, Error> {
        let shown = path.display();
        let failure = |error| Error::failed(format!("failed to open netns \"{shown}\": {error}"));
        let file = match File::open(path) {
            Err(error) if is_absent(&error) => return Ok(Found::Gone),
            file => file.map_err(failure)?,
        };
        let kind = fstatfs(&file).map_err(|errno| failure(errno.into()))?.filesystem_type();
        // A name whose namespace is gone is an empty file until it is removed.
        if kind != NSFS_MAGIC && kind != PROC_SUPER_MAGIC {
            return Ok(Found::Gone);
        }
        let netns = Self(file);
        let is_own = netns.is_same(&Self::own()?).map_err(failure)?;
        let is_forbidden = is_own && rule == NetnsRule::Foreign;
        Ok(if is_forbidden { Found::Own } else { Found::Foreign(netns) })
    }

    /// Does `work` inside; this process has one thread, and comes back with it. Sockets stay inside.
    /// Fails if it cannot enter or leave: then nothing may use paths below /proc/sys any more.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> Result<T, Error> {
        let home = Self::own()?;
        self.enter()?;
        let done = work();
        home.enter()?;
        Ok(done)
    }

    fn enter(&self) -> Result<(), Error> {
        setns(&self.0, CloneFlags::CLONE_NEWNET)
            .map_err(|errno| Error::failed(format!("changing the network namespace: {errno}")))
    }

    fn is_same(&self, other: &Self) -> io::Result<bool> {
        let (one, other) = (self.0.metadata()?, other.0.metadata()?);
        Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
    }
}

/// Sets `name` below /proc/sys/net of the namespace that this process is in, unless it has `value`.
pub(crate) fn ensure_setting(name: &str, value: &str) -> io::Result<()> {
    let path = format!("/proc/sys/net/{name}");
    if fs::read_to_string(&path)?.trim() == value { Ok(()) } else { fs::write(&path, value) }
}

/// No such path, or a file where it has a directory.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

impl AsRawFd for Netns {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
