//! Which connections of UDP are deleted: it has no end, so that a client would be sent to an endpoint
//! that is gone as long as it goes on. Connections of TCP end by themselves.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use tweed_netlink::Family;
use tweed_netlink::conntrack::Connection;

use crate::state::{Endpoint, Entry, Flag, Frontend, List, Slots, State, Transport};

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
    let begins = want.is_some_and(is_served) && !have.is_some_and(is_translated);
    let to = SocketAddr::from((frontend.address, frontend.port));
    let gone = gone.map(|Endpoint { address, port }| (*address, *port).into());
    let gone = gone.map(|answered_by| Stale { to, answered_by });
    gone.chain(begins.then(|| Stale::untranslated(&frontend))).collect()
}

/// Those to `family` that may not have been translated while the chains were not there.
pub fn untranslated(desired: &State, family: Family) -> impl Iterator<Item = Stale> {
    let of_family = desired.frontends.iter().filter(move |(frontend, entry)| {
        let is_udp = frontend.transport == Transport::Udp;
        is_udp && Family::of(frontend.address) == family && is_served(entry)
    });
    of_family.map(|(frontend, _)| Stale::untranslated(frontend))
}

fn is_served(entry: &Entry) -> bool {
    entry.flags.contains(&Flag::Served)
}

/// Whether each connection finds an endpoint: another program may have removed some elements.
fn is_translated(entry: &Entry) -> bool {
    let finds = |Slots { slots, counts }: &Slots| {
        let count = counts.last().copied().unwrap_or_default();
        (slots.is_empty() || !counts.is_empty())
            && slots.iter().all(Option::is_some)
            && usize::try_from(count).is_ok_and(|count| count <= slots.len())
    };
    is_served(entry) && List::ALL.into_iter().all(|list| finds(entry.list(list)))
}

impl Stale {
    /// A connection that was not translated.
    fn untranslated(frontend: &Frontend) -> Self {
        let to = SocketAddr::from((frontend.address, frontend.port));
        Self { to, answered_by: to }
    }

    /// What `connection` would have to be, if it is one of UDP.
    pub fn of(connection: &Connection) -> Option<Self> {
        let Connection { protocol, destination, answered_by, .. } = *connection;
        let is_udp = protocol == Transport::Udp.number();
        is_udp.then_some(Self { to: destination, answered_by })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::state::Element;

    const DNS: Frontend = Frontend {
        address: IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1)),
        transport: Transport::Udp,
        port: 53,
    };

    fn entry(elements: impl IntoIterator<Item = Element>) -> Entry {
        let mut entry = Entry::default();
        elements.into_iter().for_each(|element| entry.add(element));
        entry
    }

    /// While another program has removed some elements, connections may begin that are not translated;
    /// once they are there again, a client that goes on would never get an answer.
    #[test]
    fn connections_from_before_a_repair_are_deleted() {
        let endpoint = |number| Endpoint { address: [10, 1, 0, number].into(), port: 53 };
        let slot = |index, number| Element::Slot(List::All, DNS, index, endpoint(number));
        let served = Element::Flag(Flag::Served, DNS);
        let count = Element::Count(List::All, DNS, 2);
        let want = entry([slot(0, 1), slot(1, 2), count, served]);
        assert_eq!(stale(DNS, Some(&want), Some(&want)), []);
        for damaged in [
            entry([slot(0, 1), slot(1, 2), served]),
            entry([slot(1, 2), count, served]),
            entry([slot(0, 1), slot(1, 2), count]),
            entry([slot(0, 1), count, served]),
            entry([count, served]),
            Entry::default(),
        ] {
            assert_eq!(stale(DNS, Some(&want), Some(&damaged)), [Stale::untranslated(&DNS)]);
        }
        let more = entry([slot(0, 1), Element::Count(List::All, DNS, 1), served]);
        assert_eq!(stale(DNS, Some(&want), Some(&more)), []);
    }
}
