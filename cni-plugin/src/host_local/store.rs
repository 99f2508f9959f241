//! The files of a network's store, as of Go's host-local: one per reserved address, with its holder.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::unistd::linkat;

use crate::disk::lock::{Lock, Sharing, lockable};
use crate::disk::plain_file::{self, Symlink, changed};
use crate::disk::{if_present, names, remove};
use crate::protocol::error::Error;
use crate::protocol::json;
use crate::protocol::request::Attachment;

const DIRECTORY_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o600;
/// The sticky bit means nothing on a file, and no umask and no other program sets it: it marks records
/// that this plugin created.
const RECORD_MODE: u32 = 0o1000 | FILE_MODE;
const LOCK: &str = "lock";
const LOCK_MODE: u32 = 0o750;

/// No record is longer, in bytes.
const LONGEST_RECORD: usize = 4096;

/// The text of an address is shorter, in bytes.
const LONGEST_COUNTER: u64 = 64;

/// The first name of a record on a file system without nameless files.
const NAMELESS: &str = ".reserving";

#[derive(Debug)]
pub(super) struct Store {
    directory: PathBuf,
}

/// A file named after an address.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Entry {
    pub(super) address: IpAddr,
    /// Differs from the address's own text if the file is foreign.
    pub(super) name: String,
}

/// The content of a file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Record {
    Of(Attachment),
    /// Written before interfaces were: any interface of this container.
    OfContainer(String),
    /// Created and never filled, or lost with the power: it has no content.
    Damaged,
    /// Made by hand: it does not name the container that holds the address.
    Foreign,
}

/// A record as it was read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Reservation {
    pub(super) entry: Entry,
    pub(super) record: Record,
    /// The last change of its file.
    pub(super) changed: SystemTime,
}

impl Entry {
    /// Whether the address is written as host-local writes it.
    pub(super) fn is_proper(&self) -> bool {
        self.name == self.address.to_string()
    }
}

impl Store {
    pub(super) fn at(directory: PathBuf) -> Self {
        Self { directory }
    }

    pub(super) fn create(&self) -> Result<(), Error> {
        let created =
            DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(&self.directory);
        created.map_err(|cause| self.unusable(&cause))
    }

    pub(super) fn lock_path(&self) -> PathBuf {
        self.directory.join(LOCK)
    }

    /// Takes the lock of Go's host-local; waits at most for `timeout`.
    pub(super) fn lock(&self, timeout: Duration) -> Result<Lock, Error> {
        let path = self.lock_path();
        let (file, path) = lockable(&self.directory, LOCK, LOCK_MODE)
            .map_err(|cause| Error::failed(format!("locking {}: {cause}", path.display())))?;
        Lock::take(file, &path, Sharing::Exclusive, timeout)
    }

    /// Writes that `owner` holds `address`, which must be free, whole or not at all.
    pub(super) fn reserve(&self, address: IpAddr, owner: &Attachment) -> Result<(), Error> {
        let (path, content) = (self.directory.join(address.to_string()), render(owner));
        let linked = match self.link_nameless(&path, &content) {
            Err(error) if lacks_nameless_files(&error) => self.link_named(&path, &content),
            linked => linked,
        };
        linked.map_err(|cause| {
            let store = self.directory.display();
            Error::failed(format!("reserving {address} in {store}: {cause}"))
        })
    }

    fn link_nameless(&self, path: &Path, content: &str) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).mode(RECORD_MODE).custom_flags(OFlag::O_TMPFILE.bits());
        let mut file = options.open(&self.directory)?;
        file.write_all(content.as_bytes())?;
        let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
        let follow = AtFlags::AT_SYMLINK_FOLLOW;
        Ok(linkat(AT_FDCWD, nameless.as_str(), AT_FDCWD, path, follow)?)
    }

    fn link_named(&self, path: &Path, content: &str) -> io::Result<()> {
        let waiting = self.directory.join(NAMELESS);
        // A crash may have left one that is a record by now: not to be written to.
        remove(&waiting)?;
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(RECORD_MODE).open(&waiting)?;
        let linked =
            file.write_all(content.as_bytes()).and_then(|()| fs::hard_link(&waiting, path));
        remove(&waiting)?;
        linked
    }

    /// Removes the record of `address`; it may be gone already.
    pub(super) fn free(&self, entry: &Entry) -> Result<(), Error> {
        let path = self.directory.join(&entry.name);
        remove(&path)
            .map_err(|cause| Error::failed(format!("removing {}: {cause}", path.display())))
    }

    /// What is written about `address`; `None` if nothing is. What cannot be read counts as held: a
    /// directory, a link, a pipe or a device with an address for a name, or a file of a broken disk.
    pub(super) fn record(&self, entry: &Entry) -> Option<Record> {
        if_present(read(&self.directory.join(&entry.name))).unwrap_or(Some(Record::Foreign))
    }

    /// When the record was last changed; `None` if it is removed.
    pub(super) fn changed(&self, entry: &Entry) -> Result<Option<SystemTime>, Error> {
        let metadata = if_present(fs::symlink_metadata(self.directory.join(&entry.name)));
        metadata.map(|it| it.as_ref().map(changed)).map_err(|cause| self.unusable(&cause))
    }

    /// The records whose last change `is_wanted`, in no order; the others are not even opened.
    pub(super) fn found(
        &self,
        is_wanted: impl Fn(SystemTime) -> bool,
    ) -> Result<Vec<Reservation>, Error> {
        let mut all = Vec::new();
        for entry in self.entries()? {
            let Some(changed) = self.changed(&entry)?.filter(|changed| is_wanted(*changed)) else {
                continue;
            };
            all.extend(self.record(&entry).map(|record| Reservation { entry, record, changed }));
        }
        Ok(all)
    }

    /// Every file that is named after an address, in no order.
    pub(super) fn entries(&self) -> Result<Vec<Entry>, Error> {
        let names = names(&self.directory).map_err(|cause| self.unusable(&cause))?.into_iter();
        let entry = |name: String| Some(Entry { address: json::address(&name)?, name });
        Ok(names.filter_map(entry).collect())
    }

    /// The address that was reserved last from the range set `set`, if that is known.
    pub(super) fn last_reserved(&self, set: usize) -> Option<IpAddr> {
        let path = self.last_reserved_path(set);
        let content = plain_file::read(&path, LONGEST_COUNTER, Symlink::Refused).ok()?;
        json::address(str::from_utf8(&content).ok()?.trim())
    }

    pub(super) fn set_last_reserved(&self, set: usize, address: IpAddr) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(FILE_MODE);
        let file = plain_file::open(&self.last_reserved_path(set), &mut options, Symlink::Refused)?;
        let text = address.to_string();
        // Never empty in between: after a crash there, the order would begin at the first address.
        file.write_all_at(text.as_bytes(), 0)?;
        file.set_len(text.len() as u64)
    }

    fn last_reserved_path(&self, set: usize) -> PathBuf {
        self.directory.join(format!("last_reserved_ip.{set}"))
    }

    fn unusable(&self, cause: &io::Error) -> Error {
        Error::failed(format!("the store {} cannot be used: {cause}", self.directory.display()))
    }
}

impl From<IpAddr> for Entry {
    fn from(address: IpAddr) -> Self {
        Self { address, name: address.to_string() }
    }
}

/// Some file systems, and a system without /proc, cannot give a name to a nameless file.
fn lacks_nameless_files(error: &io::Error) -> bool {
    let unsupported = [ErrorKind::Unsupported, ErrorKind::IsADirectory, ErrorKind::NotFound];
    unsupported.contains(&error.kind())
}

/// An empty file is damaged only if this plugin created it; else a person may block the address with it.
fn read(path: &Path) -> io::Result<Record> {
    let mut content = [0; LONGEST_RECORD];
    let mut file = plain_file::open(path, File::options().read(true), Symlink::Refused)?;
    // A file of a disk comes in one piece: to ask for its end would cost as much again.
    let length = file.read(&mut content)?;
    let content = content.get(..length).unwrap_or_default();
    let record = Record::parse(content);
    // Only a power failure leaves zeros.
    let is_blank = record == Record::Damaged && !content.contains(&0);
    if is_blank && file.metadata()?.permissions().mode() & 0o7777 != RECORD_MODE {
        return Ok(Record::Foreign);
    }
    Ok(record)
}

impl Record {
    pub(super) fn parse(content: &[u8]) -> Self {
        if content.contains(&0) {
            return Self::Damaged;
        }
        let Ok(text) = str::from_utf8(content).map(str::trim) else { return Self::Foreign };
        match text.split_once("\r\n") {
            None if text.is_empty() => Self::Damaged,
            Some((id, interface)) if is_word(id) && is_name(interface) => Self::Of(Attachment {
                container_id: id.to_owned(),
                interface: interface.to_owned(),
            }),
            None if is_word(text) => Self::OfContainer(text.to_owned()),
            _ => Self::Foreign,
        }
    }

    pub(super) fn is_of(&self, attachment: &Attachment) -> bool {
        match self {
            Self::Of(owner) => owner == attachment,
            Self::OfContainer(id) => *id == attachment.container_id,
            Self::Damaged | Self::Foreign => false,
        }
    }
}

/// The content of the file of an address that `attachment` holds.
pub(super) fn render(attachment: &Attachment) -> String {
    format!("{}\r\n{}", attachment.container_id, attachment.interface)
}

/// Whether `id` is of the form that runtimes give to containers, and not a word of an operator's.
pub(super) fn is_of_a_runtime(id: &str) -> bool {
    const SHORTEST: usize = 12;
    id.len() >= SHORTEST && id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

fn is_word(text: &str) -> bool {
    is_name(text) && !text.contains(char::is_control)
}

/// The kernel takes control characters in the name of an interface, and so do other plugins.
fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains(char::is_whitespace)
}

#[cfg(test)]
#[path = "tests/store.rs"]
mod tests;

#[cfg(test)]
#[path = "tests/record.rs"]
mod record_tests;
