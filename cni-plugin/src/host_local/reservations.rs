//! The store under its lock: what one command reads and changes.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::time::SystemTime;

use super::audit;
use super::config::Location;
use super::liveness;
use super::store::{Entry, Record, Reservation, Store};
use crate::disk::lock::Lock;
use crate::protocol::error::Error;
use crate::protocol::request::Attachment;

#[derive(Debug)]
pub(super) struct Reservations {
    store: Store,
    _lock: Lock,
}

impl Reservations {
    /// Waits for the lock; creates the store if there is none.
    ///
    /// The first command after a boot frees what is left from before.
    pub(super) fn open(location: &Location) -> Result<Self, Error> {
        let store = Store::at(location.directory());
        store.create().map_err(|cause| unusable(&store, &cause))?;
        let lock = store.lock(location.lock_wait)?;
        clean_up_after_boot(&store, &lock, location);
        Ok(Self { store, _lock: lock })
    }

    /// As [`open`](Self::open), where there is a store.
    pub(super) fn existing(location: &Location) -> Result<Option<Self>, Error> {
        location.directory().is_dir().then(|| Self::open(location)).transpose()
    }

    /// The addresses that `attachment` holds; if none, those that old records name its container for.
    ///
    /// `expected` is what the record of the attachment names. Where the reservations confirm all of
    /// it, no other is read.
    pub(super) fn held_by(
        &self,
        attachment: &Attachment,
        expected: Option<&[IpAddr]>,
    ) -> Result<Vec<Entry>, Error> {
        if let Some(expected) = expected {
            let entries: Vec<_> = expected.iter().copied().map(Entry::from).collect();
            if entries.iter().all(|entry| self.is_of(entry, attachment)) {
                return Ok(entries);
            }
        }
        self.search(attachment)
    }

    fn search(&self, attachment: &Attachment) -> Result<Vec<Entry>, Error> {
        let mut records = self.readable_records()?;
        records.retain(|(entry, record)| entry.is_proper() && record.is_of(attachment));
        let (own, of_container): (Vec<_>, Vec<_>) =
            records.into_iter().partition(|(_, record)| matches!(record, Record::Of(_)));
        let held = if own.is_empty() { of_container } else { own };
        Ok(held.into_iter().map(|(entry, _)| entry).collect())
    }

    /// Every address with a reservation, by the names of the files alone.
    pub(super) fn taken(&self) -> Result<HashSet<IpAddr>, Error> {
        let entries = self.store.entries().map_err(|cause| unusable(&self.store, &cause))?;
        Ok(entries.into_iter().map(|entry| entry.address).collect())
    }

    /// The same, after every reservation without content was freed.
    pub(super) fn taken_without_damaged(&self) -> Result<HashSet<IpAddr>, Error> {
        Ok(self.readable_records()?.into_iter().map(|(entry, _)| entry.address).collect())
    }

    /// All records; those without content are freed on the way.
    ///
    /// Every record is written under the lock, which is held: no process is about to fill one.
    fn readable_records(&self) -> Result<Vec<(Entry, Record)>, Error> {
        let mut records = Vec::new();
        for entry in self.store.entries().map_err(|cause| unusable(&self.store, &cause))? {
            match self.store.record_or_foreign(&entry) {
                Some(Record::Damaged) if self.store.free(&entry).is_ok() => {}
                Some(record) => records.push((entry, record)),
                None => {}
            }
        }
        Ok(records)
    }

    /// Reserves `address`, which must be free, for `owner`.
    pub(super) fn reserve(&self, address: IpAddr, owner: &Attachment) -> Result<(), Error> {
        self.store.reserve(address, owner).map_err(|cause| {
            let store = self.store.directory().display();
            Error::failed(format!("reserving {address} in {store}: {cause}"))
        })
    }

    pub(super) fn free(&self, entry: &Entry) -> Result<(), Error> {
        self.store.free(entry).map_err(|cause| {
            let path = self.store.directory().join(&entry.name);
            Error::failed(format!("removing {}: {cause}", path.display()))
        })
    }

    /// As [`free`](Self::free), if `owner` holds the address.
    pub(super) fn free_of(&self, entry: &Entry, owner: &Attachment) -> Result<(), Error> {
        if self.is_of(entry, owner) { self.free(entry) } else { Ok(()) }
    }

    fn is_of(&self, entry: &Entry, owner: &Attachment) -> bool {
        matches!(self.store.record(entry), Ok(Some(record)) if record.is_of(owner))
    }

    /// `false` as well where the time of the boot or of the record is unknown.
    pub(super) fn is_from_before_boot(&self, entry: &Entry) -> bool {
        let booted = liveness::booted(SystemTime::now());
        booted.is_ok_and(|booted| self.store.changed(entry).is_ok_and(|changed| changed < booted))
    }

    pub(super) fn last_reserved(&self, set: usize) -> Option<IpAddr> {
        self.store.last_reserved(set)
    }

    pub(super) fn set_last_reserved(&self, set: usize, address: IpAddr) -> Result<(), Error> {
        self.store.set_last_reserved(set, address).map_err(|cause| unusable(&self.store, &cause))
    }

    /// Every record of an address, with its time.
    pub(super) fn found(&self) -> Result<Vec<Reservation>, Error> {
        self.store.found().map_err(|cause| unusable(&self.store, &cause))
    }
}

fn unusable(store: &Store, cause: &io::Error) -> Error {
    Error::failed(format!("the store {} cannot be used: {cause}", store.directory().display()))
}

/// Runs once per boot: the time of the lock's file is that of the last clean-up, as no program
/// writes to it.
///
/// What is not freed now can be freed by hand: no command fails for that.
fn clean_up_after_boot(store: &Store, lock: &Lock, location: &Location) {
    let Ok(booted) = liveness::booted(SystemTime::now()) else { return };
    if lock.modified().is_ok_and(|modified| modified >= booted) {
        return;
    }
    drop(audit::sweep(store, location, booted));
    remove_former_index(location);
    drop(lock.touch());
}

pub(super) fn remove_former_index(location: &Location) {
    drop(fs::remove_file(location.former_index()));
}
