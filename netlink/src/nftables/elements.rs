//! What a set of addresses or protocols holds, and what of it changes.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use nix::libc::{NFNL_SUBSYS_NFTABLES, NFT_MSG_DELSETELEM, NFT_MSG_GETSETELEM, NFT_MSG_NEWSETELEM};

use super::batch::request;
use super::family::{IpFamily, TableFamily};
use super::numbers::{
    NFTA_DATA_VALUE, NFTA_SET_ELEM_EXPIRATION, NFTA_SET_ELEM_KEY, NFTA_SET_ELEM_LIST_ELEMENTS,
    NFTA_SET_ELEM_LIST_SET, NFTA_SET_ELEM_LIST_TABLE, NFTA_SET_ELEM_TIMEOUT,
};
use super::tunnel::UDP;
use crate::Socket;
use crate::attributes::{Attributes, u16_at};
use crate::message::Message;
use crate::rtnl::address::ip;

/// Where a message has its kind; its header and that of netfilter behind it, in bytes.
const KIND: usize = 4;
const HEADER: usize = 16;
const FAMILY: usize = 4;

const ADDED: i32 = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWSETELEM;
const DELETED: i32 = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_DELSETELEM;

/// The addresses of a set that holds nothing else; none if there is no such set.
///
/// # Errors
/// The kernel has no nftables, or not for us; or the conversation broke.
pub fn addresses(
    socket: &mut Socket,
    family: IpFamily,
    table: &str,
    set: &str,
) -> io::Result<Vec<IpAddr>> {
    let question = listing(family, table, set);
    let parts = socket.list(&question, |payload| {
        Some(keys(Attributes::of(payload.get(FAMILY..)?)).collect::<Vec<_>>())
    })?;
    Ok(parts.concat())
}

/// How long UDP stays in a set of protocols; none if it is not there, or stays for ever.
///
/// # Errors
/// The kernel has no nftables, or not for us; or the conversation broke.
pub fn udp_stay(
    socket: &mut Socket,
    family: IpFamily,
    table: &str,
    set: &str,
) -> io::Result<Option<Stay>> {
    let question = listing(family, table, set);
    let parts =
        socket.list(&question, |payload| stay_of_udp(Attributes::of(payload.get(FAMILY..)?)))?;
    Ok(parts.into_iter().next())
}

fn listing(family: IpFamily, table: &str, set: &str) -> Message {
    request(TableFamily::Only(family), NFT_MSG_GETSETELEM, 0)
        .text(NFTA_SET_ELEM_LIST_TABLE, table)
        .text(NFTA_SET_ELEM_LIST_SET, set)
}

/// How long an element stays that times out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay {
    /// From the moment when it was put.
    pub whole: Duration,
    /// From now on.
    pub left: Duration,
}

/// Some elements of a set, as the kernel tells those who listen for changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedElements<'a> {
    pub family: IpFamily,
    pub table: &'a str,
    pub set: &'a str,
    pub change: Change,
    pub addresses: Vec<IpAddr>,
    /// Of UDP, in a set of protocols.
    pub stay: Option<Stay>,
}

/// Whether something came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Added,
    Deleted,
}

/// What `message` says of the elements of a set; none if it speaks of anything else.
pub fn changed_elements(message: &[u8]) -> Option<ChangedElements<'_>> {
    let change = match i32::from(u16_at(message, KIND)?) {
        ADDED => Change::Added,
        DELETED => Change::Deleted,
        _ => return None,
    };
    let TableFamily::Only(family) = TableFamily::of_number(*message.get(HEADER)?)? else {
        return None;
    };
    let all = Attributes::of(message.get(HEADER + FAMILY..)?);
    let (table, set) = (all.text(NFTA_SET_ELEM_LIST_TABLE)?, all.text(NFTA_SET_ELEM_LIST_SET)?);
    let (addresses, stay) = (keys(all).collect(), stay_of_udp(all));
    Some(ChangedElements { family, table, set, change, addresses, stay })
}

fn elements(all: Attributes<'_>) -> impl Iterator<Item = (Attributes<'_>, &[u8])> {
    let list = all.nested(NFTA_SET_ELEM_LIST_ELEMENTS).unwrap_or(Attributes::of(&[]));
    list.into_iter().filter_map(|(_, element)| {
        let element = Attributes::of(element);
        Some((element, element.nested(NFTA_SET_ELEM_KEY)?.get(NFTA_DATA_VALUE)?))
    })
}

fn keys(all: Attributes<'_>) -> impl Iterator<Item = IpAddr> {
    elements(all).filter_map(|(_, key)| ip(key))
}

fn stay_of_udp(all: Attributes<'_>) -> Option<Stay> {
    let (element, _) = elements(all).find(|(_, key)| *key == UDP)?;
    let time = |kind| element.get(kind)?.try_into().ok().map(u64::from_be_bytes);
    let time = |kind| time(kind).map(Duration::from_millis);
    Some(Stay { whole: time(NFTA_SET_ELEM_TIMEOUT)?, left: time(NFTA_SET_ELEM_EXPIRATION)? })
}
