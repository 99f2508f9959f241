//! The store and its index under the lock: what one command sees and changes.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::audit;
use super::boot::Boot;
use super::index::{self, Index};
use super::location::Location;
use super::record::Record;
use super::store::{Entry, Store};
use super::verdict::Found;
use super::witness;
use crate::attachment::Attachment;
use crate::error::Error;
use crate::lock::Lock;

#[derive(Debug)]
pub(super) struct Reservations {
    store: Store,
    directory: File,
    index: Index,
    index_path: PathBuf,
    /// The index was written by this command: it cannot get any better.
    rebuilt: bool,
    /// The file of the index counts for the next command as it is.
    sealed: bool,
    _lock: Lock,
}

impl Reservations {
    /// Waits for the lock; creates the store if there is none.
    ///
    /// The first command after a boot frees what is left from before.
    pub(super) fn open(location: &Location) -> Result<Self, Error> {
        let store = Store::at(location.directory());
        let failed = |cause: io::Error| unusable(&store, &cause);
        store.create().map_err(failed)?;
        let lock = store.lock(location.lock_wait)?;
        let directory = File::open(store.directory()).map_err(failed)?;
        let index_path = location.index_path();
        let believed = believed_index(&index_path, &directory);
        let (rebuilt, sealed) = (believed.is_none(), believed.is_some());
        let index = if let Some(index) = believed {
            index
        } else {
            sweep_after_boot(&index_path, &store, location);
            new_index(&index_path, &store).map_err(failed)?
        };
        Ok(Self { store, directory, index, index_path, rebuilt, sealed, _lock: lock })
    }

    /// What `attachment` holds; or what its container holds, if the records are that old.
    pub(super) fn held_by(&mut self, attachment: &Attachment) -> Result<Vec<Entry>, Error> {
        let own = self.look_up(|index| index.held_by(attachment), attachment)?;
        if !own.is_empty() {
            return Ok(own);
        }
        let container = &attachment.container_id;
        self.look_up(|index| index.held_by_container(container), attachment)
    }

    /// Believes no answer of the index that the records themselves do not confirm.
    fn look_up(
        &mut self,
        ask: impl Fn(&Index) -> io::Result<Vec<IpAddr>>,
        owner: &Attachment,
    ) -> Result<Vec<Entry>, Error> {
        let entries = self.ask(&ask)?.into_iter().map(Entry::from).collect::<Vec<_>>();
        if entries.iter().all(|entry| self.is_of(entry, owner)) {
            return Ok(entries);
        }
        self.rebuild()?;
        let entries = self.ask(&ask)?.into_iter().map(Entry::from);
        Ok(entries.filter(|entry| self.is_of(entry, owner)).collect())
    }

    fn is_of(&self, entry: &Entry, owner: &Attachment) -> bool {
        matches!(self.store.record(entry), Ok(Some(record)) if record.is_of(owner))
    }

    pub(super) fn first_free(&mut self, first: u128, last: u128) -> Result<Option<IpAddr>, Error> {
        self.ask(|index| index.first_free(first, last))
    }

    /// Reserves `address` for `owner`; `false` if somebody else holds it.
    pub(super) fn take(&mut self, address: IpAddr, owner: &Attachment) -> Result<bool, Error> {
        self.unseal();
        let taken = self.store.reserve(address, owner).map_err(|cause| {
            let store = self.store.directory().display();
            Error::failed(format!("reserving {address} in {store}: {cause}"))
        })?;
        if taken {
            self.tell(|index| index.insert(address, &Record::Of(owner.clone())))?;
        }
        Ok(taken)
    }

    /// The index called `address` free, and it is not: looks again, or at least remembers.
    pub(super) fn distrust(&mut self, address: IpAddr) -> Result<(), Error> {
        if !self.rebuilt {
            return self.rebuild();
        }
        self.unseal();
        self.tell(|index| index.insert(address, &Record::Foreign))
    }

    pub(super) fn free(&mut self, entry: &Entry) -> Result<(), Error> {
        let record = self.store.record(entry).ok().flatten().unwrap_or(Record::Foreign);
        self.unseal();
        self.store.free(entry).map_err(|cause| {
            let path = self.store.directory().join(&entry.name);
            Error::failed(format!("removing {}: {cause}", path.display()))
        })?;
        self.tell(|index| index.remove(entry.address, &record))
    }

    /// As [`free`](Self::free), unless another than `owner` holds the address.
    pub(super) fn free_of(&mut self, entry: &Entry, owner: &Attachment) -> Result<(), Error> {
        if self.is_of(entry, owner) { self.free(entry) } else { Ok(()) }
    }

    /// `false` as well where that cannot be told.
    pub(super) fn is_from_before_boot(&self, entry: &Entry) -> bool {
        let booted = witness::booted(SystemTime::now());
        booted.is_ok_and(|booted| self.store.changed(entry).is_ok_and(|changed| changed < booted))
    }

    pub(super) fn last_reserved(&self, set: usize) -> Option<IpAddr> {
        self.store.last_reserved(set)
    }

    pub(super) fn set_last_reserved(&self, set: usize, address: IpAddr) -> Result<(), Error> {
        self.store.set_last_reserved(set, address).map_err(|cause| unusable(&self.store, &cause))
    }

    /// Every record that is named after an address.
    pub(super) fn found(&self) -> Result<Vec<Found>, Error> {
        self.store.found().map_err(|cause| unusable(&self.store, &cause))
    }

    /// Leaves the index to the next command.
    ///
    /// What was done stands in the store: where this fails, the next command looks there.
    pub(super) fn close(mut self) {
        if !self.sealed {
            drop(self.index.seal(&self.directory));
        }
    }

    fn ask<T>(&mut self, question: impl Fn(&Index) -> io::Result<T>) -> Result<T, Error> {
        if let Ok(answer) = question(&self.index) {
            return Ok(answer);
        }
        self.rebuild()?;
        question(&self.index).map_err(|cause| unusable(&self.store, &cause))
    }

    /// What changed is in the store already: an index that cannot be told is written anew.
    fn tell(&mut self, change: impl FnOnce(&mut Index) -> io::Result<()>) -> Result<(), Error> {
        if change(&mut self.index).is_ok() { Ok(()) } else { self.rebuild() }
    }

    fn rebuild(&mut self) -> Result<(), Error> {
        let index = new_index(&self.index_path, &self.store);
        self.index = index.map_err(|cause| unusable(&self.store, &cause))?;
        (self.rebuilt, self.sealed) = (true, false);
        Ok(())
    }

    fn unseal(&mut self) {
        if self.sealed {
            // Should this fail, the change that follows breaks the seal.
            drop(self.index.unseal());
            self.sealed = false;
        }
    }
}

fn unusable(store: &Store, cause: &io::Error) -> Error {
    Error::failed(format!("the store {} cannot be used: {cause}", store.directory().display()))
}

fn believed_index(path: &Path, directory: &File) -> Option<Index> {
    Index::open(index::open_file(path).ok()?, Boot::current(), directory)
}

/// In the file at `path`, or only for this command where there can be none.
fn new_index(path: &Path, store: &Store) -> io::Result<Index> {
    let records = readable_records(store)?;
    let durable =
        index::open_file(path).and_then(|file| Index::build(file, Boot::current(), &records));
    durable.or_else(|_| Index::build(index::nameless_file()?, None, &records))
}

/// What is not freed now can be freed by hand: no command fails for that.
fn sweep_after_boot(index_path: &Path, store: &Store, location: &Location) {
    if index::is_of_another_boot(index_path) {
        let boot = witness::booted(SystemTime::now());
        drop(boot.and_then(|boot| audit::sweep(store, location, boot)));
    }
}

/// All records; those that say nothing are removed on the way.
///
/// Every record is written under the lock, which we hold: nobody is about to fill an empty one.
fn readable_records(store: &Store) -> io::Result<Vec<(IpAddr, Record)>> {
    let mut kept = Vec::new();
    for entry in store.entries()? {
        match store.record_or_foreign(&entry) {
            Some(Record::Damaged) if store.free(&entry).is_ok() => {}
            Some(Record::Damaged) => kept.push((entry.address, Record::Foreign)),
            Some(record) if entry.is_proper() => kept.push((entry.address, record)),
            Some(_) => kept.push((entry.address, Record::Foreign)),
            None => {}
        }
    }
    Ok(kept)
}
