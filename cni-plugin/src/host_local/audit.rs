//! Checks a whole store, record by record: which are held, leaked or foreign, and which can be freed.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::config::Location;
use super::liveness::Liveness;
use super::runtime_cache::Cached;
use super::store::{Entry, Record, Reservation, Store, is_of_a_runtime};
use crate::excerpt;
use crate::protocol::error::Error;
use crate::protocol::request::Attachment;

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
        Error::failed(format!("cannot read which addresses are in use, run this as root: {cause}"))
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
    if *record == Record::Damaged {
        return dead(
            Kind::HalfWritten,
            "the file has no content, after a crash or a power failure",
        );
    }
    if !entry.is_proper() {
        let proper = format!("its name is another spelling of {}", entry.address);
        return alive(Kind::Foreign, proper);
    }
    let in_use = liveness.configured.get(&entry.address);
    if let (Some(namespace), false) = (in_use, *record == Record::Foreign) {
        return alive(Kind::Held, format!("{namespace} has the address"));
    }
    match record {
        Record::Of(owner) => classify_owned(reservation, owner, network, liveness),
        Record::OfContainer(container) => classify_container(reservation, container, liveness),
        Record::Foreign | Record::Damaged => {
            alive(Kind::Foreign, "it does not name the container that holds it")
        }
    }
}

fn classify_owned(
    reservation: &Reservation,
    owner: &Attachment,
    network: &str,
    liveness: &Liveness,
) -> Classification {
    match liveness.cached.get(owner) {
        Some(cached) if cached.network == network && !cached.addresses.is_empty() => {
            classify_cached(reservation, cached, liveness)
        }
        _ => classify_container(reservation, &owner.container_id, liveness),
    }
}

fn classify_cached(
    reservation: &Reservation,
    cached: &Cached,
    liveness: &Liveness,
) -> Classification {
    let Reservation { entry: Entry { address, .. }, changed, .. } = reservation;
    if cached.addresses.contains(address) {
        return alive(
            Kind::Held,
            "the runtime lists its container, although no namespace has the address",
        );
    }
    let others: Vec<_> = cached.addresses.iter().map(IpAddr::to_string).collect();
    let reason = format!("the runtime lists {} for its owner", others.join(" and "));
    let busy = liveness.busy.contains(&cached.attachment.container_id);
    let proven_dead = !busy && is_settled(*changed, liveness);
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
        return alive(
            Kind::Held,
            "the runtime lists its container, although no namespace has the address",
        );
    }
    if !is_of_a_runtime(container)
        && reservation.record == Record::OfContainer(container.to_owned())
    {
        let named = excerpt::quoted(container);
        return alive(Kind::Foreign, format!("it names {named}, which is not a container ID"));
    }
    let unknown = "the runtime does not know its container, and no namespace has the address";
    if reservation.changed < liveness.booted {
        return dead(Kind::Leaked, format!("{unknown}: it is from before this boot"));
    }
    if is_settled(reservation.changed, liveness) {
        return dead(Kind::Leaked, format!("{unknown}, long after it was allocated"));
    }
    alive(Kind::Leaked, format!("{unknown}, but it is not older than ten minutes"))
}

/// A clock that was set back makes nothing old.
pub(crate) fn is_settled(changed: SystemTime, liveness: &Liveness) -> bool {
    liveness.now.duration_since(changed).is_ok_and(|age| age > SETTLED)
}

pub(crate) fn alive(kind: Kind, reason: impl Into<String>) -> Classification {
    Classification { kind, proven_dead: false, reason: reason.into() }
}

pub(crate) fn dead(kind: Kind, reason: impl Into<String>) -> Classification {
    Classification { kind, proven_dead: true, reason: reason.into() }
}

#[cfg(test)]
#[path = "tests/audit.rs"]
mod tests;

#[cfg(test)]
#[path = "tests/classification.rs"]
mod classification_tests;
