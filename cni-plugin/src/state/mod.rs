//! What an ADD was made with, kept until its DEL has succeeded.

mod audit;

pub use audit::audit;

use std::fs::{self, DirBuilder, File, FileTimes};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::errno::Errno;

use crate::disk;
use crate::disk::lock::{LOCK_WAIT, Lock, Sharing, lockable};
use crate::disk::plain_file::{self, Symlink, changed};
use crate::protocol::error::Error;
use crate::protocol::json::Object;
use crate::protocol::request::Attachment;

/// The directory of records. flannel names a record `<container>`. Here each attachment has
/// `<container>:<interface>`, and the first of a container is linked under flannel's name, too. Neither
/// part of a name contains a colon.
#[derive(Clone, Debug)]
pub struct States {
    directory: PathBuf,
    /// How long another process may keep all records.
    lock_wait: Duration,
}

/// The config that a delegate was run with.
#[derive(Clone, Debug, PartialEq)]
pub enum StoredConfig {
    Config(Object),
    /// The file is there, and is no record.
    Damaged,
    Absent,
}

/// The interface of a record that flannel's plugin wrote is not known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    pub container_id: String,
    pub interface: Option<String>,
}

/// The interface of a container of which only flannel's own record exists.
const USUAL_INTERFACE: &str = "eth0";

const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// No config is longer, in bytes.
const LONGEST_RECORD: u64 = 1 << 20;

impl States {
    pub fn at(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), lock_wait: LOCK_WAIT }
    }

    /// Locks the records, if there are any; waits at most for `lock_wait`.
    pub(crate) fn lock(&self, sharing: Sharing) -> Result<Option<Lock>, Error> {
        let take = |(file, path): (File, PathBuf)| Lock::take(file, &path, sharing, self.lock_wait);
        self.lockable().map(take).transpose()
    }

    fn lockable(&self) -> Option<(File, PathBuf)> {
        // Where this fails, there is nothing to lock.
        let _ = self.create();
        lockable(&self.directory, ".lock", FILE_MODE).ok()
    }

    fn create(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(&self.directory)
    }

    /// Now, by the clock that the files have; none where no record can be written anyway.
    pub fn now(&self) -> Option<SystemTime> {
        let (file, _) = self.lockable()?;
        file.set_times(FileTimes::new().set_modified(SystemTime::now())).ok()?;
        file.metadata().ok().map(|metadata| changed(&metadata))
    }

    /// The attachments whose records were written after `moment`, or within the same tick of the clock.
    pub fn kept_since(&self, moment: SystemTime) -> Result<Vec<Attachment>, Error> {
        let is_newer = |owner: &Owner| {
            let metadata = fs::symlink_metadata(self.directory.join(owner.file_name()));
            metadata.is_ok_and(|metadata| changed(&metadata) >= moment)
        };
        let newer = self.owners()?.into_iter().filter(is_newer);
        Ok(newer.map(|owner| owner.attachment()).collect())
    }

    /// Writes `delegate` for `attachment`, at once and unflushed: pods do not outlive the kernel.
    pub fn keep(&self, attachment: &Attachment, delegate: &Object) -> Result<(), Error> {
        let temporary = self.temporary(attachment);
        let write = || {
            self.create()?;
            // One that is left from a crash, or a link.
            disk::remove(&temporary)?;
            let mut options = File::options();
            options.write(true).create_new(true).mode(FILE_MODE);
            options.open(&temporary)?.write_all(&serde_json::to_vec(delegate)?)?;
            // What was kept before a power cut would stay under flannel's name.
            if self.has_flannels_name(attachment) {
                disk::remove(&self.flannels(&attachment.container_id))?;
            }
            fs::rename(&temporary, self.own(attachment))?;
            match fs::hard_link(self.own(attachment), self.flannels(&attachment.container_id)) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                linked => linked,
            }
        };
        write().map_err(|error| {
            // A part of it is of no use, and takes space on a full disk.
            let _ = disk::remove(&temporary);
            self.failure("writing the record of a container", &error)
        })
    }

    /// What was kept for `attachment`, here or by flannel's plugin.
    pub fn recall(&self, attachment: &Attachment) -> Result<StoredConfig, Error> {
        match self.read(&self.own(attachment))? {
            StoredConfig::Absent if self.is_foreign(&attachment.container_id) => {
                self.read(&self.flannels(&attachment.container_id))
            }
            record => Ok(record),
        }
    }

    /// Forgets `attachment`, and the record of flannel's plugin unless it belongs to another attachment
    /// of ours.
    pub fn forget(&self, attachment: &Attachment) -> Result<(), Error> {
        let flannels = self.flannels(&attachment.container_id);
        let own = self.own(attachment);
        let is_its_own = match inode(&own) {
            Some(_) => self.has_flannels_name(attachment),
            None => self.is_foreign(&attachment.container_id),
        };
        let gone = [Some(own), Some(self.temporary(attachment)), is_its_own.then_some(flannels)];
        gone.into_iter().flatten().try_for_each(|path| self.remove(&path))
    }

    /// Removes unfinished files of killed processes; no other process may be writing meanwhile.
    pub fn sweep(&self) -> Result<(), Error> {
        let names = self.names()?;
        let is_unfinished = |name: &&String| name.starts_with('.') && name.contains(':');
        for name in names.iter().filter(is_unfinished) {
            disk::remove(&self.directory.join(name))
                .map_err(|error| self.failure("removing unfinished records", &error))?;
        }
        Ok(())
    }

    /// Everything that is kept, each with its owner.
    pub fn all(&self) -> Result<Vec<(Owner, StoredConfig)>, Error> {
        let record = |owner: Owner| {
            let record = self.read(&self.directory.join(owner.file_name()))?;
            Ok((owner, record))
        };
        self.owners()?.into_iter().map(record).collect()
    }

    /// The number of attachments with a record; no record is opened.
    pub fn count(&self) -> Result<usize, Error> {
        Ok(self.owners()?.len())
    }

    /// Each once, whatever names its record has.
    fn owners(&self) -> Result<Vec<Owner>, Error> {
        let names = self.names()?;
        let mut owners: Vec<_> = names.iter().filter_map(|name| Owner::parse(name)).collect();
        owners.retain(|owner| owner.interface.is_some() || self.is_foreign(&owner.container_id));
        Ok(owners)
    }

    /// As [`forget`](Self::forget), also for owners of which only the container is known.
    pub fn drop_record(&self, owner: &Owner) -> Result<(), Error> {
        if owner.interface.is_some() {
            return self.forget(&owner.attachment());
        }
        self.remove(&self.flannels(&owner.container_id))
    }

    fn remove(&self, path: &Path) -> Result<(), Error> {
        disk::remove(path)
            .map_err(|error| self.failure("removing the record of a container", &error))
    }

    fn own(&self, attachment: &Attachment) -> PathBuf {
        self.directory.join(name_of(attachment))
    }

    fn temporary(&self, attachment: &Attachment) -> PathBuf {
        self.directory.join(format!(".{}", name_of(attachment)))
    }

    fn flannels(&self, container_id: &str) -> PathBuf {
        self.directory.join(container_id)
    }

    /// Whether it is the record of `attachment` that is linked under flannel's name.
    fn has_flannels_name(&self, attachment: &Attachment) -> bool {
        let own = inode(&self.own(attachment));
        own.is_some() && own == inode(&self.flannels(&attachment.container_id))
    }

    /// Whether flannel's name of a container is no link to a record of ours.
    fn is_foreign(&self, container_id: &str) -> bool {
        let metadata = fs::symlink_metadata(self.flannels(container_id));
        metadata.is_ok_and(|file| file.is_dir() || file.nlink() == 1)
    }

    fn read(&self, path: &Path) -> Result<StoredConfig, Error> {
        match plain_file::read(path, LONGEST_RECORD, Symlink::Refused) {
            Ok(bytes) => {
                Ok(serde_json::from_slice(&bytes)
                    .map_or(StoredConfig::Damaged, StoredConfig::Config))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(StoredConfig::Absent),
            Err(error) if will_never_be_read(&error) => Ok(StoredConfig::Damaged),
            Err(error) => Err(self.failure("reading the record of a container", &error)),
        }
    }

    fn names(&self) -> Result<Vec<String>, Error> {
        let names = disk::names(&self.directory);
        names.map_err(|error| self.failure("listing the records", &error))
    }

    fn failure(&self, doing: &str, error: &io::Error) -> Error {
        Error::failed(format!("{doing} in {}: {error}", self.directory.display()))
    }
}

impl Owner {
    /// None for names that are no record's.
    fn parse(name: &str) -> Option<Self> {
        let (container_id, interface) = match name.split_once(':') {
            Some((container_id, interface)) => (container_id, Some(interface.to_owned())),
            None => (name, None),
        };
        let is_record = !name.starts_with('.');
        is_record.then(|| Self { container_id: container_id.to_owned(), interface })
    }

    /// Of a record that flannel's plugin wrote, with the interface that nearly all have.
    pub fn attachment(&self) -> Attachment {
        let interface = self.interface.as_deref().unwrap_or(USUAL_INTERFACE).to_owned();
        Attachment { container_id: self.container_id.clone(), interface }
    }

    fn file_name(&self) -> String {
        let is_own = self.interface.is_some();
        if is_own { name_of(&self.attachment()) } else { self.container_id.clone() }
    }
}

fn name_of(attachment: &Attachment) -> String {
    format!("{}:{}", attachment.container_id, attachment.interface)
}

fn inode(path: &Path) -> Option<u64> {
    fs::symlink_metadata(path).ok().map(|file| file.ino())
}

/// No file, or one on a part of the disk that is broken.
fn will_never_be_read(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData || error.raw_os_error() == Some(Errno::EIO as i32)
}

#[cfg(test)]
mod tests;
