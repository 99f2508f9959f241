//! One address of each range set for an attachment: all of them, or none.

use std::collections::HashSet;
use std::net::IpAddr;

use super::config::Config;
use super::liveness;
use super::range::{Range, RangeSet, next_free};
use super::store::{Entry, Store};
use crate::disk::plain_file::{self, Symlink};
use crate::protocol::error::Error;
use crate::protocol::request::Attachment;
use crate::protocol::result::{AddResult, Address, Dns};

/// In bytes.
const LONGEST_RESOLV_CONF: u64 = 1 << 16;

type Chosen<'a> = (&'a Range, IpAddr);

/// Reserves one address of each range set for `attachment`; returns the addresses in the order of the
/// sets, the configured routes and no interfaces.
///
/// `recall` reads the addresses in its record, if any. `keep` writes the new ones there before they are
/// reserved: a process that is killed leaves no reservation without a record. Both are called under
/// the lock: of two processes with one attachment, the second sees what the first has written.
pub fn allocate(
    config: &Config,
    attachment: &Attachment,
    recall: impl FnOnce() -> Result<Option<Vec<IpAddr>>, Error>,
    keep: impl FnOnce(&[IpAddr]) -> Result<(), Error>,
) -> Result<AddResult, Error> {
    let requested = assign(config)?;
    let dns = read_dns(config)?;
    let (store, _lock) = Store::open(&config.location)?;
    let mut held = free_stale(config, &store, attachment, recall()?.as_deref())?;
    let chosen = store.choose(|taken| choose(config, &requested, &store, taken))?;
    held.extend(chosen.iter().map(|(_, address)| *address));
    keep(&held)?;
    reserve(&chosen, &store, attachment)?;
    for (index, (_, address)) in chosen.iter().enumerate() {
        // If this fails, only the order of the next addresses is lost.
        drop(store.set_last_reserved(index, *address));
    }
    let address = |(range, address): Chosen<'_>| Address {
        interface: None,
        address: range.interface_address(address),
        gateway: Some(range.gateway),
    };
    let addresses = chosen.into_iter().map(address).collect();
    Ok(AddResult { interfaces: Vec::new(), addresses, routes: config.routes.clone(), dns })
}

/// Which of the requested addresses comes from which range set.
fn assign(config: &Config) -> Result<Vec<Option<IpAddr>>, Error> {
    let mut left = config.requested.clone();
    let take = |set: &RangeSet| {
        let index = left.iter().position(|address| set.range_of(*address).is_some())?;
        Some(left.remove(index))
    };
    let assigned = config.range_sets.iter().map(take).collect();
    if left.is_empty() {
        return Ok(assigned);
    }
    let left: Vec<_> = left.iter().map(IpAddr::to_string).collect();
    Err(Error::failed(format!("failed to allocate all requested IPs: {}", left.join(" "))))
}

fn read_dns(config: &Config) -> Result<Dns, Error> {
    let Some(path) = &config.resolv_conf else { return Ok(Dns::default()) };
    let content = plain_file::read(path, LONGEST_RESOLV_CONF, Symlink::Followed)
        .map_err(|cause| Error::failed(format!("reading {}: {cause}", path.display())))?;
    Ok(Dns::parse_resolv_conf(&String::from_utf8_lossy(&content)))
}

/// Frees what `attachment` holds of the range sets from before this boot, and fails if it holds newer
/// addresses: not every runtime deletes pods after a reboot. Returns what it holds of other ranges.
///
/// If a clock was set forward, the record of a running pod looks old: so namespaces are checked, too.
fn free_stale(
    config: &Config,
    store: &Store,
    attachment: &Attachment,
    expected: Option<&[IpAddr]>,
) -> Result<Vec<IpAddr>, Error> {
    let set_of = |entry: &Entry| {
        config.range_sets.iter().position(|set| set.range_of(entry.address).is_some())
    };
    let held = store.held_by(attachment, expected)?;
    let (mut own, others): (Vec<_>, Vec<_>) =
        held.into_iter().partition(|entry| set_of(entry).is_some());
    own.sort_by_key(set_of);
    let is_in_use = |entry: &&Entry| {
        !store.is_from_before_boot(entry) || liveness::may_be_configured(entry.address)
    };
    if let Some(entry) = own.iter().find(is_in_use) {
        let duplicate = Error::failed(format!(
            "{} has been allocated to {}, duplicate allocation is not allowed",
            entry.address, attachment.container_id
        ));
        return Err(in_range_set(set_of(entry).unwrap_or_default(), duplicate));
    }
    own.iter().try_for_each(|entry| store.free(entry))?;
    Ok(others.into_iter().map(|entry| entry.address).collect())
}

/// One free address of each range set.
fn choose<'a>(
    config: &'a Config,
    requested: &[Option<IpAddr>],
    store: &Store,
    taken: &HashSet<IpAddr>,
) -> Result<Vec<Chosen<'a>>, Error> {
    let sets = config.range_sets.iter().zip(requested).enumerate();
    let chosen = sets.map(|(index, (set, requested))| {
        let chosen = match requested {
            Some(address) => choose_requested(set, *address, taken),
            None => next_free(set, store.last_reserved(index), taken).ok_or_else(|| exhausted(set)),
        };
        chosen.map_err(|error| in_range_set(index, error))
    });
    chosen.collect()
}

fn choose_requested<'a>(
    set: &'a RangeSet,
    address: IpAddr,
    taken: &HashSet<IpAddr>,
) -> Result<Chosen<'a>, Error> {
    let absent = || {
        let absent = format!("requested IP address {address} is not available in range set {set}");
        Error::failed(absent)
    };
    let range = set.range_of(address).ok_or_else(absent)?;
    if range.gateway == address {
        return Err(Error::failed(format!("requested ip {address} is subnet's gateway")));
    }
    if taken.contains(&address) { Err(absent()) } else { Ok((range, address)) }
}

/// All of `chosen`, or none.
fn reserve(chosen: &[Chosen<'_>], store: &Store, attachment: &Attachment) -> Result<(), Error> {
    for (index, (_, address)) in chosen.iter().enumerate() {
        if let Err(error) = store.reserve(*address, attachment) {
            for (_, address) in chosen.iter().take(index) {
                // The first error matters more than one on the way back.
                drop(store.free(&Entry::from(*address)));
            }
            return Err(in_range_set(index, error));
        }
    }
    Ok(())
}

fn in_range_set(index: usize, error: Error) -> Error {
    error.context(format!("failed to allocate for range {index}"))
}

fn exhausted(set: &RangeSet) -> Error {
    Error::failed(format!("no IP addresses available in range set: {set}"))
}
