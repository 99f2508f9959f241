//! Which leases are accepted, each by itself.

#![allow(clippy::unwrap_used)]

mod peers;

use std::collections::BTreeSet;

use super::*;

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn mac(last: u8) -> MacAddr {
    MacAddr::new([2, 0, 0, 0, 0, last])
}

/// `10.5.3.0/24@172.16.0.3`, with a MAC address that ends as the public IP does.
fn endpoint(text: &str) -> Endpoint {
    let (subnet, public_ip) = text.split_once('@').unwrap();
    let public_ip: IpAddr = public_ip.parse().unwrap();
    let last = crate::model::prefix::number(public_ip).to_be_bytes().last().copied().unwrap();
    let vtep = Some(Vtep { vni: Some(1), mac: mac(last), source: None, mixed: false });
    Endpoint { subnet: prefix(subnet), public_ip, backend: BackendType::Vxlan.into(), vtep }
}

/// A lease of one or two endpoints, named after its text, created at `created`.
fn lease(text: &str, created: u64) -> Lease {
    let endpoints = text.split_whitespace().map(endpoint).collect();
    Lease { id: LeaseId::new(text), endpoints, created, grant: None }
}

fn put(lease: Lease) -> LeaseUpdate {
    LeaseUpdate::Put(Record { id: lease.id.clone(), lease: Ok(lease) })
}

fn corrupt(id: &str) -> LeaseUpdate {
    LeaseUpdate::Put(Record { id: LeaseId::new(id), lease: Err(Malformed("no JSON".into())) })
}

fn snapshot(texts: &[&str]) -> LeaseUpdate {
    let record = |text: &&str| Record { id: LeaseId::new(*text), lease: Ok(lease(text, 10)) };
    LeaseUpdate::Snapshot(texts.iter().map(record).collect())
}

impl Peers {
    fn apply(&mut self, update: LeaseUpdate) -> BTreeSet<LeaseId> {
        self.update(update);
        self.take_affected()
    }
}

const OWN: &str = "10.5.1.0/24@172.16.0.1";
const A: &str = "10.5.3.0/24@172.16.0.3";
const B: &str = "10.5.4.0/24@172.16.0.4";
const C: &str = "10.5.5.0/24@172.16.0.5";

fn rules() -> Rules {
    Rules {
        networks: vec![prefix("10.5.0.0/16"), prefix("fd05::/48")],
        own: Some(lease(OWN, 1)),
        macs: [(Family::V4, mac(1))].into(),
        addresses: vec!["172.16.0.1".parse().unwrap(), "10.5.200.7".parse().unwrap()],
        on_link: vec![prefix("172.16.0.0/24")],
        pools: Vec::new(),
    }
}

fn check(lease: &Lease) -> String {
    rules().check(lease).map_or_else(|why| why.to_string(), |()| "accepted".into())
}

fn outcome(peers: &Peers, id: &str) -> String {
    match peers.peer(&LeaseId::new(id)) {
        None => "unknown".into(),
        Some(Ok(_)) => "accepted".into(),
        Some(Err(why)) => why.to_string(),
    }
}

/// No leases yet, validated by `rules`.
fn validity() -> Peers {
    let mut peers = Peers::default();
    peers.validate_by(rules());
    peers
}

fn ids(texts: &[&str]) -> BTreeSet<LeaseId> {
    texts.iter().map(|text| LeaseId::new(*text)).collect()
}

#[test]
fn a_lease_inside_the_network_is_accepted() {
    assert_eq!(check(&lease(A, 10)), "accepted");
    assert_eq!(check(&lease("10.5.3.0/30@172.16.0.3", 10)), "accepted");
    assert_eq!(check(&lease("10.5.3.0/24@172.16.0.3 fd05:0:0:3::/64@fd00::3", 10)), "accepted");
}

#[test]
fn a_subnet_that_no_peer_can_have_is_rejected() {
    let cases = [
        ("0.0.0.0/0", "subnet 0.0.0.0/0 is not inside the network"),
        ("::/0", "subnet ::/0 is not inside the network"),
        ("10.6.3.0/24", "subnet 10.6.3.0/24 is not inside the network"),
        ("10.4.0.0/15", "subnet 10.4.0.0/15 is not inside the network"),
        ("10.5.0.0/16", "subnet 10.5.0.0/16 is too short or too long for pods"),
        ("10.5.3.0/31", "subnet 10.5.3.0/31 is too short or too long for pods"),
        ("10.5.3.4/32", "subnet 10.5.3.4/32 is too short or too long for pods"),
        ("10.5.1.0/24", "subnet 10.5.1.0/24 overlaps our own subnet 10.5.1.0/24"),
        ("10.5.1.64/26", "subnet 10.5.1.64/26 overlaps our own subnet 10.5.1.0/24"),
        ("10.5.0.0/20", "subnet 10.5.0.0/20 overlaps our own subnet 10.5.1.0/24"),
        ("10.5.200.0/24", "subnet 10.5.200.0/24 contains 10.5.200.7, an address of this node"),
    ];
    for (subnet, reason) in cases {
        let public_ip = if subnet.contains("::") { "fd00::3" } else { "172.16.0.3" };
        assert_eq!(check(&lease(&format!("{subnet}@{public_ip}"), 10)), reason);
    }
}

#[test]
fn a_public_ip_that_no_node_can_have_is_rejected() {
    let implausible = |ip: &str| format!("public IP {ip} is not a valid address of a node");
    for ip in ["0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"] {
        assert_eq!(check(&lease(&format!("10.5.3.0/24@{ip}"), 10)), implausible(ip));
    }
    for ip in ["169.254.3.4", "172.16.0.0", "172.16.0.255"] {
        assert_eq!(check(&lease(&format!("10.5.3.0/24@{ip}"), 10)), implausible(ip));
    }
    for ip in ["::", "::1", "ff02::1", "fe80::3", "::ffff:172.16.0.3"] {
        assert_eq!(check(&lease(&format!("fd05:0:0:3::/64@{ip}"), 10)), implausible(ip));
    }
}

#[test]
fn a_public_ip_of_the_other_family_is_rejected() {
    let reason = "public IP fd00::3 is not a valid address of a node";
    assert_eq!(check(&lease("10.5.3.0/24@fd00::3", 10)), reason);
}

#[test]
fn a_public_ip_in_a_pod_subnet_is_rejected() {
    let reason = "public IP 10.5.3.9 is not a valid address of a node";
    assert_eq!(check(&lease("10.5.3.0/24@10.5.3.9", 10)), reason);
    let reason = "public IP 10.5.1.9 is not a valid address of a node";
    assert_eq!(check(&lease("10.5.3.0/24@10.5.1.9", 10)), reason);
}

/// The first subnets of the pool are never assigned, so nodes may have addresses there.
#[test]
fn a_public_ip_in_the_pool_is_rejected_unless_nodes_have_addresses_there() {
    let config = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0"}"#;
    let config = crate::model::config::NetworkConfig::parse(config.as_bytes()).unwrap();
    let accepted = |ip: &str, ours: &str| {
        let addresses = vec![ours.parse().unwrap()];
        let rules = Rules { pools: config.pools.clone(), addresses, ..rules() };
        rules.check(&lease(&format!("10.5.3.0/24@{ip}"), 10)).is_ok()
    };
    assert!(!accepted("10.5.120.9", "172.16.0.1"));
    assert!(accepted("10.5.40.9", "172.16.0.1"));
    assert!(accepted("10.5.120.9", "10.5.121.1"));
}

#[test]
fn a_lease_with_a_value_of_this_node_is_rejected() {
    let reason = "public IP 172.16.0.1 is an address of this node";
    assert_eq!(check(&lease("10.5.3.0/24@172.16.0.1", 10)), reason);
    assert_eq!(
        check(&lease("10.5.3.0/24@172.17.0.1", 10)),
        "VTEP MAC 02:00:00:00:00:01 is that of this node"
    );
}

#[test]
fn a_mac_that_no_device_can_have_is_rejected() {
    for octets in [[1, 0, 0x5e, 0, 0, 1], [0xff; 6], [0; 6]] {
        let mut peer = lease(A, 10);
        let mac = MacAddr::new(octets);
        for endpoint in &mut peer.endpoints {
            endpoint.vtep = Some(Vtep { vni: None, mac, source: None, mixed: false });
        }
        assert_eq!(check(&peer), format!("VTEP MAC {mac} is not a unicast address"));
    }
}

#[test]
fn a_source_that_no_node_can_have_is_dropped_and_its_lease_kept() {
    let implausible =
        |ip: &str| format!("its source {ip} is ignored: it is not a valid address of a node");
    let cases = [
        ("172.18.0.3", String::new()),
        ("224.0.0.1", implausible("224.0.0.1")),
        ("127.0.0.1", implausible("127.0.0.1")),
        ("172.16.0.255", implausible("172.16.0.255")),
        ("10.5.3.9", implausible("10.5.3.9")),
        ("10.5.1.9", implausible("10.5.1.9")),
        ("fd00::3", implausible("fd00::3")),
        ("172.16.0.1", "its source 172.16.0.1 is ignored: it is an address of this node".into()),
    ];
    for (source, expected) in cases {
        let mut peer = lease("10.5.3.0/24@172.16.0.3 fd05:0:0:3::/64@fd00::3", 10);
        let source: IpAddr = source.parse().unwrap();
        for (endpoint, source) in
            peer.endpoints.iter_mut().zip([source, prefix("fd00::33/128").base()])
        {
            endpoint.vtep = endpoint.vtep.map(|vtep| Vtep { source: Some(source), ..vtep });
        }
        let mut peers = validity();
        peers.apply(put(peer.clone()));
        let accepted = peers.peer(&peer.id).unwrap().unwrap();
        let sources = accepted.endpoints.iter().map(|endpoint| endpoint.vtep.unwrap().source);
        let kept = expected.is_empty().then_some(source);
        assert!(sources.eq([kept, Some(prefix("fd00::33/128").base())]), "{accepted:?}");
        let reason = peers.bad_source(&peer.id).map(|bad| bad.to_string()).unwrap_or_default();
        assert_eq!(reason, expected);
        // The lease is kept as it was read.
        assert_eq!(peers.lease(&peer.id), Some(&peer));
    }
}

#[test]
fn one_invalid_endpoint_invalidates_the_lease() {
    let dual = lease("10.5.3.0/24@172.16.0.3 fd06::/64@fd00::3", 10);
    assert_eq!(check(&dual), "subnet fd06::/64 is not inside the network");
}

/// One daemon after the other is restarted to give the network a second family.
#[test]
fn a_peer_with_a_second_family_stays_reachable_by_the_first() {
    let mut peers = Peers::default();
    let dual = "10.5.3.0/24@172.16.0.3 fd06::/64@fd00::3";
    peers.apply(snapshot(&[dual]));
    peers.validate_by(Rules { networks: vec![prefix("10.5.0.0/16")], ..rules() });
    let peer = peers.peer(&LeaseId::new(dual)).unwrap().unwrap();
    assert_eq!(peer.subnets().collect::<Vec<_>>(), [prefix("10.5.3.0/24")]);
    peers.validate_by(Rules { networks: vec![prefix("fd06::/48")], ..rules() });
    let peer = peers.peer(&LeaseId::new(dual)).unwrap().unwrap();
    assert_eq!(peer.subnets().collect::<Vec<_>>(), [prefix("fd06::/64")]);
    peers.validate_by(rules());
    assert_eq!(outcome(&peers, dual), "subnet fd06::/64 is not inside the network");
}

#[test]
fn each_subnet_has_the_attributes_of_its_family() {
    let attributes = LeaseAttributes {
        backend: BackendType::HostGw,
        endpoints: vec![EndpointAttributes {
            public_ip: "172.16.0.9".parse().unwrap(),
            vtep: None,
        }],
    };
    let subnets = ["fd05:0:0:3::/64", "10.5.3.0/24"].map(prefix);
    let published = attributes.published_for(subnets);
    assert_eq!(published.len(), 1, "nothing is known of IPv6");
    assert_eq!(published[0].backend, BackendType::HostGw.into());
    assert_eq!(published[0].public_ip.to_string(), "172.16.0.9");
    assert_eq!((published[0].subnet, published[0].vtep), (prefix("10.5.3.0/24"), None));
}

#[test]
fn an_invalid_id_is_cut_and_escaped_and_stays_distinct() {
    for legal in ["10.5.3.0-24", "0.0.0.0-0&fd05::-64", &"n".repeat(253)] {
        assert_eq!(LeaseId::new(legal).as_str(), legal);
    }
    let long = |last: char| LeaseId::new(format!("{}{last}", "a".repeat(60_000)));
    assert!(long('b').as_str().len() < 140 && long('b') != long('c'));
    let forged = LeaseId::new("10.5.3.0-24\nready");
    assert!(forged.as_str().starts_with("10.5.3.0-24\\nready#"), "{forged}");
    // An id in a report or a checkpoint is read as the same id.
    assert_eq!(LeaseId::new(forged.as_str()), forged);
}

#[test]
fn the_name_of_a_backend_is_cut() {
    let name = PublishedBackend::from("\u{1b}".repeat(60_000).as_str());
    assert!(name.as_str().len() < 140, "{name:?}");
    let read: PublishedBackend =
        serde_json::from_str(&format!(r#"{{"other":"{}"}}"#, "x".repeat(999))).unwrap();
    assert!(read.as_str().len() < 140, "{read:?}");
}
