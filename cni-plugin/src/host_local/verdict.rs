//! What becomes of one record, given all witnesses.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use super::record::{Record, is_of_a_runtime};
use super::store::Entry;
use super::witness::Witnesses;
use crate::attachment::Attachment;
use crate::excerpt;
use crate::runtime_cache::Cached;

/// Longer than any runtime lets a command run: what is older is not about to be configured.
const SETTLED: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// Somebody uses the address, or is about to.
    Held,
    /// Nobody does.
    Leaked,
    /// Its owner has another address.
    Double,
    /// It says nothing.
    HalfWritten,
    /// No container owns it: somebody wrote it by hand.
    Foreign,
}

/// What is known of one record.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Verdict {
    pub kind: Kind,
    /// Nobody can be harmed if the address is given to another.
    pub proven_dead: bool,
    /// Goes on from "it is held", "it is leaked" and so on.
    pub reason: String,
}

/// A record as it was found.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Found {
    pub(super) entry: Entry,
    pub(super) record: Record,
    /// When its file was last touched.
    pub(super) changed: SystemTime,
}

/// Judges a record of the store of `network`.
pub(super) fn judge(found: &Found, network: &str, witnesses: &Witnesses) -> Verdict {
    let Found { entry, record, .. } = found;
    if *record == Record::Damaged {
        return dead(Kind::HalfWritten, "it was created and never filled, or lost with the power");
    }
    if !entry.is_proper() {
        let proper = format!("its name is another spelling of {}", entry.address);
        return alive(Kind::Foreign, proper);
    }
    let in_use = witnesses.configured.get(&entry.address);
    if let (Some(namespace), false) = (in_use, *record == Record::Foreign) {
        return alive(Kind::Held, format!("{namespace} has the address"));
    }
    match record {
        Record::Of(owner) => judge_owned(found, owner, network, witnesses),
        Record::OfContainer(container) => judge_container(found, container, witnesses),
        Record::Foreign | Record::Damaged => {
            alive(Kind::Foreign, "it does not say which container holds it")
        }
    }
}

fn judge_owned(found: &Found, owner: &Attachment, network: &str, witnesses: &Witnesses) -> Verdict {
    match witnesses.cached.get(owner) {
        Some(cached) if cached.network == network && !cached.addresses.is_empty() => {
            judge_cached(found, cached, witnesses)
        }
        _ => judge_container(found, &owner.container_id, witnesses),
    }
}

fn judge_cached(found: &Found, cached: &Cached, witnesses: &Witnesses) -> Verdict {
    let Found { entry: Entry { address, .. }, changed, .. } = found;
    if cached.addresses.contains(address) {
        return alive(Kind::Held, "the runtime has its container, though no namespace has it");
    }
    let others: Vec<_> = cached.addresses.iter().map(IpAddr::to_string).collect();
    let reason = format!("the runtime has {} for its owner", others.join(" and "));
    let busy = witnesses.busy.contains(&cached.attachment.container_id);
    let proven_dead = !busy && is_settled(*changed, witnesses);
    Verdict { kind: Kind::Double, proven_dead, reason }
}

fn judge_container(found: &Found, container: &str, witnesses: &Witnesses) -> Verdict {
    if witnesses.busy.contains(container) {
        return alive(Kind::Held, "a plugin is working on its container");
    }
    if witnesses.cached.knows_container(container) {
        return alive(Kind::Held, "the runtime has its container, though no namespace has it");
    }
    if !is_of_a_runtime(container) && found.record == Record::OfContainer(container.to_owned()) {
        let named = excerpt::quoted(container);
        return alive(
            Kind::Foreign,
            format!("it names {named}, which is no identifier of a container"),
        );
    }
    let nobody = "the runtime does not know its container, and no namespace has the address";
    if found.changed < witnesses.booted {
        return dead(Kind::Leaked, format!("{nobody}: it is from before this boot"));
    }
    if is_settled(found.changed, witnesses) {
        return dead(Kind::Leaked, format!("{nobody}, long after it was allocated"));
    }
    alive(Kind::Leaked, format!("{nobody}, but it is so new that this may still come"))
}

/// A clock that was set back makes nothing old.
pub(crate) fn is_settled(changed: SystemTime, witnesses: &Witnesses) -> bool {
    witnesses.now.duration_since(changed).is_ok_and(|age| age > SETTLED)
}

pub(crate) fn alive(kind: Kind, reason: impl Into<String>) -> Verdict {
    Verdict { kind, proven_dead: false, reason: reason.into() }
}

pub(crate) fn dead(kind: Kind, reason: impl Into<String>) -> Verdict {
    Verdict { kind, proven_dead: true, reason: reason.into() }
}

#[cfg(test)]
#[path = "tests/verdict.rs"]
mod tests;
