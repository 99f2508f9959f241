//! What one command reads and changes in a store, under its lock.

use std::collections::HashSet;
use std::fs;
use std::net::IpAddr;
use std::time::SystemTime;

use super::audit;
use super::config::Location;
use super::liveness;
use super::store::{Entry, Record, Store};
use crate::disk::lock::Lock;
use crate::protocol::error::Error;
use crate::protocol::request::Attachment;

impl Store {
    /// The store and its lock; created if absent. The first command after a boot frees older addresses.
    pub(super) fn open(location: &Location) -> Result<(Self, Lock), Error> {
        let store = Self::at(location.directory());
        store.create()?;
        let lock = store.lock(location.lock_wait)?;
        clean_up_after_boot(&store, &lock, location);
        Ok((store, lock))
    }

    /// As [`open`](Self::open), where there is a store.
    pub(super) fn existing(location: &Location) -> Result<Option<(Self, Lock)>, Error> {
        location.directory().is_dir().then(|| Self::open(location)).transpose()
    }

    /// The addresses that `attachment` holds; if none, those that old records name its container for.
    /// If the reservations confirm all of `expected`, the others are not read.
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
        let mut records = self.readable_records()?;
        records.retain(|(entry, record)| entry.is_proper() && record.is_of(attachment));
        let (own, of_container): (Vec<_>, Vec<_>) =
            records.into_iter().partition(|(_, record)| matches!(record, Record::Of(_)));
        let held = if own.is_empty() { of_container } else { own };
        Ok(held.into_iter().map(|(entry, _)| entry).collect())
    }

    /// Runs `choose` with the reserved addresses; if it fails, again without records without content.
    pub(super) fn choose<T>(
        &self,
        choose: impl Fn(&HashSet<IpAddr>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let reserved = self.entries()?.into_iter().map(|entry| entry.address).collect();
        choose(&reserved).or_else(|_| {
            let readable = self.readable_records()?.into_iter();
            choose(&readable.map(|(entry, _)| entry.address).collect())
        })
    }

    /// All records but those without content, which it frees: under the lock, no process fills them.
    fn readable_records(&self) -> Result<Vec<(Entry, Record)>, Error> {
        let mut records = Vec::new();
        for entry in self.entries()? {
            match self.record(&entry) {
                Some(Record::Damaged) if self.free(&entry).is_ok() => {}
                Some(record) => records.push((entry, record)),
                None => {}
            }
        }
        Ok(records)
    }

    pub(super) fn is_of(&self, entry: &Entry, owner: &Attachment) -> bool {
        self.record(entry).is_some_and(|record| record.is_of(owner))
    }

    /// `false` as well where the time of the boot or of the record is unknown.
    pub(super) fn is_from_before_boot(&self, entry: &Entry) -> bool {
        let times = (self.changed(entry), liveness::booted(SystemTime::now()));
        matches!(times, (Ok(Some(changed)), Ok(booted)) if changed < booted)
    }
}

/// Runs once per boot: the time of the lock's file is that of the last clean-up, as no program writes
/// to it. An error is ignored: `tweedctl ipam check` frees what is left.
fn clean_up_after_boot(store: &Store, lock: &Lock, location: &Location) {
    let Ok(booted) = liveness::booted(SystemTime::now()) else { return };
    if lock.modified().is_ok_and(|modified| modified >= booted) {
        return;
    }
    drop(audit::sweep(store, location, booted));
    remove_former_index(location);
    drop(lock.touch());
}

/// Earlier versions kept an index next to the store, which nothing reads any more.
pub(super) fn remove_former_index(location: &Location) {
    let index = format!(".{}.index", location.network);
    drop(fs::remove_file(location.data_dir.join(index)));
}
