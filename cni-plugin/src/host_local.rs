//! The addresses of a node's containers, in the store that Go's host-local keeps.
//!
//! Whatever this does, host-local can go on with, and the other way round, with pods running.

mod allocate;
mod audit;
mod boot;
mod config;
mod hash;
mod header;
mod index;
mod location;
pub(crate) mod number;
mod pages;
mod range;
mod record;
mod reservations;
mod rounds;
mod seal;
mod store;
mod table;
#[cfg(test)]
mod tests;
mod verdict;
mod witness;

pub use allocate::{Allocated, Allocation, allocate};
pub use audit::{Cure, Finding, audit, may_be_blind, networks};
pub use config::Config;
pub use location::Location;
pub use range::{Range, RangeSet};
pub use verdict::{Kind, Verdict};
pub(crate) use verdict::{alive, dead, is_settled};
pub(crate) use witness::Witnesses;

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use crate::attachment::Attachment;
use crate::error::Error;
use record::{Record, is_of_a_runtime};
use reservations::Reservations;
use rounds::round;
use store::{Entry, Store};

/// Frees what `attachment` holds; to hold nothing is no error.
pub fn release(location: &Location, attachment: &Attachment) -> Result<(), Error> {
    if !location.directory().is_dir() {
        return Ok(());
    }
    let mut reservations = Reservations::open(location)?;
    let freed = free_all(&mut reservations, attachment);
    reservations.close();
    freed
}

fn free_all(reservations: &mut Reservations, attachment: &Attachment) -> Result<(), Error> {
    let held = reservations.held_by(attachment)?;
    // One that cannot be freed keeps none of the others.
    held.iter().map(|entry| reservations.free(entry)).fold(Ok(()), Result::and)
}

/// Frees what `allocation` gave to `attachment`, and nothing that it held before.
pub fn give_back(
    location: &Location,
    attachment: &Attachment,
    allocation: &Allocation,
) -> Result<(), Error> {
    let mut reservations = Reservations::open(location)?;
    let given = allocation.addresses.iter().map(|one| Entry::from(one.address.ip()));
    let freed = given.map(|entry| reservations.free_of(&entry, attachment));
    let freed = freed.fold(Ok(()), Result::and);
    reservations.close();
    freed
}

/// Fails unless `attachment` holds an address.
pub fn check(location: &Location, attachment: &Attachment) -> Result<(), Error> {
    let container = &attachment.container_id;
    let lost = || {
        let lost = format!("host-local: Failed to find address added by container {container}");
        Err(Error::failed(lost))
    };
    if !location.directory().is_dir() {
        return lost();
    }
    let mut reservations = Reservations::open(location)?;
    let held = reservations.held_by(attachment)?;
    reservations.close();
    if held.is_empty() { lost() } else { Ok(()) }
}

/// Frees what nobody of `valid` holds, and tells whose it was.
///
/// A record that does not name a container stays.
pub fn collect(location: &Location, valid: &[Attachment]) -> Result<Vec<Attachment>, Error> {
    if !location.directory().is_dir() {
        return Ok(Vec::new());
    }
    let mut reservations = Reservations::open(location)?;
    let collected = free_invalid(&mut reservations, valid);
    reservations.close();
    collected
}

fn free_invalid(
    reservations: &mut Reservations,
    valid: &[Attachment],
) -> Result<Vec<Attachment>, Error> {
    let attachments: HashSet<_> = valid.iter().collect();
    let containers: HashSet<_> = valid.iter().map(|valid| &valid.container_id).collect();
    let mut collected = Vec::new();
    let mut freed = Ok(());
    for found in reservations.found()? {
        let owner = match found.record {
            // Under the lock nobody is about to fill it.
            Record::Damaged => None,
            Record::Of(owner) if !attachments.contains(&owner) => Some(owner),
            Record::OfContainer(container_id)
                if is_of_a_runtime(&container_id) && !containers.contains(&container_id) =>
            {
                Some(Attachment { container_id, interface: String::new() })
            }
            Record::Of(_) | Record::OfContainer(_) | Record::Foreign => continue,
        };
        // One that cannot be freed keeps none of the others.
        match reservations.free(&found.entry) {
            Ok(()) => collected.extend(owner),
            Err(error) => freed = freed.and(Err(error)),
        }
    }
    collected.sort();
    collected.dedup();
    freed.map(|()| collected)
}

/// The containers that hold an address of the store at `location`.
pub(crate) fn holders(location: &Location) -> io::Result<HashSet<String>> {
    let store = Store::at(location.directory());
    if !store.exists() {
        return Ok(HashSet::new());
    }
    let holders = store.found()?.into_iter().filter_map(|found| match found.record {
        Record::Of(attachment) => Some(attachment.container_id),
        Record::OfContainer(container) => Some(container),
        Record::Damaged | Record::Foreign => None,
    });
    Ok(holders.collect())
}

/// Fails if some range set has no address left.
///
/// Does not wait for a store that is in use: whoever uses it finds out.
pub fn status(config: &Config) -> Result<(), Error> {
    if !config.location.directory().exists() {
        return Ok(());
    }
    let impatient = Location { lock_wait: Duration::ZERO, ..config.location.clone() };
    let mut reservations = match Reservations::open(&impatient) {
        Ok(reservations) => reservations,
        Err(error) if error.is_passing() => return Ok(()),
        Err(error) => return Err(Error::not_available(error.msg)),
    };
    let room = config.range_sets.iter().try_for_each(|set| has_room(&mut reservations, set));
    reservations.close();
    room
}

fn has_room(reservations: &mut Reservations, set: &RangeSet) -> Result<(), Error> {
    for span in round(set, None) {
        if reservations.first_free(span.first, span.last)?.is_some() {
            return Ok(());
        }
    }
    Err(Error::not_available(allocate::exhausted(set).msg))
}
