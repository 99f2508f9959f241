//! Entries as netlink messages, and messages as entries. Pure.

mod address;
mod interface;
mod link;
mod links;
mod neighbour;
mod netconf;
pub(super) mod request;
mod route;
#[cfg(test)]
mod tests;

pub(super) use interface::{interface, interface_address};
pub(super) use link::{known as known_link, name as link_name};
pub(super) use links::{Known, Links};
pub(super) use netconf::ALL_LINKS;
pub(super) use route::{default_route, reach};

use netlink_packet_core::{
    NLM_F_APPEND, NLM_F_CREATE, NLM_F_REPLACE, NetlinkBuffer, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, Parseable,
};
use netlink_packet_route::RouteNetlinkMessage;
use nix::libc::{RTM_DELLINK, RTM_NEWLINK, RTM_NEWNETCONF};

use super::state::{Entry, LinkName};
use super::sysctl::Sysctl;
use super::{Observation, Op};

pub(super) type Message = NetlinkMessage<RouteNetlinkMessage>;

/// What carries an [`Op`] out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// In this order.
    Netlink(Vec<Message>),
    Sysctl(Sysctl),
}

/// There is no request for this [`Op`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unencodable {
    #[error("there is no link {0}")]
    NoLink(LinkName),
    #[error("a link of type {0} is not ours to make")]
    NotOurs(String),
    #[error("a setting of a link can be changed, not removed")]
    Setting,
}

/// The request for `op`. Whatever is put replaces what is in its place: the kernel does that in
/// one step, so that a path never has a gap.
pub(super) fn encode(op: &Op, links: &Links) -> Result<Request, Unencodable> {
    use RouteNetlinkMessage as M;
    let (put, remove) = match op.entry() {
        Entry::Link(link) => return link::encode(op, link, links),
        Entry::ReversePath(filter) => return setting(op, Sysctl::reverse_path(filter)),
        Entry::AcceptRa(accept) => return setting(op, Sysctl::accept_ra(accept)),
        Entry::Address(address) => {
            let message = address::encode(address, links)?;
            (M::NewAddress(message.clone()), M::DelAddress(message))
        }
        Entry::Fdb(fdb) => {
            let message = neighbour::encode_fdb(fdb, links)?;
            (M::NewNeighbour(message.clone()), M::DelNeighbour(message))
        }
        Entry::Neighbour(neighbour) => {
            let message = neighbour::encode(neighbour, links)?;
            (M::NewNeighbour(message.clone()), M::DelNeighbour(message))
        }
        Entry::Route(route) => {
            let message = route::encode(route, links)?;
            (M::NewRoute(message.clone()), M::DelRoute(route::any_scope(message)))
        }
    };
    Ok(Request::Netlink(vec![match op {
        Op::Create(_) | Op::Replace(_) => flagged(put, NLM_F_CREATE | NLM_F_REPLACE),
        Op::Remove(_) => flagged(remove, 0),
    }]))
}

fn setting(op: &Op, sysctl: Sysctl) -> Result<Request, Unencodable> {
    match op {
        Op::Create(_) | Op::Replace(_) => Ok(Request::Sysctl(sysctl)),
        Op::Remove(_) => Err(Unencodable::Setting),
    }
}

fn flagged(message: RouteNetlinkMessage, flags: u16) -> Message {
    let mut message = Message::from(message);
    message.header.flags = flags;
    message
}

/// What `message` says about the entry it speaks of; none if it speaks of nothing that we model.
///
/// An entry that exists in a form of no use (a neighbour without a MAC address) is lost.
pub(super) fn decode(message: &Message, links: &Links) -> Option<Observation> {
    use RouteNetlinkMessage as M;
    let NetlinkPayload::InnerMessage(inner) = &message.payload else { return None };
    match inner {
        M::NewLink(link) => Some(Observation::Holds(Entry::Link(link::decode(link, links)?))),
        M::NewAddress(address) => address::decode(address, links).map(Observation::Holds),
        M::DelAddress(address) => address::decode(address, links).as_ref().map(lost),
        M::NewNeighbour(neighbour) => neighbour::decode(neighbour, links),
        M::DelNeighbour(neighbour) => neighbour::key(neighbour, links).map(Observation::Lost),
        M::NewRoute(route) => {
            let entry = route::decode(route, links)?;
            // It stands behind the route in force, unless the two share the traffic.
            let in_force = message.header.flags & NLM_F_APPEND == 0 || route::is_multipath(route);
            in_force.then_some(Observation::Holds(entry))
        }
        M::DelRoute(route) => route::decode(route, links).as_ref().map(lost),
        _ => None,
    }
}

fn lost(entry: &Entry) -> Observation {
    Observation::Lost(entry.key())
}

/// The link that `message` lists.
pub(super) fn listed_link(message: &Message) -> Option<(LinkName, Known)> {
    match &message.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => link::known(link),
        _ => None,
    }
}

/// The message in `bytes`; none if it is of a kind or form that nobody here knows.
pub(super) fn parse(bytes: &[u8]) -> Option<Message> {
    let frame = NetlinkBuffer::new_checked(bytes).ok()?;
    let inner = match frame.message_type() {
        RTM_NEWLINK => RouteNetlinkMessage::NewLink(link::parse(frame.payload())?),
        RTM_DELLINK => RouteNetlinkMessage::DelLink(link::parse(frame.payload())?),
        RTM_NEWNETCONF => RouteNetlinkMessage::NewLink(netconf::parse(frame.payload())?),
        _ => return Message::deserialize(bytes).ok(),
    };
    let header = NetlinkHeader::parse(&frame).ok()?;
    Some(Message::new(header, NetlinkPayload::InnerMessage(inner)))
}
