//! A lock on a file that is waited for only so long, with the name of the process that holds it.

use std::fs::{self, File};
use std::io;
use std::iter;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::{major, minor};

use super::plain_file::{self, Symlink};
use crate::protocol::error::Error;

/// Shorter than the time after which any runtime gives up on a command.
pub(crate) const LOCK_WAIT: Duration = Duration::from_secs(45);

/// How often the kernel's list of locks is read to find a holder.
const LISTS: usize = 5;

/// Held until it is dropped, or the process ends in whatever way.
#[derive(Debug)]
pub(crate) struct Lock(Flock<File>);

/// Whether others may hold it at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    Shared,
    Exclusive,
}

impl Lock {
    /// Locks `file`, which is open at `path`; waits at most for `timeout`.
    pub(crate) fn take(
        file: File,
        path: &Path,
        sharing: Sharing,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let unusable = |cause| Error::failed(format!("locking {}: {cause}", path.display()));
        let (at_once, waiting) = match sharing {
            Sharing::Shared => (FlockArg::LockSharedNonblock, FlockArg::LockShared),
            Sharing::Exclusive => (FlockArg::LockExclusiveNonblock, FlockArg::LockExclusive),
        };
        match Flock::lock(file, at_once) {
            Ok(held) => Ok(Self(held)),
            Err((file, Errno::EWOULDBLOCK)) => wait(file, waiting, timeout)
                .map_err(unusable)?
                .map(Self)
                .ok_or_else(|| still_locked(path, timeout)),
            Err((_, errno)) => Err(unusable(errno.into())),
        }
    }

    /// When the file was last written to, or [touched](Self::touch).
    pub(crate) fn modified(&self) -> io::Result<SystemTime> {
        self.0.metadata()?.modified()
    }

    pub(crate) fn touch(&self) -> io::Result<()> {
        self.0.set_modified(SystemTime::now())
    }
}

/// Opens or creates the file `name` in `directory`; on a disk that is full or read-only, opens the
/// directory instead. Returns the open file and its path.
pub(crate) fn lockable(directory: &Path, name: &str, mode: u32) -> io::Result<(File, PathBuf)> {
    let path = directory.join(name);
    let create = |_| {
        let mut options = File::options();
        plain_file::open(&path, options.create(true).append(true).mode(mode), Symlink::Refused)
    };
    match plain_file::open(&path, File::options().read(true), Symlink::Refused).or_else(create) {
        Ok(file) => Ok((file, path)),
        Err(cause) => Ok((File::open(directory).map_err(|_| cause)?, directory.to_owned())),
    }
}

/// A thread waits in the kernel's queue, without polling; a lock that comes too late is released.
fn wait(file: File, waiting: FlockArg, timeout: Duration) -> io::Result<Option<Flock<File>>> {
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().name("lock".into()).spawn(move || {
        let locked = Flock::lock(file, waiting).map_err(|(_, errno)| errno);
        drop(sender.send(locked));
    })?;
    match receiver.recv_timeout(timeout) {
        Ok(locked) => Ok(Some(locked?)),
        Err(_) => Ok(None),
    }
}

fn still_locked(path: &Path, timeout: Duration) -> Error {
    let holder = holder(path).unwrap_or_else(|| "an unknown process".into());
    Error::try_again_later(format!(
        "{} has been locked for {} s by {holder}: check why it does not release the lock",
        path.display(),
        timeout.as_secs()
    ))
}

fn holder(path: &Path) -> Option<String> {
    let key = key(path)?;
    // The kernel lists locks in parts: while others are released, one may be missing.
    let listed = || holder_in(&fs::read_to_string("/proc/locks").ok()?, &key);
    let pid = iter::repeat_with(listed).take(LISTS).flatten().next()?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(format!("process {pid} ({})", name.trim()))
}

/// The file as the kernel's list of locks names it.
fn key(path: &Path) -> Option<String> {
    let metadata = fs::metadata(path).ok()?;
    let (device, inode) = (metadata.dev(), metadata.ino());
    Some(format!("{:02x}:{:02x}:{inode}", major(device), minor(device)))
}

/// `1: FLOCK  ADVISORY  WRITE 4711 fe:01:1234 0 EOF`; a process that waits has an arrow before the kind.
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

    fn take(path: &Path, sharing: Sharing, timeout: Duration) -> Result<Lock, Error> {
        let file = File::options().create(true).append(true).open(path).unwrap();
        Lock::take(file, path, sharing, timeout)
    }

    #[test]
    fn a_released_lock_is_acquired_at_once() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("lock");
        let first = take(&path, Sharing::Exclusive, Duration::ZERO).unwrap();
        let second = {
            let path = path.clone();
            thread::spawn(move || take(&path, Sharing::Exclusive, Duration::from_secs(60)).is_ok())
        };
        drop(first);
        assert!(second.join().unwrap());
        assert!(take(&path, Sharing::Exclusive, Duration::from_secs(60)).is_ok());
    }

    #[test]
    fn many_hold_a_shared_lock_and_one_holds_an_exclusive_lock() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("lock");
        let shared = [(); 2].map(|()| take(&path, Sharing::Shared, Duration::ZERO).unwrap());
        assert_eq!(take(&path, Sharing::Exclusive, Duration::ZERO).unwrap_err().code, 11);
        drop(shared);
        let alone = take(&path, Sharing::Exclusive, Duration::from_secs(60)).unwrap();
        assert_eq!(take(&path, Sharing::Shared, Duration::ZERO).unwrap_err().code, 11);
        drop(alone);
    }

    #[test]
    fn a_timeout_names_the_holder_of_the_lock_and_may_be_repeated() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("lock");
        let first = take(&path, Sharing::Exclusive, Duration::ZERO).unwrap();
        let error = take(&path, Sharing::Shared, Duration::from_millis(20)).unwrap_err();
        assert_eq!(error.code, 11);
        let us = format!("by process {} (", std::process::id());
        assert!(error.msg.contains(&us), "{}", error.msg);

        drop(first);
        // The thread whose wait timed out may have got the lock since; it releases it.
        take(&path, Sharing::Exclusive, Duration::from_secs(60)).unwrap();
    }

    #[test]
    fn a_process_that_waits_is_not_the_holder() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 fe:01:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 22 fe:01:78 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 33 fe:01:77 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 44 fe:01:77 0 EOF\n";
        assert_eq!(holder_in(locks, "fe:01:77"), Some(44));
        assert_eq!(holder_in(locks, "fe:01:79"), None);
    }
}
