//! Whether one reservation is held, leaked or foreign, given everything that shows what is in use.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use super::liveness::Liveness;
use super::record::{Record, is_of_a_runtime};
use super::store::{Entry, Reservation};
use crate::excerpt;
use crate::host_local::runtime_cache::Cached;
use crate::protocol::request::Attachment;

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
        return dead(Kind::HalfWritten, "it was created and never filled, or lost with the power");
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
            alive(Kind::Foreign, "it does not say which container holds it")
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
        return alive(Kind::Held, "the runtime has its container, though no namespace has it");
    }
    let others: Vec<_> = cached.addresses.iter().map(IpAddr::to_string).collect();
    let reason = format!("the runtime has {} for its owner", others.join(" and "));
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
        return alive(Kind::Held, "the runtime has its container, though no namespace has it");
    }
    if !is_of_a_runtime(container)
        && reservation.record == Record::OfContainer(container.to_owned())
    {
        let named = excerpt::quoted(container);
        return alive(
            Kind::Foreign,
            format!("it names {named}, which is no identifier of a container"),
        );
    }
    let nobody = "the runtime does not know its container, and no namespace has the address";
    if reservation.changed < liveness.booted {
        return dead(Kind::Leaked, format!("{nobody}: it is from before this boot"));
    }
    if is_settled(reservation.changed, liveness) {
        return dead(Kind::Leaked, format!("{nobody}, long after it was allocated"));
    }
    alive(Kind::Leaked, format!("{nobody}, but it is so new that this may still come"))
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
#[path = "tests/classification.rs"]
mod tests;
