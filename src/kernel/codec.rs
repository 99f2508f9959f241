//! Encodes entries as netlink messages and decodes messages to entries. Pure.

/// The value of the first attribute of a message that matches one of these patterns.
macro_rules! attribute {
    ($message:expr, $($pattern:pat => $value:expr),+ $(,)?) => {
        $message.attributes.iter().find_map(|attribute| match attribute {
            $($pattern => $value,)+
            _ => None,
        })
    };
}

mod address;
mod chain;
mod interface;
mod link;
mod links;
mod neighbour;
mod nexthop;
mod peek;
mod route;
mod table;
#[cfg(test)]
mod tests;
mod transaction;

pub(super) use chain::{
    HostChain, base_policy, chain, changed_chain, incompatible, script, table_of,
};
pub(super) use interface::{interface, interface_address};
pub(super) use link::{ALL_LINKS, listed as listed_link, name as link_name};
pub(super) use links::Links;
pub(super) use nexthop::{list as nexthops, taken as taken_nexthop};
pub(super) use peek::{may_be_default, may_concern};
pub(super) use route::{default_route, reach};
pub(super) use table::{changed_table, named as named_table, renewal, table};
pub(super) use transaction::{Transaction, changed_elements, transaction};

use netlink_packet_core::{
    NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NetlinkSerializable,
    ParseableParametrized,
};
use netlink_packet_route::RouteNetlinkMessage;
use nix::libc::{RTM_DELLINK, RTM_NEWLINK, RTM_NEWNETCONF};
use tweed_netlink::{Frame, Message};

use crate::model::entry::{Entry, Key, LinkName, Nexthop, Setting};

use super::Observation;
use crate::plan::diff::Op;
use nexthop::{NexthopMessage, RTM_DELNEXTHOP, RTM_NEWNEXTHOP};

/// How an [`Op`] is applied.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Messages to send in this order.
    Netlink(Vec<Message>),
    /// Part of a transaction with other ops, see [`transaction()`].
    Nftables,
    /// Depends on the current rules: see [`script`].
    Iptables,
    Setting(Setting),
}

/// The content of a kernel message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Body {
    Rtnl(RouteNetlinkMessage),
    /// The reverse-path filter of the link with this index has changed.
    ChangedFilter(u32),
    NewNexthop(NexthopMessage),
    DelNexthop(NexthopMessage),
}

/// The reason why an [`Op`] cannot be encoded.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unencodable {
    #[error("there is no link {0}")]
    NoLink(LinkName),
    #[error("tweed does not create links of type {0}")]
    NotOurs(String),
    #[error("a setting of a link can be changed, not removed")]
    Setting,
    #[error("{0}")]
    Invalid(String),
}

/// The request for `op`. An existing entry is replaced in one step, so that a path is never
/// interrupted.
pub(super) fn encode(op: &Op, links: &Links) -> Result<Request, Unencodable> {
    use RouteNetlinkMessage as M;
    let message = match op.entry() {
        Entry::Link(link) => return link::encode(op, link, links),
        Entry::Setting(setting) => return encode_setting(op, setting),
        Entry::Table(_) | Entry::Renewal(_) | Entry::Element(_) => return Ok(Request::Nftables),
        Entry::Chain(_) => return Ok(Request::Iptables),
        Entry::Nexthop(nexthop) => return encode_nexthop(op, nexthop, links),
        Entry::Address(address) => {
            put_or_del(op, address::encode(address, links)?, M::NewAddress, M::DelAddress)
        }
        Entry::Fdb(fdb) => {
            put_or_del(op, neighbour::encode_fdb(fdb, links)?, M::NewNeighbour, M::DelNeighbour)
        }
        Entry::Neighbour(neighbour) => {
            put_or_del(op, neighbour::encode(neighbour, links)?, M::NewNeighbour, M::DelNeighbour)
        }
        Entry::Route(route) => {
            let remove = |message| M::DelRoute(route::any_scope(message));
            put_or_del(op, route::encode(route, links)?, M::NewRoute, remove)
        }
    };
    Ok(Request::Netlink(vec![message]))
}

/// The request that adds or removes the object of `message`, depending on `op`.
fn put_or_del<T>(
    op: &Op,
    message: T,
    put: impl FnOnce(T) -> RouteNetlinkMessage,
    remove: impl FnOnce(T) -> RouteNetlinkMessage,
) -> Message {
    match op {
        Op::Create(_) | Op::Replace(_) => flagged(&put(message), NLM_F_CREATE | NLM_F_REPLACE),
        Op::Remove(_) => flagged(&remove(message), 0),
    }
}

/// A create request fails if the ID is in use: the object may be foreign and must not be replaced.
fn encode_nexthop(op: &Op, nexthop: &Nexthop, links: &Links) -> Result<Request, Unencodable> {
    Ok(Request::Netlink(vec![match op {
        Op::Create(_) => nexthop::put(nexthop, links, NLM_F_CREATE | NLM_F_EXCL)?,
        Op::Replace(_) => nexthop::put(nexthop, links, NLM_F_CREATE | NLM_F_REPLACE)?,
        Op::Remove(_) => nexthop::remove(nexthop.id),
    }]))
}

fn encode_setting(op: &Op, setting: &Setting) -> Result<Request, Unencodable> {
    match op {
        Op::Create(_) | Op::Replace(_) => Ok(Request::Setting(setting.clone())),
        Op::Remove(_) => Err(Unencodable::Setting),
    }
}

fn flagged(message: &RouteNetlinkMessage, flags: u16) -> Message {
    let mut payload = vec![0; message.buffer_len()];
    message.serialize(&mut payload);
    Message::new(message.message_type(), flags.into(), &payload)
}

/// The change that `body` reports; none if it concerns nothing that tweed models. An entry in an
/// unusable form (a neighbour without a MAC address) is reported as lost.
pub(super) fn decode(body: &Body, links: &Links) -> Option<Observation> {
    use RouteNetlinkMessage as M;
    match body {
        Body::Rtnl(M::NewLink(link)) => {
            Some(Observation::Holds(Entry::Link(link::decode(link, links)?)))
        }
        Body::Rtnl(M::NewAddress(new)) => address::decode(new, links).map(Observation::Holds),
        Body::Rtnl(M::DelAddress(old)) => address::decode(old, links).as_ref().map(lost),
        Body::Rtnl(M::NewNeighbour(new)) => neighbour::decode(new, links),
        Body::Rtnl(M::DelNeighbour(old)) => neighbour::key(old, links).map(Observation::Lost),
        Body::Rtnl(M::NewRoute(new)) => route::decode(new, links).map(Observation::Holds),
        Body::Rtnl(M::DelRoute(old)) => route::decode(old, links).as_ref().map(lost),
        Body::NewNexthop(new) => nexthop::decode(new, links).map(Observation::Holds),
        Body::DelNexthop(old) => old.id.map(|id| Observation::Lost(Key::Nexthop(id))),
        Body::Rtnl(_) | Body::ChangedFilter(_) => None,
    }
}

fn lost(entry: &Entry) -> Observation {
    Observation::Lost(entry.key())
}

/// The content of `frame`; none for an unknown kind or form, and for a route that is inactive
/// behind another one.
pub(super) fn parse(frame: &Frame<'_>) -> Option<Body> {
    let message = match frame.kind {
        RTM_NEWLINK => RouteNetlinkMessage::NewLink(link::parse(frame.payload)?),
        RTM_DELLINK => RouteNetlinkMessage::DelLink(link::parse(frame.payload)?),
        RTM_NEWNETCONF => return link::changed_filter(frame).map(Body::ChangedFilter),
        RTM_NEWNEXTHOP => return nexthop::parse(frame).map(Body::NewNexthop),
        RTM_DELNEXTHOP => return nexthop::parse(frame).map(Body::DelNexthop),
        kind => RouteNetlinkMessage::parse_with_param(frame.payload, kind).ok()?,
    };
    let is_appended = frame.flags & NLM_F_APPEND != 0;
    // A multipath route is active even if appended.
    let is_behind = matches!(
        &message,
        RouteNetlinkMessage::NewRoute(route) if is_appended && !route::is_multipath(route)
    );
    (!is_behind).then_some(Body::Rtnl(message))
}
