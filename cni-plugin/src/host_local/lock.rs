//! The lock of a store, shared with Go's host-local: whoever holds it may change what is there.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::{major, minor};

use crate::error::Error;

const LOCK_MODE: u32 = 0o750;

/// Held until it is dropped, or the process ends in whatever way.
#[derive(Debug)]
pub(super) struct Lock {
    _held: Flock<File>,
}

impl Lock {
    /// Waits for `path` for as long as `patience`, then says who holds it.
    pub(super) fn take(path: &Path, patience: Duration) -> Result<Self, Error> {
        let unusable = |cause| Error::failed(format!("locking {}: {cause}", path.display()));
        let file = open(path).map_err(unusable)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(held) => Ok(Self { _held: held }),
            Err((file, Errno::EWOULDBLOCK)) => wait(file, patience)
                .map_err(unusable)?
                .map(|held| Self { _held: held })
                .ok_or_else(|| still_locked(path, patience)),
            Err((_, errno)) => Err(unusable(errno.into())),
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    // Opening it to read is what Go does; a lock needs no more.
    let existing = File::open(path);
    match existing {
        Err(error) if error.kind() == io::ErrorKind::NotFound => create(path),
        opened => opened,
    }
}

fn create(path: &Path) -> io::Result<File> {
    let create = nix::fcntl::OFlag::O_CREAT.bits();
    OpenOptions::new().read(true).custom_flags(create).mode(LOCK_MODE).open(path)
}

/// A thread waits in the kernel's queue: in turn with all others, and not by polling.
///
/// A lock that comes too late is given back by whoever drops the file.
fn wait(file: File, patience: Duration) -> io::Result<Option<Flock<File>>> {
    let (tell, told) = mpsc::channel();
    thread::Builder::new().name("lock".into()).spawn(move || {
        let locked = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno);
        drop(tell.send(locked));
    })?;
    match told.recv_timeout(patience) {
        Ok(locked) => Ok(Some(locked?)),
        Err(_) => Ok(None),
    }
}

fn still_locked(path: &Path, patience: Duration) -> Error {
    let holder = holder(path).unwrap_or_else(|| "a process that cannot be seen from here".into());
    Error::try_again_later(format!(
        "{} has been locked for {} s by {holder}: see what keeps it there",
        path.display(),
        patience.as_secs()
    ))
}

fn holder(path: &Path) -> Option<String> {
    let pid = holder_in(&fs::read_to_string("/proc/locks").ok()?, &key(path)?)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(format!("process {pid} ({})", name.trim()))
}

/// The file as the kernel's list of locks names it.
fn key(path: &Path) -> Option<String> {
    let metadata = fs::metadata(path).ok()?;
    let (device, inode) = (metadata.dev(), metadata.ino());
    Some(format!("{:02x}:{:02x}:{inode}", major(device), minor(device)))
}

/// `1: FLOCK  ADVISORY  WRITE 4711 fe:01:1234 0 EOF`; who waits has an arrow before its kind.
fn holder_in(locks: &str, key: &str) -> Option<u32> {
    locks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).find_map(|words| {
        match words.as_slice() {
            [_, "FLOCK", _, _, pid, file, ..] if *file == key => pid.parse().ok(),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_handed_on_as_soon_as_it_is_free() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("lock");
        let first = Lock::take(&path, Duration::ZERO).unwrap();
        let second = {
            let path = path.clone();
            thread::spawn(move || Lock::take(&path, Duration::from_secs(60)).is_ok())
        };
        drop(first);
        assert!(second.join().unwrap());
        assert!(Lock::take(&path, Duration::from_secs(60)).is_ok());
    }

    #[test]
    fn who_waited_in_vain_hears_who_holds_the_lock_and_may_try_again() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("lock");
        let first = Lock::take(&path, Duration::ZERO).unwrap();
        let error = Lock::take(&path, Duration::from_millis(20)).unwrap_err();
        assert_eq!(error.code, 11);
        let us = format!("by process {} (", std::process::id());
        assert!(error.msg.contains(&us), "{}", error.msg);

        drop(first);
        // The thread that waited in vain may have got it in the meantime; it gives it back.
        Lock::take(&path, Duration::from_secs(60)).unwrap();
    }

    #[test]
    fn the_holder_is_not_who_waits() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 fe:01:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 22 fe:01:78 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 33 fe:01:77 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 44 fe:01:77 0 EOF\n";
        assert_eq!(holder_in(locks, "fe:01:77"), Some(44));
        assert_eq!(holder_in(locks, "fe:01:79"), None);
    }
}
