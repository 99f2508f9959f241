//! Sets and maps: written, read, and what of them changes.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use nix::libc::{
    NFNL_SUBSYS_NFTABLES, NFT_MSG_DELSETELEM, NFT_MSG_GETSET, NFT_MSG_GETSETELEM, NFT_MSG_NEWSET,
    NFT_MSG_NEWSETELEM, NFT_SET_INTERVAL, NFT_SET_MAP, NFT_SET_TIMEOUT, NLM_F_CREATE,
};

use super::batch::{Batch, HEADER, request};
use super::expression::UDP;
use super::family::{Table, TableFamily};
use super::key::{Key, PROTOCOL, user_data};
use super::nfta;
use crate::Family;
use crate::attributes::{Attributes, ip};
use crate::frame::Frame;
use crate::message::{Message, octets};
use crate::socket::Socket;

/// How long an element stays that times out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementTimeout {
    /// From the moment when it was put.
    pub whole: Duration,
    /// From now on.
    pub left: Duration,
}

/// An element of a set, or of a map, as bytes in the order of its fields: each field begins at a
/// multiple of four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Element<B = Vec<u8>> {
    pub key: B,
    /// The last key of an interval that begins with `key`.
    pub end: Option<B>,
    /// None in a set.
    pub value: Option<B>,
}

/// The same, as listed.
pub type ListedElement<'a> = Element<&'a [u8]>;

impl From<ListedElement<'_>> for Element {
    fn from(listed: ListedElement<'_>) -> Self {
        let ListedElement { key, end, value } = listed;
        Self { key: key.to_vec(), end: end.map(<[u8]>::to_vec), value: value.map(<[u8]>::to_vec) }
    }
}

/// Some elements of a set, as the kernel notifies of their change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedElements<'a> {
    pub family: Family,
    pub table: &'a str,
    pub set: &'a str,
    pub change: Change,
    pub addresses: Vec<IpAddr>,
    /// Of UDP, in a set of protocols.
    pub stay: Option<ElementTimeout>,
}

/// Whether something came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Added,
    Deleted,
}

/// The number of addresses of either family that fit into one message.
pub const MOST_ADDRESSES: usize = 1000;

/// `NFT_SET_CONCAT` of `linux/netfilter/nf_tables.h`: each field is an interval of its own.
const CONCATENATED: i32 = 1 << 7;

/// The number of elements with values, of either family, that fit into one message.
pub const MOST_ELEMENTS: usize = 600;

const ADDED: i32 = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWSETELEM;
const DELETED: i32 = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_DELSETELEM;

impl Batch {
    /// There is this set of addresses of one family from now on.
    pub fn address_set(self, name: &str, family: Family) -> Self {
        self.set_of(name, family.key(), 0)
    }

    /// There is this set of protocols from now on, whose elements may time out.
    pub fn protocol_set(self, name: &str) -> Self {
        self.set_of(name, PROTOCOL, NFT_SET_TIMEOUT.cast_unsigned())
    }

    /// There is this set from now on; a map, if it has values.
    pub fn set(self, name: &str, key: &Key, value: Option<&Key>) -> Self {
        let flags = value.map_or(0, |_| NFT_SET_MAP.cast_unsigned());
        let set = self
            .new_set(name, (key.kind(), key.length()), flags)
            .with(value, |set, value| {
                set.be32(nfta::SET_DATA_TYPE, value.kind()).be32(nfta::SET_DATA_LEN, value.length())
            })
            .bytes(nfta::SET_USERDATA, &user_data(key, value));
        self.and(set)
    }

    /// There is this set of intervals from now on.
    pub fn interval_set(self, name: &str, key: &Key) -> Self {
        let flags = (NFT_SET_INTERVAL | CONCATENATED).cast_unsigned();
        let set = self
            .new_set(name, (key.kind(), key.length()), flags)
            .nest(nfta::SET_DESC, |desc| {
                desc.nest(nfta::SET_DESC_CONCAT, |list| {
                    key.lengths().fold(list, |list, length| {
                        list.nest(nfta::LIST_ELEM, |field| field.be32(nfta::SET_FIELD_LEN, length))
                    })
                })
            })
            .bytes(nfta::SET_USERDATA, &user_data(key, None));
        self.and(set)
    }

    /// These elements are in the set or map `name` from now on; refused if it has another value for
    /// one of the keys. At most [`MOST_ELEMENTS`].
    pub fn put<'a>(self, name: &str, all: impl IntoIterator<Item = &'a Element>) -> Self {
        self.elements(NFT_MSG_NEWSETELEM, NLM_F_CREATE, name, |list| pairs(list, all))
    }

    /// The reverse of [`Self::put`]; refused if one of them is not there.
    pub fn remove<'a>(self, name: &str, all: impl IntoIterator<Item = &'a Element>) -> Self {
        self.elements(NFT_MSG_DELSETELEM, 0, name, |list| pairs(list, all))
    }

    fn set_of(self, name: &str, key: (u32, u32), flags: u32) -> Self {
        let set = self.new_set(name, key, flags);
        self.and(set)
    }

    fn new_set(&self, name: &str, (kind, length): (u32, u32), flags: u32) -> Message {
        self.request(NFT_MSG_NEWSET, NLM_F_CREATE)
            .text(nfta::SET_TABLE, self.as_table().name)
            .text(nfta::SET_NAME, name)
            .be32(nfta::SET_FLAGS, flags)
            .be32(nfta::SET_KEY_TYPE, kind)
            .be32(nfta::SET_KEY_LEN, length)
            // The kernel requires a number for each set of a batch, but uses their names.
            .be32(nfta::SET_ID, 1)
    }

    /// `addresses`, at most [`MOST_ADDRESSES`], are in the set `name` of their family from now on.
    pub fn add_addresses(self, name: &str, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        self.elements(NFT_MSG_NEWSETELEM, NLM_F_CREATE, name, |list| hosts(list, addresses))
    }

    /// The reverse of [`Self::add_addresses`]; refused if one of them is not there.
    pub fn delete_addresses(self, name: &str, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        self.elements(NFT_MSG_DELSETELEM, 0, name, |list| hosts(list, addresses))
    }

    /// UDP is in the set `name` for `timeout` from now on. It is removed first: no kernel before 6.12
    /// changes the timeout of an element.
    pub fn renew_udp(self, name: &str, timeout: Duration) -> Self {
        let whole = self.put_udp(name, timeout).delete_udp(name);
        whole.put_udp(name, timeout)
    }

    /// Refused if it is not there.
    pub fn delete_udp(self, name: &str) -> Self {
        self.elements(NFT_MSG_DELSETELEM, 0, name, |list| element(list, &UDP, None))
    }

    fn put_udp(self, name: &str, timeout: Duration) -> Self {
        let fill = |list| element(list, &UDP, Some(timeout));
        self.elements(NFT_MSG_NEWSETELEM, NLM_F_CREATE, name, fill)
    }

    fn elements(
        self,
        message: i32,
        flags: i32,
        name: &str,
        fill: impl FnOnce(Message) -> Message,
    ) -> Self {
        let message = self.as_table().elements_message(message, flags, name);
        self.and(message.nest(nfta::SET_ELEM_LIST_ELEMENTS, fill))
    }
}

impl Table<'_> {
    /// The addresses of a set that holds nothing else; none if there is no such set.
    pub fn addresses(self, socket: &mut Socket, set: &str) -> io::Result<Vec<IpAddr>> {
        self.elements(socket, set, |element| ip(element.key))
    }

    /// The names of its sets and maps; none if there is no such table.
    pub fn sets(self, socket: &mut Socket) -> io::Result<Vec<String>> {
        let question = request(self.family, NFT_MSG_GETSET, 0).text(nfta::SET_TABLE, self.name);
        socket.list(&question, |frame| {
            let all = frame.attributes(HEADER)?;
            let is_asked_for = all.text(nfta::SET_TABLE) == Some(self.name);
            is_asked_for.then(|| all.text(nfta::SET_NAME).map(str::to_owned)).flatten()
        })
    }

    /// What `read` understands of the elements of a set or map; none if there is no such set.
    pub fn elements<T>(
        self,
        socket: &mut Socket,
        set: &str,
        read: impl Fn(ListedElement<'_>) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let all = |frame: &Frame<'_>| {
            let found = elements(frame.attributes(HEADER)?).filter_map(|(element, key)| {
                let data = |kind| element.nested(kind)?.get(nfta::DATA_VALUE);
                let (end, value) = (data(nfta::SET_ELEM_KEY_END), data(nfta::SET_ELEM_DATA));
                read(ListedElement { key, end, value })
            });
            Some(found.collect::<Vec<_>>())
        };
        let listed = socket.list(&self.elements_message(NFT_MSG_GETSETELEM, 0, set), all)?;
        Ok(listed.into_iter().flatten().collect())
    }

    /// How long UDP stays in a set of protocols; none if it is not there, or stays for ever.
    pub fn udp_timeout(self, socket: &mut Socket, set: &str) -> io::Result<Option<ElementTimeout>> {
        let read = |frame: &Frame<'_>| timeout_of_udp(frame.attributes(HEADER)?);
        let listed = socket.list(&self.elements_message(NFT_MSG_GETSETELEM, 0, set), read)?;
        Ok(listed.into_iter().next())
    }

    fn elements_message(self, message: i32, flags: i32, set: &str) -> Message {
        request(self.family, message, flags)
            .text(nfta::SET_ELEM_LIST_TABLE, self.name)
            .text(nfta::SET_ELEM_LIST_SET, set)
    }
}

/// What `frame` reports of the elements of a set; none if it reports anything else.
pub fn changed_elements<'a>(frame: &Frame<'a>) -> Option<ChangedElements<'a>> {
    let change = match i32::from(frame.kind) {
        ADDED => Change::Added,
        DELETED => Change::Deleted,
        _ => return None,
    };
    let TableFamily::Only(family) = TableFamily::of_number(*frame.payload.first()?)? else {
        return None;
    };
    let all = frame.attributes(HEADER)?;
    let (table, set) = (all.text(nfta::SET_ELEM_LIST_TABLE)?, all.text(nfta::SET_ELEM_LIST_SET)?);
    let addresses = elements(all).filter_map(|(_, key)| ip(key)).collect();
    let stay = timeout_of_udp(all);
    Some(ChangedElements { family, table, set, change, addresses, stay })
}

fn elements(all: Attributes<'_>) -> impl Iterator<Item = (Attributes<'_>, &[u8])> {
    let list = all.nested(nfta::SET_ELEM_LIST_ELEMENTS).unwrap_or_default();
    list.iter().filter_map(|(_, element)| {
        let element = Attributes::of(element);
        Some((element, element.nested(nfta::SET_ELEM_KEY)?.get(nfta::DATA_VALUE)?))
    })
}

fn timeout_of_udp(all: Attributes<'_>) -> Option<ElementTimeout> {
    let (element, _) = elements(all).find(|(_, key)| *key == UDP)?;
    let time = |kind| element.get(kind)?.try_into().ok().map(u64::from_be_bytes);
    let time = |kind| time(kind).map(Duration::from_millis);
    Some(ElementTimeout {
        whole: time(nfta::SET_ELEM_TIMEOUT)?,
        left: time(nfta::SET_ELEM_EXPIRATION)?,
    })
}

fn hosts(list: Message, addresses: impl IntoIterator<Item = IpAddr>) -> Message {
    addresses.into_iter().fold(list, |list, address| element(list, &octets(address), None))
}

fn pairs<'a>(list: Message, all: impl IntoIterator<Item = &'a Element>) -> Message {
    all.into_iter().fold(list, |list, Element { key, end, value }| {
        list.nest(nfta::LIST_ELEM, |element| {
            let data = |element: Message, kind, bytes: &Vec<u8>| {
                element.nest(kind, |data| data.bytes(nfta::DATA_VALUE, bytes))
            };
            data(element, nfta::SET_ELEM_KEY, key)
                .with(end.as_ref(), |element, end| data(element, nfta::SET_ELEM_KEY_END, end))
                .with(value.as_ref(), |element, value| data(element, nfta::SET_ELEM_DATA, value))
        })
    })
}

fn element(list: Message, key: &[u8], timeout: Option<Duration>) -> Message {
    let milliseconds = |timeout: Duration| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
    list.nest(nfta::LIST_ELEM, |element| {
        element
            .nest(nfta::SET_ELEM_KEY, |data| data.bytes(nfta::DATA_VALUE, key))
            .with(timeout.map(milliseconds), |element, timeout| {
                element.bytes(nfta::SET_ELEM_TIMEOUT, &timeout.to_be_bytes())
            })
    })
}
