//! Which connections of UDP are deleted: it has no end, so that a client would be sent to an endpoint
//! that is gone as long as it goes on. Connections of TCP end by themselves.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use tweed_netlink::conntrack::Connection;

use crate::state::{Endpoint, Entry, Flag, Frontend, List, Transport};

/// Connections to `to` that `answered_by` answers: the same address, if they are not translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stale {
    pub to: SocketAddr,
    pub answered_by: SocketAddr,
}

/// Those of `frontend` that the change from `have` to `want` leaves without an endpoint, or that were
/// not translated because it had none.
pub fn stale(frontend: Frontend, want: Option<&Entry>, have: Option<&Entry>) -> Vec<Stale> {
    if frontend.transport != Transport::Udp {
        return Vec::new();
    }
    let endpoints = |entry: &Entry| -> BTreeSet<Endpoint> {
        List::ALL.into_iter().flat_map(|list| entry.list(list).slots.clone()).flatten().collect()
    };
    let kept = want.map(endpoints).unwrap_or_default();
    let gone = have.map(endpoints).unwrap_or_default();
    let gone = gone.difference(&kept);
    let is_served = |entry: &Entry| entry.flags.contains(&Flag::Served);
    let begins = want.is_some_and(is_served) && !have.is_some_and(is_served);
    let to = SocketAddr::from((frontend.address, frontend.port));
    let gone = gone.map(|Endpoint { address, port }| (*address, *port).into());
    gone.chain(begins.then_some(to)).map(|answered_by| Stale { to, answered_by }).collect()
}

impl Stale {
    /// What `connection` would have to be, if it is one of UDP.
    pub fn of(connection: &Connection) -> Option<Self> {
        let Connection { protocol, destination, answered_by, .. } = *connection;
        let is_udp = protocol == Transport::Udp.number();
        is_udp.then_some(Self { to: destination, answered_by })
    }
}
