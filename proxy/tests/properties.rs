//! Whatever happens to Services and `EndpointSlices`, the sets become what they are to hold, and no
//! packet finds half of a frontend meanwhile.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;
use std::time::Duration;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::{Value, json};
use tweed_netlink::Family;
use tweed_netlink::nftables::ListedElement;
use tweed_proxy::kernel::codec;
use tweed_proxy::objects::endpoints::{Slice, SliceName};
use tweed_proxy::objects::object::EndpointSliceObject;
use tweed_proxy::objects::service::{Service, ServiceName};
use tweed_proxy::plan::cluster::{Affinity, Cluster, NodeAddresses};
use tweed_proxy::plan::diff::{self, Change, Changes, Pending, diff};
use tweed_proxy::state::{Element, Entry, Flag, Frontend, List, State};

const NODE: &str = "here";

/// The number of the slices with endpoints of IPv6.
const IPV6: u8 = 2;

/// An edit of an object.
#[derive(Clone, Debug)]
enum Edit {
    /// Number of the service; none removes it.
    Service(u8, Option<ServiceEdit>),
    /// Number of the service, and of the slice; none removes it.
    Slice(u8, u8, Option<Vec<EndpointEdit>>),
}

#[expect(clippy::struct_excessive_bools, reason = "a Service decides about all of these")]
#[derive(Clone, Debug, Default)]
struct ServiceEdit {
    is_dual: bool,
    has_node_port: bool,
    /// The same one for several services.
    external_ip: Option<u8>,
    is_local_inside: bool,
    is_local_outside: bool,
    has_affinity: bool,
    /// Which network may reach it; none: all.
    range: Option<u8>,
}

#[derive(Clone, Debug)]
struct EndpointEdit {
    number: u8,
    node: Option<&'static str>,
    /// Ready, serving, terminating.
    conditions: [bool; 3],
}

fn service() -> impl Strategy<Value = ServiceEdit> {
    let some = || prop::bool::weighted(0.3);
    let policies = (some(), some());
    let range = prop::option::weighted(0.4, 0..4_u8);
    let affinity = prop::bool::weighted(0.1);
    (some(), some(), prop::option::of(0..2_u8), policies, affinity, range).prop_map(
        |(is_dual, has_node_port, external_ip, policies, has_affinity, range)| ServiceEdit {
            is_dual,
            has_node_port,
            external_ip,
            is_local_inside: policies.0,
            is_local_outside: policies.1,
            has_affinity,
            range,
        },
    )
}

fn endpoints() -> impl Strategy<Value = Vec<EndpointEdit>> {
    let node = prop::option::weighted(0.8, prop::sample::select(vec![NODE, "elsewhere"]));
    let conditions = (prop::bool::weighted(0.7), prop::bool::weighted(0.8), any::<bool>());
    btree_map(0..12_u8, (node, conditions), 0..8).prop_map(|all| {
        let edit = |(number, (node, (ready, serving, terminating)))| {
            let conditions = [ready, ready || serving, terminating];
            EndpointEdit { number, node, conditions }
        };
        all.into_iter().map(edit).collect()
    })
}

fn edit() -> impl Strategy<Value = Edit> {
    let there = prop::option::weighted(0.85, service());
    prop_oneof![
        2 => (0..4_u8, there).prop_map(|(number, service)| Edit::Service(number, service)),
        5 => (0..4_u8, 0..=IPV6, prop::option::weighted(0.9, endpoints()))
            .prop_map(|(number, slice, endpoints)| Edit::Slice(number, slice, endpoints)),
    ]
}

fn of_service(number: u8, edit: &ServiceEdit) -> Option<Service> {
    let policy = |is_local| if is_local { "Local" } else { "Cluster" };
    let mut ips = vec![format!("10.96.0.{number}")];
    ips.extend(edit.is_dual.then(|| format!("fd96::{number}")));
    let external: Vec<String> = edit.external_ip.iter().map(|ip| format!("192.0.2.{ip}")).collect();
    let ranges = ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "192.0.2.0/24"];
    let ranges: Vec<&str> = edit.range.iter().map(|range| ranges[usize::from(*range)]).collect();
    let service = json!({
        "metadata": {"namespace": "default", "name": format!("s{number}")},
        "spec": {
            "clusterIPs": ips,
            "externalIPs": external,
            "ports": [
                {"name": "web", "port": 80, "nodePort": u16::from(edit.has_node_port) * 30000},
                {"name": "dns", "port": 53, "protocol": "UDP"},
            ],
            "sessionAffinity": if edit.has_affinity { "ClientIP" } else { "None" },
            "internalTrafficPolicy": policy(edit.is_local_inside),
            "externalTrafficPolicy": policy(edit.is_local_outside),
            "loadBalancerSourceRanges": ranges,
        },
        "status": {"loadBalancer": {"ingress": [{"ip": format!("198.51.100.{number}")}]}},
    });
    Service::of(&serde_json::from_value(service).unwrap())
}

fn of_slice(number: u8, slice: u8, edits: &[EndpointEdit]) -> EndpointSliceObject {
    // As of a service of both families: one of its slices is of IPv6.
    let (family, prefix) = if slice == IPV6 {
        ("IPv6", format!("fd01::{number}:"))
    } else {
        ("IPv4", format!("10.1.{number}."))
    };
    let endpoint = |edit: &EndpointEdit| {
        let EndpointEdit { number, node, conditions: [ready, serving, terminating] } = edit;
        json!({
            "addresses": [format!("{prefix}{number}")],
            "nodeName": node,
            "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        })
    };
    let endpoints: Vec<Value> = edits.iter().map(endpoint).collect();
    let slice = json!({
        "addressType": family,
        "metadata": {
            "namespace": "default",
            "name": format!("s{number}-{slice}"),
            "labels": {"kubernetes.io/service-name": format!("s{number}")},
        },
        "ports": [
            {"name": "web", "port": 8080, "protocol": "TCP"},
            {"name": "dns", "port": 5353, "protocol": "UDP"},
        ],
        "endpoints": endpoints,
    });
    serde_json::from_value(slice).unwrap()
}

fn name(number: u8) -> ServiceName {
    ServiceName::of("default", &format!("s{number}"))
}

fn perform_all(cluster: &mut Cluster, edits: &[Edit]) {
    for edit in edits {
        perform(cluster, edit);
    }
}

fn perform(cluster: &mut Cluster, edit: &Edit) {
    match edit {
        Edit::Service(number, edit) => {
            let service = edit.as_ref().and_then(|edit| of_service(*number, edit));
            cluster.set_service(&name(*number), service);
        }
        Edit::Slice(number, slice, edits) => {
            let object = of_slice(*number, *slice, edits.as_deref().unwrap_or_default());
            let part = edits.as_ref().and_then(|_| Slice::of(&object, NODE));
            cluster.set_slice(&SliceName::of(&object), part);
        }
    }
}

fn cluster() -> Cluster {
    Cluster::new(addresses())
}

fn addresses() -> NodeAddresses {
    let address = vec!["172.16.0.1".parse().unwrap()];
    NodeAddresses { primary: address.clone(), for_node_ports: address }
}

/// The sets of the kernel: a key has one value, and what is removed must be there.
#[derive(Default)]
struct Kernel(BTreeSet<Element>);

impl Kernel {
    /// Carries out one transaction.
    fn commit<'a>(&mut self, changes: impl IntoIterator<Item = &'a Change>) {
        let changes: Vec<&Change> = changes.into_iter().collect();
        let frontends = changes.iter().filter_map(|change| change.element().frontend()).collect();
        let before = self.state_of(&frontends);
        let is_removal = |change: &&Change| matches!(change, Change::Remove(_));
        let (removed, put): (Vec<&Change>, Vec<&Change>) =
            changes.into_iter().partition(is_removal);
        for change in removed {
            assert!(self.0.remove(change.element()), "{change} is not there");
        }
        for change in put {
            let element = *change.element();
            if let Element::Client(frontend, network) = element {
                let overlaps = |other: &Element| {
                    matches!(other, Element::Client(same, there) if *same == frontend
                        && (there.contains(network.ip()) || network.contains(there.ip())))
                };
                assert!(!self.0.iter().any(overlaps), "{element} overlaps another one");
            }
            if let Element::Slot(list, frontend, index, _) = element {
                let has_key = |other: &Element| matches!(other, Element::Slot(a, b, c, _) if (*a, *b, *c) == (list, frontend, index));
                assert!(!self.0.iter().any(has_key), "{element} has another value");
            }
            assert!(self.0.insert(element), "{element} is there already");
        }
        check_between(&before, &self.state_of(&frontends));
    }

    fn apply(&mut self, changes: &Changes) {
        self.commit(&changes.first);
        self.check();
        let mut frontends: BTreeMap<Option<Frontend>, Vec<&Change>> = BTreeMap::new();
        for change in &changes.then {
            frontends.entry(change.element().frontend()).or_default().push(change);
        }
        for changes in frontends.into_values() {
            self.commit(changes);
            self.check();
        }
        self.commit(&changes.after);
        self.check();
        self.commit(&changes.last);
        self.check();
    }

    fn state(&self) -> State {
        State::of(self.0.iter().copied())
    }

    fn state_of(&self, frontends: &BTreeSet<Frontend>) -> State {
        let is_of = |one: &&Element| one.frontend().is_some_and(|it| frontends.contains(&it));
        State::of(self.0.iter().filter(is_of).copied())
    }

    /// What the changed frontends need of the elements that belong to several is there.
    fn check_shared(&self, desired: &State, carried_out: &Changes) {
        let State { frontends, shared } = self.state();
        let touched = carried_out.then.iter().filter_map(|change| change.element().frontend());
        for (frontend, entry) in touched.filter_map(|it| frontends.get_key_value(&it)) {
            let slots = List::ALL.into_iter().flat_map(|list| entry.list(list).slots.clone());
            for endpoint in slots.flatten().filter(|_| entry.flags.contains(&Flag::Served)) {
                let hairpin = Element::Hairpin(frontend.transport, endpoint);
                let is_missing = desired.shared.contains(&hairpin) && !shared.contains(&hairpin);
                assert!(!is_missing, "{frontend}: without {hairpin}");
            }
        }
    }

    /// No connection is looked up in vain.
    fn check(&self) {
        for (frontend, entry) in self.state().frontends {
            let is = |flag| entry.flags.contains(&flag);
            if is(Flag::Served) {
                assert!(is_whole(&entry, List::All), "{frontend}: {entry:?}");
                let is_local = is_whole(&entry, List::Local) || is(Flag::Unanswered);
                assert!(!is(Flag::LocalOnly) || is_local, "{frontend}: {entry:?}");
            }
            assert!(!is(Flag::Refused) || !is(Flag::Served), "{frontend}: {entry:?}");
        }
    }
}

/// No packet that was looked up in one set before a transaction, and in the next one after it, is looked
/// up in vain.
fn check_between(before: &State, after: &State) {
    for (frontend, entry) in &before.frontends {
        let is_led_to = |list: &List| entry.looks_up(*list) && is_whole(entry, *list);
        for list in List::ALL.into_iter().filter(is_led_to) {
            let finds =
                |after: &Entry| is_whole(after, list) || after.flags.contains(&Flag::Unanswered);
            let after = after.entry(frontend);
            assert!(after.is_some_and(finds), "{frontend}: {entry:?}, {after:?}");
        }
    }
}

/// At least one number of endpoints, and all endpoints up to the highest.
fn is_whole(entry: &Entry, list: List) -> bool {
    let slots = entry.list(list);
    let Some(count) = slots.counts.iter().max().copied() else { return false };
    (0..count).all(|index| slots.slots.get(index as usize).is_some_and(Option::is_some))
}

/// The endpoints of each frontend, in any order.
fn unordered(state: &State) -> BTreeMap<Frontend, BTreeSet<Element>> {
    let mut all = BTreeMap::new();
    for (frontend, entry) in &state.frontends {
        let elements = entry.elements(*frontend).map(|element| match element {
            Element::Slot(list, frontend, _, endpoint) => {
                Element::Slot(list, frontend, 0, endpoint)
            }
            element => element,
        });
        all.insert(*frontend, elements.collect());
    }
    all
}

proptest! {
    #[test]
    fn edits_one_by_one_lead_to_what_all_of_them_lead_to(edits in vec(edit(), 1..40)) {
        let (mut cluster, mut kernel) = (self::cluster(), Kernel::default());
        for edit in &edits {
            perform(&mut cluster, edit);
            let before = cluster.desired().clone();
            let parts = cluster.revise();
            let desired = cluster.desired();
            let changes = diff::changes(parts, desired, &before);
            prop_assert_eq!(&changes, &diff(desired, &before));
            kernel.apply(&changes);
            prop_assert_eq!(desired, &kernel.state());
        }
        let mut fresh = self::cluster();
        perform_all(&mut fresh, &edits);
        fresh.revise();
        prop_assert_eq!(unordered(fresh.desired()), unordered(cluster.desired()));
        prop_assert_eq!(&fresh.desired().shared, &cluster.desired().shared);
    }

    #[test]
    fn any_state_becomes_any_other(before in vec(edit(), 1..30), after in vec(edit(), 1..30)) {
        let [before, after] = [before, after].map(|edits| {
            let mut cluster = self::cluster();
            perform_all(&mut cluster, &edits);
            cluster.revise();
            cluster
        });
        let mut kernel = Kernel::default();
        kernel.apply(&diff(before.desired(), &State::default()));
        kernel.apply(&diff(after.desired(), before.desired()));
        prop_assert_eq!(after.desired(), &kernel.state());
        prop_assert!(diff(after.desired(), &kernel.state()).is_empty());
    }

    #[test]
    fn a_restart_changes_nothing(edits in vec(edit(), 1..40)) {
        let mut before = self::cluster();
        for edit in &edits {
            perform(&mut before, edit);
            before.revise();
        }
        let mut after = Cluster::adopt(addresses(), Affinity::default(), before.desired().clone());
        perform_all(&mut after, &edits);
        after.revise();
        prop_assert_eq!(after.desired(), before.desired());
    }

    /// What is not looked up any more is removed 100 ms later, whatever happens meanwhile.
    #[test]
    fn removals_wait_for_packets_on_their_way(edits in vec((edit(), 0..200_u64), 1..40)) {
        let (mut cluster, mut kernel) = (self::cluster(), Kernel::default());
        let (mut pending, mut actual) = (Pending::new(3), State::default());
        let mut now = Duration::ZERO;
        // When a slot was looked up for the last time, as far as the sets show it.
        let mut looked_up: BTreeMap<Element, Duration> = BTreeMap::new();
        let mut wanted = BTreeSet::new();
        let mut step = |cluster: &Cluster, pending: &mut Pending, now: &mut Duration| {
            let (begun, desired, mut last) = (*now, cluster.desired(), Vec::new());
            let before = mem::replace(&mut wanted, desired.shared.clone());
            let in_use: Vec<Element> = used(&actual).into_iter().chain(before).collect();
            pending.add_due(begun);
            while let Some(mut changes) = pending.next(desired, &actual, begun) {
                *now += Duration::from_millis(30);
                last.extend(mem::take(&mut changes.last));
                kernel.apply(&changes);
                kernel.check_shared(desired, &changes);
                changes.all().for_each(|change| change.apply(&mut actual));
            }
            pending.mark_applied(*now);
            for change in &last {
                let since = looked_up.get(change.element()).copied().unwrap_or_default();
                let is_late = begun >= since + Duration::from_millis(100);
                assert!(is_late, "{change} at {begun:?}, {since:?}");
            }
            looked_up.extend(in_use.into_iter().map(|element| (element, *now)));
            kernel.commit(&last);
            kernel.check();
            for change in &last {
                change.apply(&mut actual);
            }
            assert_eq!(actual, kernel.state());
        };
        for (edit, pause) in &edits {
            perform(&mut cluster, edit);
            pending.add(cluster.revise());
            step(&cluster, &mut pending, &mut now);
            now += Duration::from_millis(*pause);
        }
        while let Some(due) = pending.due() {
            now = now.max(due);
            step(&cluster, &mut pending, &mut now);
        }
        prop_assert_eq!(&actual, cluster.desired());
    }

    #[test]
    fn a_snapshot_leads_to_what_single_edits_lead_to(
        before in vec(edit(), 0..20),
        edits in vec(edit(), 1..40),
    ) {
        let mut single = self::cluster();
        perform_all(&mut single, &edits);
        let mut snapshot = self::cluster();
        perform_all(&mut snapshot, &before);
        snapshot.revise();
        let (mut services, mut slices) = (HashMap::new(), HashMap::new());
        for edit in &edits {
            match edit {
                Edit::Service(number, edit) => {
                    services.remove(&name(*number));
                    let service = edit.as_ref().and_then(|edit| of_service(*number, edit));
                    services.extend(service.map(|service| (name(*number), service)));
                }
                Edit::Slice(number, slice, edits) => {
                    let object = of_slice(*number, *slice, edits.as_deref().unwrap_or_default());
                    slices.remove(&SliceName::of(&object));
                    let slice = edits.as_ref().and_then(|_| Slice::of(&object, NODE));
                    slices.extend(slice.map(|slice| (SliceName::of(&object), slice)));
                }
            }
        }
        snapshot.set_services(services);
        snapshot.set_slices(slices);
        for cluster in [&mut single, &mut snapshot] {
            cluster.revise();
        }
        prop_assert_eq!(unordered(snapshot.desired()), unordered(single.desired()));
        prop_assert_eq!(&snapshot.desired().shared, &single.desired().shared);
    }

    #[test]
    fn other_addresses_of_the_node_move_its_node_ports(edits in vec(edit(), 1..40)) {
        let mut cluster = self::cluster();
        perform_all(&mut cluster, &edits);
        cluster.revise();
        let address = vec!["172.16.0.2".parse().unwrap()];
        let other = NodeAddresses { primary: address.clone(), for_node_ports: address };
        cluster.set_addresses(other.clone());
        cluster.revise();
        let mut fresh = Cluster::new(other);
        perform_all(&mut fresh, &edits);
        fresh.revise();
        prop_assert_eq!(unordered(fresh.desired()), unordered(cluster.desired()));
    }

    #[test]
    fn an_encoded_element_is_decoded_without_change(edits in vec(edit(), 1..30)) {
        let mut cluster = self::cluster();
        perform_all(&mut cluster, &edits);
        cluster.revise();
        let State { frontends, shared } = cluster.desired();
        let elements = frontends.iter().flat_map(|(frontend, entry)| entry.elements(*frontend));
        for element in elements.chain(shared.iter().copied()) {
            let encoded = codec::encode(&element);
            let (key, end) = (encoded.key.as_slice(), encoded.end.as_deref());
            let listed = ListedElement { key, end, value: encoded.value.as_deref() };
            let decoded = codec::decode(element.set(), element.family(), listed);
            prop_assert_eq!(decoded, Some(element));
        }
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(
        key in vec(any::<u8>(), 0..50),
        end in prop::option::of(vec(any::<u8>(), 0..50)),
        value in prop::option::of(vec(any::<u8>(), 0..50)),
    ) {
        for family in Family::ALL {
            for set in tweed_proxy::state::Set::fixed() {
                let (end, value) = (end.as_deref(), value.as_deref());
                let _ = codec::decode(set, family, ListedElement { key: &key, end, value });
            }
        }
    }
}

/// The slots and numbers that packets may look up.
fn used(state: &State) -> Vec<Element> {
    let mut used = Vec::new();
    for (frontend, entry) in &state.frontends {
        for list in List::ALL.into_iter().filter(|list| entry.looks_up(*list)) {
            let count = entry.list(list).counts.iter().max().copied().unwrap_or(0);
            used.extend(entry.elements(*frontend).filter(|element| {
                matches!(element, Element::Slot(other, _, index, _) if *other == list && *index < count)
                    || matches!(element, Element::Count(other, ..) if *other == list)
            }));
        }
    }
    used
}

/// A service with a cluster IP and these endpoints, and what a change to others changes there.
struct One(Cluster);

impl One {
    fn new(endpoints: &[u8]) -> Self {
        let mut one = Self(cluster());
        perform(&mut one.0, &Edit::Service(1, Some(ServiceEdit::default())));
        one.change(endpoints);
        one
    }

    fn change(&mut self, endpoints: &[u8]) -> Vec<String> {
        let edit = |number: &u8| EndpointEdit {
            number: *number,
            node: Some("elsewhere"),
            conditions: [true, true, false],
        };
        let edits = endpoints.iter().map(edit).collect();
        let before = self.0.desired().clone();
        perform(&mut self.0, &Edit::Slice(1, 0, Some(edits)));
        self.0.revise();
        let of_cluster_ip = |change: &&Change| {
            let frontend = change.element().frontend();
            frontend.is_some_and(|frontend| frontend.to_string() == "TCP 10.96.0.1:80")
        };
        let changes = diff(self.0.desired(), &before);
        changes.all().filter(of_cluster_ip).map(ToString::to_string).collect()
    }
}

#[test]
fn a_change_of_one_endpoint_is_few_elements() {
    let mut one = One::new(&[1, 2, 3]);
    assert_eq!(
        one.change(&[1, 2, 4]),
        [
            "- endpoints TCP 10.96.0.1:80 2: 10.1.1.3:8080",
            "+ endpoints TCP 10.96.0.1:80 2: 10.1.1.4:8080"
        ]
    );
    assert_eq!(
        one.change(&[2, 4]),
        [
            "- endpoints TCP 10.96.0.1:80 0: 10.1.1.1:8080",
            "+ endpoints TCP 10.96.0.1:80 0: 10.1.1.4:8080",
            "+ count-2 TCP 10.96.0.1:80",
            "- count-3 TCP 10.96.0.1:80",
            "- endpoints TCP 10.96.0.1:80 2: 10.1.1.4:8080"
        ]
    );
    assert_eq!(
        one.change(&[2, 4, 7]),
        [
            "+ endpoints TCP 10.96.0.1:80 2: 10.1.1.7:8080",
            "+ count-3 TCP 10.96.0.1:80",
            "- count-2 TCP 10.96.0.1:80"
        ]
    );
    assert_eq!(
        one.change(&[]),
        [
            "- frontends TCP 10.96.0.1:80",
            "+ refused TCP 10.96.0.1:80",
            "- endpoints TCP 10.96.0.1:80 0: 10.1.1.4:8080",
            "- endpoints TCP 10.96.0.1:80 1: 10.1.1.2:8080",
            "- endpoints TCP 10.96.0.1:80 2: 10.1.1.7:8080",
            "- count-3 TCP 10.96.0.1:80"
        ]
    );
}
