//! Which connections of UDP are deleted: it has no end, so that a client would be sent to an endpoint
//! that is gone as long as it goes on. Connections of TCP end by themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
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

/// The endpoints of UDP that have left the lists of their frontend and still serve: the connections that
/// they have stay with them, as with kube-proxy.
#[derive(Debug, Default)]
pub struct Leaving {
    endpoints: BTreeMap<Frontend, BTreeSet<Endpoint>>,
    stale: BTreeSet<Stale>,
}

impl Leaving {
    /// Connections of `frontend`, of UDP, may have these endpoints. `listed`: those that new ones go
    /// to; `serving`: all that answer the connections that they have.
    pub fn note(
        &mut self,
        frontend: Frontend,
        mut known: BTreeSet<Endpoint>,
        listed: &BTreeSet<Endpoint>,
        serving: &BTreeSet<Endpoint>,
    ) {
        known.extend(self.endpoints.remove(&frontend).unwrap_or_default());
        let left = known.difference(listed).copied();
        let (kept, gone): (BTreeSet<_>, BTreeSet<_>) = left.partition(|one| serving.contains(one));
        self.stale.extend(gone.into_iter().map(|one| Stale::left(&frontend, one)));
        if !kept.is_empty() {
            self.endpoints.insert(frontend, kept);
        }
    }

    /// The connections that endpoints have left since the last call.
    pub fn take_stale(&mut self) -> BTreeSet<Stale> {
        mem::take(&mut self.stale)
    }
}

/// Those of `frontend` that the change from `have` to `want` leaves without an endpoint, or that were
/// not translated because it had none. Some of these endpoints may still serve.
pub fn stale(frontend: Frontend, want: Option<&Entry>, have: Option<&Entry>) -> Vec<Stale> {
    if frontend.transport != Transport::Udp {
        return Vec::new();
    }
    let (kept, mut gone) = (endpoints(want), endpoints(have));
    gone.retain(|one| !kept.contains(one));
    let begins = want.is_some_and(is_served) && !have.is_some_and(is_translated);
    let gone = gone.into_iter().map(|one| Stale::left(&frontend, one));
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

/// Those that connections go to.
pub fn endpoints(entry: Option<&Entry>) -> BTreeSet<Endpoint> {
    let slots = |entry: &Entry| List::ALL.map(|list| entry.list(list).slots.clone());
    entry.into_iter().flat_map(slots).flatten().flatten().collect()
}

/// By frontend, the endpoints that answer `connections`.
pub fn by_frontend(connections: &BTreeSet<Stale>) -> BTreeMap<Frontend, BTreeSet<Endpoint>> {
    let mut all = BTreeMap::<_, BTreeSet<_>>::new();
    for Stale { to, answered_by } in connections {
        let (address, port) = (to.ip(), to.port());
        let frontend = Frontend { address, transport: Transport::Udp, port };
        let endpoint = Endpoint { address: answered_by.ip(), port: answered_by.port() };
        all.entry(frontend).or_default().insert(endpoint);
    }
    all
}

/// The ports of UDP in this family.
pub fn ports(desired: &State, family: Family) -> BTreeSet<u16> {
    let all = desired.frontends.keys().filter(|one| one.transport == Transport::Udp);
    all.filter(|one| Family::of(one.address) == family).map(|one| one.port).collect()
}

pub fn is_served(entry: &Entry) -> bool {
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

    /// A connection that `endpoint` no longer answers.
    pub fn left(frontend: &Frontend, endpoint: Endpoint) -> Self {
        let to = SocketAddr::from((frontend.address, frontend.port));
        Self { to, answered_by: (endpoint.address, endpoint.port).into() }
    }

    /// As which `connection` is deleted, if it is stale. None for other protocols than UDP.
    pub fn of(connection: &Connection) -> Option<Self> {
        let Connection { protocol, destination, answered_by, .. } = *connection;
        let is_udp = protocol == Transport::Udp.number();
        is_udp.then_some(Self { to: destination, answered_by })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use serde_json::json;

    use super::*;
    use crate::objects::endpoints::{Slice, SliceName};
    use crate::objects::service::{Service, ServiceName};
    use crate::plan::cluster::{Cluster, NodeAddresses};
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

    /// With a service of UDP.
    fn with_dns() -> Cluster {
        let mut cluster = Cluster::new(NodeAddresses::default());
        set_policy(&mut cluster, "Cluster");
        cluster
    }

    fn set_policy(cluster: &mut Cluster, policy: &str) {
        let object = json!({
            "metadata": {"namespace": "default", "name": "dns"},
            "spec": {
                "clusterIP": "10.96.0.1", "ports": [{"port": 53, "protocol": "UDP"}],
                "internalTrafficPolicy": policy,
            },
        });
        let object = serde_json::from_value(object).unwrap();
        cluster.set_service(&ServiceName::of("default", "dns"), Service::of(&object));
    }

    /// Gives it these endpoints, by number and node: ready, serving, terminating. Returns the numbers
    /// of those that new connections go to, and of those that connections have lost.
    fn change(cluster: &mut Cluster, endpoints: &[(u8, &str, [bool; 3])]) -> (Vec<u8>, Vec<u8>) {
        let endpoints = endpoints.iter().map(|(number, node, [ready, serving, terminating])| {
            let conditions =
                json!({"ready": ready, "serving": serving, "terminating": terminating});
            let addresses = [format!("10.1.0.{number}")];
            json!({"addresses": addresses, "nodeName": node, "conditions": conditions})
        });
        let slice = json!({
            "metadata": {
                "namespace": "default", "name": "dns-1",
                "labels": {"kubernetes.io/service-name": "dns"},
            },
            "addressType": "IPv4",
            "ports": [{"port": 53, "protocol": "UDP"}],
            "endpoints": endpoints.collect::<Vec<_>>(),
        });
        let slice = serde_json::from_value(slice).unwrap();
        cluster.set_slice(&SliceName::of(&slice), Slice::of(&slice, "here"));
        cluster.revise();
        let number = |address: IpAddr| match address {
            IpAddr::V4(address) => address.octets()[3],
            IpAddr::V6(_) => 0,
        };
        let listed = cluster.desired().frontends[&DNS].all.slots.iter().flatten();
        let mut listed: Vec<u8> = listed.map(|endpoint| number(endpoint.address)).collect();
        listed.sort_unstable();
        let stale = cluster.take_stale().into_iter();
        (listed, stale.map(|stale| number(stale.answered_by.ip())).collect())
    }

    const READY: [bool; 3] = [true, true, false];
    const ENDING: [bool; 3] = [false, true, true];
    const ENDED: [bool; 3] = [false, false, true];

    #[test]
    fn connections_stay_with_an_endpoint_as_long_as_it_serves() {
        let mut cluster = with_dns();
        let both = |first| [(1, "here", first), (2, "here", READY)];
        assert_eq!(change(&mut cluster, &both(READY)), (vec![1, 2], vec![]));
        assert_eq!(change(&mut cluster, &both(ENDING)), (vec![2], vec![]));
        assert_eq!(change(&mut cluster, &both(ENDED)), (vec![2], vec![1]));
        assert_eq!(change(&mut cluster, &both(READY)), (vec![1, 2], vec![]));
        assert_eq!(change(&mut cluster, &both(ENDING)), (vec![2], vec![]));
        assert_eq!(change(&mut cluster, &both(READY)), (vec![1, 2], vec![]));
        assert_eq!(change(&mut cluster, &both(ENDING)), (vec![2], vec![]));
        assert_eq!(change(&mut cluster, &both(READY)[1..]), (vec![2], vec![1]));
        assert_eq!(change(&mut cluster, &[]), (vec![], vec![2]));
    }

    #[test]
    fn connections_stay_with_endpoints_that_a_policy_withholds_from_new_ones() {
        let mut cluster = with_dns();
        let endpoints = [(1, "here", READY), (2, "there", READY)];
        assert_eq!(change(&mut cluster, &endpoints), (vec![1, 2], vec![]));
        set_policy(&mut cluster, "Local");
        assert_eq!(change(&mut cluster, &endpoints), (vec![1], vec![]));
        assert_eq!(change(&mut cluster, &endpoints[..1]), (vec![1], vec![2]));
    }

    /// After a start, and after the table was replaced.
    #[test]
    fn connections_from_before_are_reviewed_by_what_serves_now() {
        let mut cluster = with_dns();
        let endpoints = [(1, "here", READY), (2, "here", ENDING)];
        assert_eq!(change(&mut cluster, &endpoints), (vec![1], vec![]));
        let address = |number| SocketAddr::from(([10, 1, 0, number], 53));
        let to = SocketAddr::from((DNS.address, DNS.port));
        let answered = |answered_by| Stale { to, answered_by };
        let other = Stale { to: ([10, 96, 0, 99], 53).into(), answered_by: address(9) };
        let untranslated = Stale::untranslated(&DNS);
        let by = [1, 2, 3].map(|number| answered(address(number)));
        cluster.review(&by.into_iter().chain([other, untranslated]).collect());
        assert_eq!(cluster.take_stale(), [by[2], untranslated].into());
        assert_eq!(change(&mut cluster, &endpoints[..1]), (vec![1], vec![2]));
        // Without an endpoint, there is nothing that could translate it.
        assert_eq!(change(&mut cluster, &[]), (vec![], vec![1]));
        cluster.review(&by.into_iter().chain([untranslated]).collect());
        assert_eq!(cluster.take_stale(), by.into());
    }

    #[test]
    fn connections_are_not_deleted_if_their_endpoint_has_come_back() {
        let mut cluster = with_dns();
        let endpoints = [(1, "here", READY), (2, "here", ENDING)];
        change(&mut cluster, &endpoints);
        let to = SocketAddr::from((DNS.address, DNS.port));
        let by = [1, 2, 3].map(|number| Stale { to, answered_by: ([10, 1, 0, number], 53).into() });
        assert_eq!(cluster.still_stale(&by.into()), [by[2]].into());
    }
}
