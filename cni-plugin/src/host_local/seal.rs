//! How an index proves that it describes a directory as it is now.
//!
//! Whatever changes a directory's entries makes the kernel set both of its times to now.
//! A seal sets the first one back, to a moment that no other seal has used; the kernel then sets
//! the second to now. Times that differ and are those of the seal mean: nothing came after it.
//! Clocks may stand still or run backwards meanwhile.

use std::fs::{File, FileTimes};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

/// Which directory, and its times.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Seal {
    pub(super) device: u64,
    pub(super) inode: u64,
    /// Seconds and nanoseconds; of its content.
    pub(super) modified: (i64, i64),
    /// Seconds and nanoseconds; of anything about it.
    pub(super) changed: (i64, i64),
}

impl Seal {
    /// What `directory` shows, sealed or not.
    pub(super) fn of(directory: &File) -> io::Result<Self> {
        let metadata = directory.metadata()?;
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    /// Seals `directory`; of two calls for one directory each needs another `turn`.
    pub(super) fn put(directory: &File, turn: u64) -> io::Result<Self> {
        let second = Self::of(directory)?.modified.0.saturating_sub(1);
        let nanosecond = u32::try_from(turn % 1_000_000_000).unwrap_or_default();
        let mark = Duration::new(u64::try_from(second).unwrap_or_default(), nanosecond);
        directory.set_times(FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + mark))?;
        Self::of(directory)
    }

    pub(super) fn is_intact(self) -> bool {
        self.modified != self.changed
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn sealed(path: &Path, turn: u64) -> (File, Seal) {
        let directory = File::open(path).unwrap();
        let seal = Seal::put(&directory, turn).unwrap();
        (directory, seal)
    }

    #[test]
    fn a_seal_lasts_until_an_entry_changes() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("there"), b"").unwrap();
        let changes: [fn(&Path); 4] = [
            |path| fs::write(path.join("new"), b"").unwrap(),
            |path| fs::rename(path.join("new"), path.join("newer")).unwrap(),
            |path| fs::hard_link(path.join("there"), path.join("new")).unwrap(),
            |path| fs::remove_file(path.join("there")).unwrap(),
        ];
        for (turn, change) in (0..).zip(changes) {
            let (directory, seal) = sealed(home.path(), turn);
            assert!(seal.is_intact());
            fs::read_dir(home.path()).unwrap().for_each(drop);
            assert_eq!(Seal::of(&directory).unwrap(), seal);
            change(home.path());
            assert_ne!(Seal::of(&directory).unwrap(), seal);
        }
    }

    #[test]
    fn a_change_within_the_clocks_tick_breaks_the_seal_as_well() {
        let home = tempfile::tempdir().unwrap();
        for turn in 0..2000 {
            let (directory, seal) = sealed(home.path(), turn);
            fs::write(home.path().join(turn.to_string()), b"").unwrap();
            let now = Seal::of(&directory).unwrap();
            assert_ne!(now, seal);
            assert!(!now.is_intact(), "{now:?}");
        }
    }

    #[test]
    fn no_two_seals_are_alike() {
        let home = tempfile::tempdir().unwrap();
        let seals: Vec<_> = (0..500).map(|turn| sealed(home.path(), turn).1).collect();
        assert!((1..500).all(|index| !seals[..index].contains(&seals[index])));
    }
}
