//! What a set of addresses holds, and what of it changes.

use std::io;
use std::net::IpAddr;

use nix::libc::{NFNL_SUBSYS_NFTABLES, NFT_MSG_DELSETELEM, NFT_MSG_GETSETELEM, NFT_MSG_NEWSETELEM};

use super::batch::request;
use super::family::{IpFamily, TableFamily};
use super::numbers::{
    NFTA_DATA_VALUE, NFTA_SET_ELEM_KEY, NFTA_SET_ELEM_LIST_ELEMENTS, NFTA_SET_ELEM_LIST_SET,
    NFTA_SET_ELEM_LIST_TABLE,
};
use crate::netlink::Socket;
use crate::netlink::address::ip;
use crate::netlink::attributes::{Attributes, u16_at};

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
    let question = request(TableFamily::Only(family), NFT_MSG_GETSETELEM, 0)
        .text(NFTA_SET_ELEM_LIST_TABLE, table)
        .text(NFTA_SET_ELEM_LIST_SET, set);
    let parts = socket.list(&question, |payload| {
        Some(keys(Attributes::of(payload.get(FAMILY..)?)).collect::<Vec<_>>())
    })?;
    Ok(parts.concat())
}

/// Some addresses of a set, as the kernel tells those who listen for changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedAddresses<'a> {
    pub family: IpFamily,
    pub table: &'a str,
    pub set: &'a str,
    pub change: Change,
    pub addresses: Vec<IpAddr>,
}

/// Whether something came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Added,
    Deleted,
}

/// What `message` says of the elements of a set of addresses; none if it speaks of anything else.
pub fn changed_addresses(message: &[u8]) -> Option<ChangedAddresses<'_>> {
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
    Some(ChangedAddresses { family, table, set, change, addresses: keys(all).collect() })
}

fn keys(all: Attributes<'_>) -> impl Iterator<Item = IpAddr> {
    let list = all.nested(NFTA_SET_ELEM_LIST_ELEMENTS).unwrap_or(Attributes::of(&[]));
    list.into_iter().filter_map(|(_, element)| {
        ip(Attributes::of(element).nested(NFTA_SET_ELEM_KEY)?.get(NFTA_DATA_VALUE)?)
    })
}
