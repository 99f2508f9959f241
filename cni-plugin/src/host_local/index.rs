//! Who holds what and which addresses are taken, found without a look at every reservation.
//!
//! A hint beside the store, which stays the truth: it is believed as long as its seal is intact.

use std::fs::{File, OpenOptions};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::boot::Boot;
use super::hash::hash;
use super::header::{self, State};
use super::number::{address, number};
use super::pages;
use super::record::{self, Record};
use super::seal::Seal;
use super::table::{Key, Table};
use crate::attachment::Attachment;
use crate::plain_file;

const FILE_MODE: u32 = 0o600;

/// Keys of owners have this bit; those of pages do not.
const OWNER: Key = 1 << 127;

#[derive(Debug)]
pub(super) struct Index {
    file: File,
    boot: Option<Boot>,
    turn: u64,
    table: Table,
}

/// Opens the file at `path`, or creates an empty one.
pub(super) fn open_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
    plain_file::open(path, &mut options)
}

/// Whether the index at `path` is from before this boot, or nobody knows from when.
pub(super) fn is_of_another_boot(path: &Path) -> bool {
    let file = plain_file::open(path, File::options().read(true)).ok();
    let recorded = file.and_then(|file| header::read_boot(&file));
    Boot::current().is_some_and(|current| recorded != Some(current))
}

/// A file that lasts as long as this process.
pub(super) fn nameless_file() -> io::Result<File> {
    Ok(memfd_create("index", MFdFlags::MFD_CLOEXEC)?.into())
}

impl Index {
    /// The index that `file` holds; `None` unless it describes `directory` as it is.
    pub(super) fn open(file: File, boot: Option<Boot>, directory: &File) -> Option<Self> {
        let State { turn, slots, used, seal } = header::read_state(&file, boot?)?;
        let current = seal.is_intact() && Seal::of(directory).ok()? == seal;
        let table = current.then(|| file.try_clone().ok()).flatten();
        let table = Table::open(table?, header::LENGTH, slots, used)?;
        Some(Self { file, boot, turn, table })
    }

    /// Writes an index of `entries` into `file`, instead of whatever is there.
    pub(super) fn build(
        file: File,
        boot: Option<Boot>,
        entries: &[(IpAddr, Record)],
    ) -> io::Result<Self> {
        let before = boot.and_then(|boot| header::read_state(&file, boot));
        let turn = before.map_or(0, |state| state.turn);
        header::erase_state(&file)?;
        if let Some(boot) = boot {
            header::write_boot(&file, boot)?;
        }
        let owners = entries.iter().filter_map(|(address, record)| owner_pair(*address, record));
        let taken = entries.iter().map(|(address, _)| number(*address));
        let pairs: Vec<_> = owners.chain(pages::filled(taken)).collect();
        let table = Table::build(file.try_clone()?, header::LENGTH, &pairs)?;
        Ok(Self { file, boot, turn, table })
    }

    /// From here to [`Index::seal`], a crash costs a new index.
    pub(super) fn unseal(&self) -> io::Result<()> {
        header::erase_state(&self.file)
    }

    /// States that this describes `directory` as it is now.
    pub(super) fn seal(&mut self, directory: &File) -> io::Result<()> {
        let Some(boot) = self.boot else { return Ok(()) };
        self.turn += 1;
        let seal = Seal::put(directory, self.turn)?;
        let (slots, used) = (self.table.slots(), self.table.used());
        header::write_state(&self.file, boot, &State { turn: self.turn, slots, used, seal })
    }

    /// What is recorded for `attachment`.
    pub(super) fn held_by(&self, attachment: &Attachment) -> io::Result<Vec<IpAddr>> {
        self.addresses(owner_key(attachment))
    }

    /// What is recorded for all interfaces of `container`.
    pub(super) fn held_by_container(&self, container: &str) -> io::Result<Vec<IpAddr>> {
        self.addresses(container_key(container))
    }

    fn addresses(&self, owner: Key) -> io::Result<Vec<IpAddr>> {
        Ok(self.table.values(owner)?.into_iter().map(address).collect())
    }

    /// The lowest address from `first` to `last` that is not taken.
    pub(super) fn first_free(&self, first: u128, last: u128) -> io::Result<Option<IpAddr>> {
        let mut next = first;
        while next <= last {
            let page = self.page(next)?;
            if let Some(free) = pages::first_free(page, next) {
                return Ok((free <= last).then(|| address(free)));
            }
            let Some(after) = pages::end_of(next).checked_add(1) else { break };
            next = after;
        }
        Ok(None)
    }

    pub(super) fn insert(&mut self, taken: IpAddr, record: &Record) -> io::Result<()> {
        if let Some((key, value)) = owner_pair(taken, record) {
            self.table.insert(key, value)?;
        }
        let page = self.page(number(taken))?;
        self.set_page(taken, page | pages::bit(number(taken)))
    }

    pub(super) fn remove(&mut self, freed: IpAddr, record: &Record) -> io::Result<()> {
        if let Some((key, value)) = owner_pair(freed, record) {
            self.table.remove(key, value)?;
        }
        let page = self.page(number(freed))?;
        self.set_page(freed, page & !pages::bit(number(freed)))
    }

    fn page(&self, of: u128) -> io::Result<u128> {
        Ok(self.table.values(pages::key(of))?.first().copied().unwrap_or_default())
    }

    fn set_page(&mut self, of: IpAddr, page: u128) -> io::Result<()> {
        let key = pages::key(number(of));
        if page == 0 {
            let before = self.page(number(of))?;
            return self.table.remove(key, before);
        }
        self.table.set(key, page)
    }
}

fn owner_pair(address: IpAddr, record: &Record) -> Option<(Key, u128)> {
    let key = match record {
        Record::Of(attachment) => owner_key(attachment),
        Record::OfContainer(container) => container_key(container),
        Record::Damaged | Record::Foreign => return None,
    };
    Some((key, number(address)))
}

fn owner_key(attachment: &Attachment) -> Key {
    hash([record::render(attachment).as_bytes()]) | OWNER
}

fn container_key(container: &str) -> Key {
    hash([container.as_bytes()]) | OWNER
}

#[cfg(test)]
#[path = "tests/index.rs"]
mod tests;
