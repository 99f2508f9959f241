//! The addresses of containers, in the store of Go's host-local: interchangeable while pods run.

mod allocate;
mod audit;
mod config;
mod liveness;
mod range;
mod reservations;
pub(crate) mod runtime_cache;
mod store;
#[cfg(test)]
mod tests;

pub use allocate::allocate;
pub use audit::{
    Classification, Finding, Kind, Repair, addresses_in, audit, networks, reserved_addresses,
};
pub(crate) use audit::{alive, leaked};
pub use config::{Config, Location};
pub(crate) use liveness::Liveness;
pub use liveness::may_be_blind;
pub use range::{Range, RangeSet};

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use crate::protocol::error::Error;
use crate::protocol::json::{self, Object};
use crate::protocol::request::Attachment;
use crate::protocol::result::Address;
use reservations::remove_former_index;
use store::{Entry, Record, Store, is_of_a_runtime};

/// The key of a record that names the addresses of its attachment.
const RESERVED: &str = "reservedAddresses";

/// `config` as it is kept for an attachment that holds `addresses`.
pub fn with_reserved(config: &Object, addresses: &[IpAddr]) -> Object {
    let addresses: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
    let mut kept = config.clone();
    kept.insert(RESERVED.into(), addresses.into());
    kept
}

/// The addresses that a kept config names; `None` if it names none, as those of other plugins.
pub fn reserved(kept: &Object) -> Option<Vec<IpAddr>> {
    let addresses = kept.get(RESERVED)?.as_array()?.iter();
    let addresses = addresses.map(|address| json::address(address.as_str()?));
    addresses.collect::<Option<Vec<_>>>().filter(|addresses| !addresses.is_empty())
}

/// Frees what `attachment` holds, if anything; `expected` is what its record names.
pub fn release(
    location: &Location,
    attachment: &Attachment,
    expected: Option<&[IpAddr]>,
) -> Result<(), Error> {
    let Some((store, _lock)) = Store::existing(location)? else { return Ok(()) };
    let held = store.held_by(attachment, expected)?;
    // One that cannot be freed does not keep the others.
    held.iter().map(|entry| store.free(entry)).fold(Ok(()), Result::and)
}

/// Frees what `allocated` gave to `attachment`, and nothing that it held before; if it then holds no
/// address, calls `forget` before another process can reserve one for it.
pub fn give_back(
    location: &Location,
    attachment: &Attachment,
    allocated: &[Address],
    forget: impl FnOnce(),
) -> Result<(), Error> {
    let (store, _lock) = Store::open(location)?;
    let given = allocated.iter().map(|one| Entry::from(one.address.ip()));
    let reserved = given.filter(|entry| store.is_of(entry, attachment));
    reserved.map(|entry| store.free(&entry)).fold(Ok(()), Result::and)?;
    if store.held_by(attachment, None)?.is_empty() {
        forget();
    }
    Ok(())
}

/// Fails unless `attachment` holds an address.
pub fn check(location: &Location, attachment: &Attachment) -> Result<(), Error> {
    let store = Store::existing(location)?;
    let held = store.map(|(store, _lock)| store.held_by(attachment, None)).transpose()?;
    if held.is_some_and(|held| !held.is_empty()) {
        return Ok(());
    }
    let container = &attachment.container_id;
    let lost = format!("host-local: Failed to find address added by container {container}");
    Err(Error::failed(lost))
}

/// Frees what no attachment of `valid` holds, except foreign records; returns the former owners.
pub fn collect(location: &Location, valid: &[Attachment]) -> Result<Vec<Attachment>, Error> {
    let Some((store, _lock)) = Store::existing(location)? else { return Ok(Vec::new()) };
    remove_former_index(location);
    let attachments: HashSet<_> = valid.iter().collect();
    let containers: HashSet<_> = valid.iter().map(|valid| &valid.container_id).collect();
    let mut collected = Vec::new();
    let mut freed = Ok(());
    for found in store.found(|_| true)? {
        let owner = match found.record {
            // Under the lock no process is about to fill it.
            Record::Damaged => None,
            Record::Of(owner) if !attachments.contains(&owner) => Some(owner),
            Record::OfContainer(container_id)
                if is_of_a_runtime(&container_id) && !containers.contains(&container_id) =>
            {
                Some(Attachment { container_id, interface: String::new() })
            }
            Record::Of(_) | Record::OfContainer(_) | Record::Foreign => continue,
        };
        // One that cannot be freed does not keep the others.
        match store.free(&found.entry) {
            Ok(()) => collected.extend(owner),
            Err(error) => freed = freed.and(Err(error)),
        }
    }
    collected.sort();
    collected.dedup();
    freed.map(|()| collected)
}

/// The containers that hold an address of the store at `location`.
pub(crate) fn holders(location: &Location) -> Result<HashSet<String>, Error> {
    let found = Store::at(location.directory()).found(|_| true)?.into_iter();
    let holders = found.filter_map(|found| match found.record {
        Record::Of(attachment) => Some(attachment.container_id),
        Record::OfContainer(container) => Some(container),
        Record::Damaged | Record::Foreign => None,
    });
    Ok(holders.collect())
}

/// Fails with the code of STATUS if no ADD can use the store. That no address is left is no failure: the
/// node would not be ready, and lose the pods that have them. Does not wait for the lock.
pub fn status(config: &Config) -> Result<(), Error> {
    if !config.location.directory().exists() {
        return Ok(());
    }
    let at_once = Location { lock_wait: Duration::ZERO, ..config.location.clone() };
    match Store::open(&at_once) {
        Err(error) if !error.is_passing() => Err(Error::not_available(error.msg)),
        _ => Ok(()),
    }
}
