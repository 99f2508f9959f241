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
mod lock;
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

use std::collections::HashSet;
use std::time::Duration;

use crate::attachment::Attachment;
use crate::error::Error;
use record::Record;
use reservations::Reservations;
use rounds::round;

/// Frees what `attachment` holds; to hold nothing is no error.
pub fn release(config: &Config, attachment: &Attachment) -> Result<(), Error> {
    if !config.location.directory().is_dir() {
        return Ok(());
    }
    let mut reservations = Reservations::open(&config.location)?;
    let freed = free_all(&mut reservations, attachment);
    reservations.close();
    freed
}

fn free_all(reservations: &mut Reservations, attachment: &Attachment) -> Result<(), Error> {
    let held = reservations.held_by(attachment)?;
    held.iter().try_for_each(|entry| reservations.free(entry))
}

/// Fails unless `attachment` holds an address.
pub fn check(config: &Config, attachment: &Attachment) -> Result<(), Error> {
    let container = &attachment.container_id;
    let lost = || {
        let lost = format!("host-local: Failed to find address added by container {container}");
        Err(Error::failed(lost))
    };
    if !config.location.directory().is_dir() {
        return lost();
    }
    let mut reservations = Reservations::open(&config.location)?;
    let held = reservations.held_by(attachment)?;
    reservations.close();
    if held.is_empty() { lost() } else { Ok(()) }
}

/// Frees what nobody of `valid` holds, and tells whose it was.
///
/// A record that does not say whose it is stays.
pub fn collect(config: &Config, valid: &[Attachment]) -> Result<Vec<Attachment>, Error> {
    if !config.location.directory().is_dir() {
        return Ok(Vec::new());
    }
    let mut reservations = Reservations::open(&config.location)?;
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
    for found in reservations.found()? {
        let owner = match found.record {
            Record::Of(owner) if !attachments.contains(&owner) => owner,
            Record::OfContainer(container_id) if !containers.contains(&container_id) => {
                Attachment { container_id, interface: String::new() }
            }
            _ => continue,
        };
        reservations.free(&found.entry)?;
        collected.push(owner);
    }
    collected.sort();
    collected.dedup();
    Ok(collected)
}

/// Fails if some range set has no address left.
///
/// Does not wait for a store that is in use: whoever uses it finds out.
pub fn status(config: &Config) -> Result<(), Error> {
    if !config.location.directory().is_dir() {
        return Ok(());
    }
    let impatient = Location { lock_wait: Duration::ZERO, ..config.location.clone() };
    let Ok(mut reservations) = Reservations::open(&impatient) else { return Ok(()) };
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
