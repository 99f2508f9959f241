//! One address of each range set for an attachment: all of them, or none.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use super::config::Config;
use super::range::{Range, RangeSet};
use super::reservations::Reservations;
use super::rounds::{Span, round};
use super::store::Entry;
use super::witness;
use crate::attachment::Attachment;
use crate::dns::Dns;
use crate::error::Error;
use crate::plain_file::{self, Link};
use crate::route::Route;

/// In bytes.
const LONGEST_RESOLV_CONF: u64 = 1 << 16;

/// What an attachment gets.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Allocation {
    /// In the order of the range sets.
    pub addresses: Vec<Allocated>,
    /// As configured.
    pub routes: Vec<Route>,
    pub dns: Dns,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Allocated {
    /// With the length of its subnet.
    pub address: IpNetwork,
    pub gateway: Option<IpAddr>,
}

/// Reserves what `config` promises to `attachment`, which must hold nothing of it yet.
pub fn allocate(config: &Config, attachment: &Attachment) -> Result<Allocation, Error> {
    let wishes = assign(config)?;
    let dns = read_dns(config)?;
    let mut reservations = Reservations::open(&config.location)?;
    let allocated = reserve(config, &wishes, &mut reservations, attachment);
    reservations.close();
    Ok(Allocation { addresses: allocated?, routes: config.routes.clone(), dns })
}

/// Which of the requested addresses comes from which range set.
fn assign(config: &Config) -> Result<Vec<Option<IpAddr>>, Error> {
    let mut left = config.requested.clone();
    let take = |set: &RangeSet| {
        let index = left.iter().position(|address| set.range_of(*address).is_some())?;
        Some(left.remove(index))
    };
    let wishes = config.range_sets.iter().map(take).collect();
    if left.is_empty() {
        return Ok(wishes);
    }
    let left: Vec<_> = left.iter().map(IpAddr::to_string).collect();
    Err(Error::failed(format!("failed to allocate all requested IPs: {}", left.join(" "))))
}

fn read_dns(config: &Config) -> Result<Dns, Error> {
    let Some(path) = &config.resolv_conf else { return Ok(Dns::default()) };
    let content = plain_file::read(path, LONGEST_RESOLV_CONF, Link::Followed)
        .map_err(|cause| Error::failed(format!("reading {}: {cause}", path.display())))?;
    Ok(Dns::parse_resolv_conf(&String::from_utf8_lossy(&content)))
}

fn reserve(
    config: &Config,
    wishes: &[Option<IpAddr>],
    reservations: &mut Reservations,
    attachment: &Attachment,
) -> Result<Vec<Allocated>, Error> {
    make_way(config, reservations, attachment)?;
    let mut taken = Vec::new();
    for (index, (set, wish)) in config.range_sets.iter().zip(wishes).enumerate() {
        match reserve_one(index, set, *wish, reservations, attachment) {
            Ok((range, address)) => taken.push((range, address)),
            Err(error) => {
                give_back(&taken, reservations);
                return Err(error.context(format!("failed to allocate for range {index}")));
            }
        }
    }
    remember(&taken, reservations);
    Ok(taken.into_iter().map(|(range, address)| allocated(range, address)).collect())
}

fn allocated(range: &Range, address: IpAddr) -> Allocated {
    Allocated { address: range.interface_address(address), gateway: Some(range.gateway) }
}

/// The error that led here matters more than one on the way back.
fn give_back(taken: &[(&Range, IpAddr)], reservations: &mut Reservations) {
    for (_, address) in taken {
        drop(reservations.free(&Entry::from(*address)));
    }
}

/// The reservations stand without it: lost is at worst whose turn it is.
fn remember(taken: &[(&Range, IpAddr)], reservations: &Reservations) {
    for (index, (_, address)) in taken.iter().enumerate() {
        drop(reservations.set_last_reserved(index, *address));
    }
}

fn reserve_one<'a>(
    index: usize,
    set: &'a RangeSet,
    wish: Option<IpAddr>,
    reservations: &mut Reservations,
    attachment: &Attachment,
) -> Result<(&'a Range, IpAddr), Error> {
    if let Some(wish) = wish {
        return reserve_wish(set, wish, reservations, attachment);
    }
    for span in round(set, reservations.last_reserved(index)) {
        if let Some(address) = reserve_in(span, reservations, attachment)? {
            return Ok((span.range, address));
        }
    }
    Err(exhausted(set))
}

/// No pod outlives the power, but not every runtime says DEL after it: what `attachment` holds from
/// before this boot makes way, all of it or nothing.
///
/// A clock that was set forward makes the record of a running pod look as old: its addresses are
/// still in its namespace.
fn make_way(
    config: &Config,
    reservations: &mut Reservations,
    attachment: &Attachment,
) -> Result<(), Error> {
    let set_of = |entry: &Entry| {
        config.range_sets.iter().position(|set| set.range_of(entry.address).is_some())
    };
    let held = reservations.held_by(attachment)?.into_iter();
    let held: Vec<_> = held.filter_map(|entry| Some((set_of(&entry)?, entry))).collect();
    for (index, entry) in &held {
        let is_gone =
            reservations.is_from_before_boot(entry) && !witness::may_be_configured(entry.address);
        if !is_gone {
            let duplicate = Error::failed(format!(
                "{} has been allocated to {}, duplicate allocation is not allowed",
                entry.address, attachment.container_id
            ));
            return Err(duplicate.context(format!("failed to allocate for range {index}")));
        }
    }
    held.iter().try_for_each(|(_, entry)| reservations.free(entry))
}

fn reserve_wish<'a>(
    set: &'a RangeSet,
    wish: IpAddr,
    reservations: &mut Reservations,
    attachment: &Attachment,
) -> Result<(&'a Range, IpAddr), Error> {
    let absent = || {
        Error::failed(format!("requested IP address {wish} is not available in range set {set}"))
    };
    let range = set.range_of(wish).ok_or_else(absent)?;
    if range.gateway == wish {
        return Err(Error::failed(format!("requested ip {wish} is subnet's gateway")));
    }
    reservations.take(wish, attachment)?.then_some((range, wish)).ok_or_else(absent)
}

fn reserve_in(
    span: Span<'_>,
    reservations: &mut Reservations,
    attachment: &Attachment,
) -> Result<Option<IpAddr>, Error> {
    while let Some(address) = reservations.first_free(span.first, span.last)? {
        if reservations.take(address, attachment)? {
            return Ok(Some(address));
        }
        reservations.distrust(address)?;
    }
    Ok(None)
}

pub(super) fn exhausted(set: &RangeSet) -> Error {
    Error::failed(format!("no IP addresses available in range set: {set}"))
}
