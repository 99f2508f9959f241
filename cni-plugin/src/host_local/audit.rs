//! Checks a whole store, record by record: which are held, leaked or foreign, and which can be freed.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::config::Location;
use super::liveness::Liveness;
use super::runtime_cache::Cached;
use super::store::{Record, Reservation, Store, is_of_a_runtime};
use crate::disk::if_present;
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

/// The reserved addresses of all networks in `data_dir`; no record is opened.
pub fn reserved_addresses(data_dir: &Path) -> Result<Vec<IpAddr>, Error> {
    let networks = if_present(networks(data_dir));
    let networks = networks.map_err(|error| {
        Error::failed(format!("listing the networks in {}: {error}", data_dir.display()))
    })?;
    let mut addresses = Vec::new();
    for network in networks.unwrap_or_default() {
        addresses.extend(addresses_in(&data_dir.join(network))?);
    }
    Ok(addresses)
}

/// The reserved addresses of the network whose store is `folder`; no record is opened.
pub fn addresses_in(folder: &Path) -> Result<Vec<IpAddr>, Error> {
    let entries = Store::at(folder.to_owned()).entries()?;
    Ok(entries.into_iter().map(|entry| entry.address).collect())
}

/// Classifies every record, sorted by address, and frees dead ones for `Repair::Free`. Holds the lock.
pub fn audit(location: &Location, repair: Repair) -> Result<Vec<Finding>, Error> {
    let store = Store::at(location.directory());
    let _lock = store.lock(location.lock_wait)?;
    let mut all = store.found(|_| true)?;
    all.sort_by_key(|found| (found.entry.address, found.entry.name.clone()));
    let liveness = Liveness::gather(&location.results)?;
    let mut findings = Vec::new();
    for found in all {
        let classification = classify(&found, &location.network, &liveness);
        let freed = classification.proven_dead && repair == Repair::Free;
        if freed {
            store.free(&found.entry)?;
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
pub(super) fn sweep(store: &Store, location: &Location, boot: SystemTime) -> Result<(), Error> {
    let old = store.found(|changed| changed < boot)?;
    if old.is_empty() {
        return Ok(());
    }
    let liveness = Liveness { booted: boot, ..Liveness::gather(&location.results)? };
    let dead = |found: &&Reservation| classify(found, &location.network, &liveness).proven_dead;
    old.iter().filter(dead).try_for_each(|found| store.free(&found.entry))
}

const LISTED: &str = "the runtime lists its container, although no namespace has the address";

/// Longer than any runtime lets a command run: an older reservation is not about to be configured.
const SETTLED: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// A container uses the address, or is about to.
    Held,
    /// No container uses it.
    Leaked,
    /// Its owner has another address.
    Double,
    /// It has no content.
    HalfWritten,
    /// It was made by hand: it names no container.
    Foreign,
}

/// What is known about one record.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Classification {
    pub kind: Kind,
    /// No container loses anything if the address is given to another.
    pub proven_dead: bool,
    /// Continues "it is held", "it is leaked" and so on.
    pub reason: String,
}

/// Classifies a record of the store of `network`.
pub(super) fn classify(
    reservation: &Reservation,
    network: &str,
    liveness: &Liveness,
) -> Classification {
    let Reservation { entry, record, .. } = reservation;
    let (container, cached) = match record {
        Record::Damaged => {
            let reason = "the file has no content, after a crash or a power failure";
            return dead(Kind::HalfWritten, reason);
        }
        _ if !entry.is_proper() => {
            let proper = format!("its name is another spelling of {}", entry.address);
            return alive(Kind::Foreign, proper);
        }
        Record::Foreign => {
            return alive(Kind::Foreign, "it does not name the container that holds it");
        }
        Record::Of(owner) => (&owner.container_id, liveness.cached.get(owner)),
        Record::OfContainer(container) => (container, None),
    };
    if let Some(namespace) = liveness.configured.get(&entry.address) {
        return alive(Kind::Held, format!("{namespace} has the address"));
    }
    match cached {
        Some(cached) if cached.network == network && !cached.addresses.is_empty() => {
            classify_cached(reservation, cached, liveness)
        }
        _ => classify_container(reservation, container, liveness),
    }
}

fn classify_cached(
    reservation: &Reservation,
    cached: &Cached,
    liveness: &Liveness,
) -> Classification {
    if cached.addresses.contains(&reservation.entry.address) {
        return alive(Kind::Held, LISTED);
    }
    let others: Vec<_> = cached.addresses.iter().map(IpAddr::to_string).collect();
    let reason = format!("the runtime lists {} for its owner", others.join(" and "));
    let busy = liveness.busy.contains(&cached.attachment.container_id);
    let proven_dead = !busy && is_settled(reservation.changed, liveness);
    Classification { kind: Kind::Double, proven_dead, reason }
}

fn classify_container(
    reservation: &Reservation,
    container: &str,
    liveness: &Liveness,
) -> Classification {
    if liveness.busy.contains(container) {
        return alive(Kind::Held, "a plugin is working on its container");
    }
    if liveness.cached.knows_container(container) {
        return alive(Kind::Held, LISTED);
    }
    if !is_of_a_runtime(container) && matches!(reservation.record, Record::OfContainer(_)) {
        let named = excerpt::quoted(container);
        let reason = format!("it names {named}, which is not a container ID");
        return alive(Kind::Foreign, reason);
    }
    let unknown = "the runtime does not know its container, and no namespace has the address";
    leaked(unknown, reservation.changed, liveness)
}

/// A record whose container is `unknown`: dead if it is too old to be about to be used.
pub(crate) fn leaked(unknown: &str, changed: SystemTime, liveness: &Liveness) -> Classification {
    if changed < liveness.booted {
        return dead(Kind::Leaked, format!("{unknown}: it is from before this boot"));
    }
    if is_settled(changed, liveness) {
        return dead(Kind::Leaked, format!("{unknown}, and it is older than ten minutes"));
    }
    alive(Kind::Leaked, format!("{unknown}, but it is not older than ten minutes"))
}

/// A clock that was set back makes nothing old.
fn is_settled(changed: SystemTime, liveness: &Liveness) -> bool {
    liveness.now.duration_since(changed).is_ok_and(|age| age > SETTLED)
}

pub(crate) fn alive(kind: Kind, reason: impl Into<String>) -> Classification {
    Classification { kind, proven_dead: false, reason: reason.into() }
}

fn dead(kind: Kind, reason: impl Into<String>) -> Classification {
    Classification { kind, proven_dead: true, reason: reason.into() }
}

#[cfg(test)]
#[path = "tests/audit.rs"]
mod tests;

#[cfg(test)]
#[path = "tests/classification.rs"]
mod classification_tests;
