//! Checks a whole store, record by record: which are held, and which can be freed.

use std::fs;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use super::classification::{Classification, classify};
use super::config::Location;
use super::liveness::{Liveness, in_a_container};
use super::record::Record;
use super::store::{Reservation, Store};
use crate::excerpt;
use crate::protocol::error::Error;

/// One record and what is known about it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Finding {
    /// The name of its file, an address.
    pub name: String,
    /// Empty if it names none.
    pub owner: String,
    pub classification: Classification,
    pub freed: bool,
}

/// What to do with records that are proven dead.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Repair {
    Nothing,
    Free,
}

/// The networks that have a store in `data_dir`, sorted by name.
pub fn networks(data_dir: &Path) -> io::Result<Vec<String>> {
    let mut networks = Vec::new();
    for entry in fs::read_dir(data_dir)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if fs::symlink_metadata(Store::at(entry.path()).lock_path()).is_ok() {
            networks.push(name);
        }
    }
    networks.sort();
    Ok(networks)
}

/// Whether this process may be in a container, from which it cannot see what uses an address.
pub fn may_be_blind() -> bool {
    in_a_container()
}

/// Classifies every record, sorted by address, and frees what is proven dead if `repair` asks for it.
///
/// The store is locked meanwhile: no allocation gets in between.
pub fn audit(location: &Location, repair: Repair) -> Result<Vec<Finding>, Error> {
    let store = Store::at(location.directory());
    let failed = |cause: io::Error| {
        Error::failed(format!("the store {} cannot be used: {cause}", store.directory().display()))
    };
    let _lock = store.lock(location.lock_wait)?;
    let mut all = store.found().map_err(failed)?;
    all.sort_by_key(|found| (found.entry.address, found.entry.name.clone()));
    let liveness = Liveness::gather(&location.results).map_err(|cause| {
        Error::failed(format!("who uses the addresses cannot be seen, try it as root: {cause}"))
    })?;
    let mut findings = Vec::new();
    for found in all {
        let classification = classify(&found, &location.network, &liveness);
        let freed = classification.proven_dead && repair == Repair::Free;
        if freed {
            store.free(&found.entry).map_err(failed)?;
        }
        let (name, owner) = (found.entry.name, owner(&found.record));
        findings.push(Finding { name, owner, classification, freed });
    }
    Ok(findings)
}

fn owner(record: &Record) -> String {
    let owner = match record {
        Record::Of(attachment) => attachment.to_string(),
        Record::OfContainer(container) => format!("container {container}"),
        Record::Damaged | Record::Foreign => String::new(),
    };
    excerpt::value(&owner)
}

/// Frees what is from before `boot` and proven dead.
pub(super) fn sweep(store: &Store, location: &Location, boot: SystemTime) -> io::Result<()> {
    let old = store.found_before(boot)?;
    if old.is_empty() {
        return Ok(());
    }
    let liveness = Liveness { booted: boot, ..Liveness::gather(&location.results)? };
    let dead = |found: &&Reservation| classify(found, &location.network, &liveness).proven_dead;
    old.iter().filter(dead).try_for_each(|found| store.free(&found.entry))
}

#[cfg(test)]
#[path = "tests/audit.rs"]
mod tests;
