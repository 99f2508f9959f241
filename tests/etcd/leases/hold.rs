//! Leases that are kept, lost and claimed again.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{DeleteOptions, PutOptions};
use futures::StreamExt;
use tokio::net::TcpListener;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, timeout};
use tweed::model::config::BackendType;
use tweed::model::lease::{Lease, LeaseId};
use tweed::store::Leases;
use tweed::store::claim::Previous;
use tweed::store::etcd::EtcdSubnetManager;

use crate::fixture::node::{
    SUBNETS, Updates, V4, attributes, config, manager, manager_of, next, options, previous,
    renewed_before, value, vxlan,
};
use crate::fixture::refusal::{Calls, LEARNER, Refusal, refuse_all};
use crate::fixture::server::{EtcdServer, TIMEOUT};

const KEY: &str = "/coreos.com/network/subnets/10.5.115.0-24";

/// A node that holds a lease and follows the watch.
struct Holder {
    manager: Arc<EtcdSubnetManager>,
    lease: Lease,
    updates: Updates,
}

impl Holder {
    async fn new(manager: Arc<EtcdSubnetManager>) -> Self {
        let lease = manager.acquire(&config(V4), &vxlan(&["192.168.0.9"])).await.unwrap();
        let mut updates = manager.watch();
        next(&mut updates).await;
        Self { manager, lease, updates }
    }

    async fn acquire(&self) -> Result<Lease, String> {
        let lease = self.manager.acquire(&config(V4), &vxlan(&["192.168.0.9"])).await;
        lease.map_err(|error| error.to_string())
    }

    /// Why the lease is lost, if that happens within `limit`.
    async fn lost(&mut self, limit: Duration) -> Option<String> {
        let follow = async { while self.updates.next().await.is_some() {} };
        tokio::select! {
            lost = timeout(limit, self.manager.hold(&self.lease)) => lost.ok().map(|lost| lost.reason),
            () = follow => panic!("the watch ended"),
        }
    }
}

const A_WHILE: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_lease_deleted_by_hand_is_lost_and_claimed_again() {
    let server = EtcdServer::start().await;
    let mut node = Holder::new(manager(&server)).await;
    assert_eq!(node.lost(A_WHILE).await, None);
    server.delete(KEY).await;
    assert_eq!(node.lost(TIMEOUT).await.unwrap(), "key 10.5.115.0-24 is gone");
    let again = node.acquire().await.unwrap();
    assert_eq!((&again.id, again.grant), (&node.lease.id, node.lease.grant));
    assert_ne!(again.created, node.lease.created);
    assert_eq!(node.lost(A_WHILE).await, None);
}

#[tokio::test]
async fn a_lease_taken_by_another_node_is_an_error_that_names_it() {
    let server = EtcdServer::start().await;
    let mut node =
        Holder::new(manager_of(options(&[server.endpoint()]), previous(&[], None))).await;
    server.put_with_grant(KEY, &value("192.168.0.8")).await;
    let lost = "key 10.5.115.0-24 was overwritten by the node with public IP 192.168.0.8";
    assert_eq!(node.lost(TIMEOUT).await.unwrap(), lost);
    assert_eq!(
        node.acquire().await.unwrap_err(),
        "subnet 10.5.115.0/24 of this node is held by the node with public IP 192.168.0.8: \
         stop one of the two nodes, or remove /run/flannel/subnet.env to take a new subnet"
    );
    assert_eq!(server.get(KEY).await.unwrap().0, value("192.168.0.8"));
}

#[tokio::test]
async fn a_subnet_taken_by_another_node_with_a_second_family_is_an_error_too() {
    let server = EtcdServer::start().await;
    let mut node = Holder::new(manager(&server)).await;
    server.put(&format!("{KEY}&fd00::-64"), &value("192.168.0.8")).await;
    server.delete(KEY).await;
    assert!(node.lost(TIMEOUT).await.is_some());
    let error = node.acquire().await.unwrap_err();
    assert!(error.contains("held by key 10.5.115.0-24&fd00::-64"), "{error}");
}

#[tokio::test]
async fn a_node_with_our_public_ip_that_overwrites_our_lease_is_overwritten() {
    let server = EtcdServer::start().await;
    let mut node = Holder::new(manager(&server)).await;
    server.put_with_grant(KEY, &value("192.168.0.9")).await;
    assert!(node.lost(TIMEOUT).await.is_some());
    assert_eq!(node.acquire().await.unwrap(), node.lease);
    assert_eq!(server.get(KEY).await.unwrap().1, node.lease.grant.unwrap());
}

#[tokio::test]
async fn an_empty_store_gets_our_lease_again() {
    let server = EtcdServer::start().await;
    let mut node = Holder::new(manager(&server)).await;
    let all = DeleteOptions::new().with_prefix();
    server.client().await.delete("/coreos.com/network", Some(all)).await.unwrap();
    assert!(node.lost(TIMEOUT).await.is_some());
    assert_eq!(node.acquire().await.unwrap().id, node.lease.id);
    assert_eq!(server.keys(SUBNETS).await, [KEY]);
}

#[tokio::test]
async fn a_server_that_lost_its_disk_gets_our_lease_again() {
    let mut server = EtcdServer::start().await;
    for index in 0..20 {
        server.put(&format!("/elsewhere/{index}"), "x").await;
    }
    let mut node = Holder::new(manager(&server)).await;
    server.wipe();
    server.run();
    assert_eq!(node.lost(TIMEOUT).await.unwrap(), "key 10.5.115.0-24 is gone");
    let again = node.acquire().await.unwrap();
    assert_eq!(again.id, node.lease.id);
    assert_ne!(again.grant, node.lease.grant);
    assert_eq!(node.lost(A_WHILE).await, None);
}

#[tokio::test]
async fn a_reservation_stays_one() {
    let server = EtcdServer::start().await;
    let reserved = format!("{SUBNETS}10.5.7.0-24");
    server.put(&reserved, &value("192.168.0.9")).await;
    let mut node = Holder::new(manager(&server)).await;
    assert_eq!((node.lease.id.as_str(), node.lease.grant), ("10.5.7.0-24", None));
    assert_eq!(node.lost(A_WHILE).await, None);
    let host_gw = attributes(BackendType::HostGw, &["192.168.0.9"], None);
    node.manager.acquire(&config(V4), &host_gw).await.unwrap();
    let host_gw = r#"{"PublicIP":"192.168.0.9","PublicIPv6":null,"BackendType":"host-gw"}"#;
    assert_eq!(server.get(&reserved).await.unwrap(), (host_gw.to_owned(), 0));
    assert_eq!(node.lost(A_WHILE).await, None);
}

#[tokio::test]
async fn a_lease_that_an_operator_reserves_is_not_lost_and_stays_reserved() {
    let server = EtcdServer::start().await;
    let mut node = Holder::new(manager(&server)).await;
    server.put(KEY, &value("192.168.0.9")).await;
    assert_eq!(node.lost(A_WHILE).await, None);
    // With another address, it is still ours.
    let moved = vxlan(&["192.168.0.10"]);
    let lease = node.manager.acquire(&config(V4), &moved).await.unwrap();
    assert_eq!(lease.grant, None);
    let (stored, grant) = server.get(KEY).await.unwrap();
    assert!(stored.contains("192.168.0.10") && grant == 0, "{stored}");
}

#[tokio::test]
async fn a_lease_is_kept_alive_and_no_key_is_written_for_it() {
    let server = EtcdServer::start().await;
    let almost_all = Duration::from_secs(86_400 - 1);
    let manager = EtcdSubnetManager::new(
        options(&[server.endpoint()]),
        Previous::default(),
        renewed_before(almost_all),
    );
    let mut node = Holder::new(manager).await;
    let before = server.revision().await;
    let grant = node.lease.grant.unwrap();
    let mut left = 0;
    // A busy machine renews late.
    for _ in 0..5 {
        assert_eq!(node.lost(Duration::from_secs(5)).await, None);
        left = server.client().await.lease_time_to_live(grant, None).await.unwrap().ttl();
        if left >= 86_397 {
            break;
        }
    }
    // Without renewals, the value would be five seconds lower.
    assert!(left >= 86_397, "{left}");
    assert_eq!(server.revision().await, before, "a renewal woke every node");
}

#[tokio::test]
async fn a_lease_held_again_keeps_its_renewal_interval() {
    let server = EtcdServer::start().await;
    let almost_all = Duration::from_secs(86_400 - 1);
    let manager = EtcdSubnetManager::new(
        options(&[server.endpoint()]),
        Previous::default(),
        renewed_before(almost_all),
    );
    let mut node = Holder::new(manager).await;
    let grant = node.lease.grant.unwrap();
    let mut left = 0;
    // A busy machine renews late.
    for _ in 0..5 {
        for _ in 0..12 {
            assert_eq!(node.lost(Duration::from_millis(400)).await, None);
        }
        left = server.client().await.lease_time_to_live(grant, None).await.unwrap().ttl();
        if left >= 86_397 {
            break;
        }
    }
    assert!(left >= 86_397, "{left}");
}

#[tokio::test]
async fn two_nodes_with_one_public_ip_overwrite_each_other_at_growing_intervals() {
    let server = EtcdServer::start().await;
    let mut nodes = [Holder::new(manager(&server)).await, Holder::new(manager(&server)).await];
    let [first, second] = &mut nodes;
    let fight = async {
        tokio::join!(
            async {
                loop {
                    first.lost(TIMEOUT).await;
                    first.acquire().await.unwrap();
                }
            },
            async {
                loop {
                    second.lost(TIMEOUT).await;
                    second.acquire().await.unwrap();
                }
            }
        )
    };
    let begun = Instant::now();
    let writes = async {
        loop {
            sleep(Duration::from_secs(5)).await;
            let key = server.client().await.get(KEY, None).await.unwrap();
            if key.kvs()[0].version() >= 4 {
                break key.kvs()[0].version();
            }
        }
    };
    let writes = tokio::select! {
        over = fight => { let ((), ()) = over; unreachable!() }
        writes = timeout(TIMEOUT, writes) => writes.expect("neither writes"),
    };
    let most = 12 * begun.elapsed().as_secs();
    assert!(writes.unsigned_abs() < most, "{writes} writes, and not {most}");
}

#[tokio::test]
async fn an_etcd_lease_that_ends_is_replaced() {
    let server = EtcdServer::start().await;
    let mut node = Holder::new(manager(&server)).await;
    server.client().await.lease_revoke(node.lease.grant.unwrap()).await.unwrap();
    assert_eq!(node.lost(TIMEOUT).await.unwrap(), "key 10.5.115.0-24 is gone");
    let again = node.acquire().await.unwrap();
    assert_eq!(again.id, node.lease.id);
    assert_ne!(again.grant, node.lease.grant);
    assert_eq!(server.get(KEY).await.unwrap().1, again.grant.unwrap());
}

#[tokio::test]
async fn a_restart_continues_the_previous_etcd_lease() {
    let server = EtcdServer::start().await;
    let before = Holder::new(manager(&server)).await.lease;
    let revision = server.revision().await;
    let known = previous(&["10.5.115.0/24"], before.grant);
    let after = Holder::new(manager_of(options(&[server.endpoint()]), known)).await;
    assert_eq!(after.lease, before);
    assert_eq!(server.revision().await, revision, "a restart woke every node");
    assert_eq!(server.client().await.leases().await.unwrap().leases().len(), 1);
}

#[tokio::test]
async fn a_lease_proved_by_its_term_survives_a_new_public_ip() {
    let server = EtcdServer::start().await;
    let before = Holder::new(manager(&server)).await.lease;
    let known = previous(&["10.5.115.0/24"], before.grant);
    let manager = manager_of(options(&[server.endpoint()]), known);
    let after = manager.acquire(&config(V4), &vxlan(&["192.168.0.77"])).await.unwrap();
    assert_eq!(after.id, before.id);
    assert_eq!(server.get(KEY).await.unwrap().0, value("192.168.0.77"));
}

#[tokio::test]
async fn new_attributes_are_no_loss() {
    let server = EtcdServer::start().await;
    let mut node = Holder::new(manager(&server)).await;
    let vxlan = vxlan(&["192.168.0.9"]);
    let host_gw = attributes(BackendType::HostGw, &["192.168.0.9"], None);
    let config = config(V4);
    let flip = async {
        for _ in 0..50 {
            node.manager.acquire(&config, &host_gw).await.unwrap();
            node.manager.acquire(&config, &vxlan).await.unwrap();
        }
        sleep(A_WHILE).await;
    };
    let follow = async { while node.updates.next().await.is_some() {} };
    tokio::select! {
        lost = node.manager.hold(&node.lease) => panic!("{lost:?}"),
        () = follow => panic!("the watch ended"),
        () = flip => {}
    }
}

#[tokio::test]
async fn an_update_respects_concurrent_writes_of_others() {
    let server = EtcdServer::start().await;
    let node = Holder::new(manager(&server)).await;
    let grant = node.lease.grant.unwrap();
    // It has our own etcd lease, so it is ours with any value.
    let options = PutOptions::new().with_lease(grant);
    server.client().await.put(KEY, value("192.168.0.8"), Some(options)).await.unwrap();
    node.acquire().await.unwrap();
    assert_eq!(server.get(KEY).await.unwrap(), (value("192.168.0.9"), grant));
    // Without an etcd lease and a public IP, it is still ours, and not a reservation.
    server.put(KEY, "{}").await;
    node.acquire().await.unwrap();
    assert_eq!(server.get(KEY).await.unwrap(), (value("192.168.0.9"), grant));
}

/// A manager that knows the previous lease `before`, with this public IP.
fn that_remembers(server: &EtcdServer, before: &Lease) -> Arc<EtcdSubnetManager> {
    let known = previous(&["10.5.115.0/24"], before.grant);
    let public_ips = before.endpoints.iter().map(|endpoint| endpoint.public_ip).collect();
    manager_of(options(&[server.endpoint()]), Previous { public_ips, ..known })
}

#[tokio::test]
async fn a_copy_of_a_machine_ends_as_soon_as_the_original_reclaims_its_lease() {
    let server = EtcdServer::start().await;
    let mut original = Holder::new(manager(&server)).await;
    let copy = that_remembers(&server, &original.lease);
    let moved = vxlan(&["192.168.0.77"]);
    let lease = copy.acquire(&config(V4), &moved).await.unwrap();
    assert!(
        original.lost(TIMEOUT).await.unwrap().ends_with("the node with public IP 192.168.0.77")
    );
    original.acquire().await.unwrap();
    let mut updates = copy.watch();
    let follow = async { while updates.next().await.is_some() {} };
    tokio::select! {
        lost = copy.hold(&lease) => assert!(lost.reason.ends_with("192.168.0.9"), "{lost:?}"),
        () = follow => panic!("the watch ended"),
    }
    let error = copy.acquire(&config(V4), &moved).await.unwrap_err().to_string();
    assert!(error.contains("is held by the node with public IP 192.168.0.9"), "{error}");
    assert_eq!(server.get(KEY).await.unwrap().0, value("192.168.0.9"));
}

#[tokio::test]
async fn a_node_that_is_overwritten_again_under_its_own_term_ends() {
    let server = EtcdServer::start().await;
    let mut node = Holder::new(manager(&server)).await;
    let grant = node.lease.grant.unwrap();
    let overwrite = async || {
        let own = PutOptions::new().with_lease(grant);
        server.client().await.put(KEY, value("192.168.0.8"), Some(own)).await.unwrap();
    };
    overwrite().await;
    node.acquire().await.unwrap();
    overwrite().await;
    assert!(node.lost(TIMEOUT).await.is_some());
    let error = node.acquire().await.unwrap_err();
    assert!(error.contains("is held by the node with public IP 192.168.0.8"), "{error}");
}

#[tokio::test]
async fn a_node_reclaims_its_lease_from_each_copy() {
    let server = EtcdServer::start().await;
    let mut original = Holder::new(manager(&server)).await;
    for public_ip in ["192.168.0.77", "192.168.0.78"] {
        let copy = that_remembers(&server, &original.lease);
        copy.acquire(&config(V4), &vxlan(&[public_ip])).await.unwrap();
        assert!(original.lost(TIMEOUT).await.unwrap().ends_with(public_ip));
        original.lease = original.acquire().await.unwrap();
        assert_eq!(server.get(KEY).await.unwrap().0, value("192.168.0.9"));
    }
}

#[tokio::test]
async fn a_second_copy_does_not_follow_the_first() {
    let server = EtcdServer::start().await;
    let before = Holder::new(manager(&server)).await.lease;
    that_remembers(&server, &before).acquire(&config(V4), &vxlan(&["192.168.0.77"])).await.unwrap();
    let second = that_remembers(&server, &before);
    let error = second.acquire(&config(V4), &vxlan(&["192.168.0.78"])).await.unwrap_err();
    assert!(error.to_string().contains("public IP 192.168.0.77"), "{error}");
}

#[tokio::test]
async fn a_machine_that_has_moved_creates_its_lease_under_a_term_of_its_own() {
    let server = EtcdServer::start().await;
    let before = Holder::new(manager(&server)).await.lease;
    let public_ips = before.endpoints.iter().map(|endpoint| endpoint.public_ip).collect();
    let known = Previous { public_ips, ..previous(&[], before.grant) };
    server.delete(KEY).await;
    let manager = manager_of(options(&[server.endpoint()]), known);
    let lease = manager.acquire(&config(V4), &vxlan(&["192.168.0.77"])).await.unwrap();
    assert_ne!(lease.grant, before.grant);
}

/// The first `minimum` methods that a node calls to hold its lease, and those of the three seconds
/// after them, if the server refuses each with `refusal`.
async fn calls_refused_with(refusal: Refusal, minimum: usize) -> Vec<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let calls = Calls::default();
    // With a margin longer than the term, a renewal is due after a second.
    let margin = Duration::from_secs(100_000);
    let manager =
        EtcdSubnetManager::new(options(&[endpoint]), Previous::default(), renewed_before(margin));
    let id = LeaseId::new("10.5.115.0-24");
    let lease = Lease { id, endpoints: Vec::new(), created: 1, grant: Some(7) };
    let calling = async {
        while calls.borrow().len() < minimum {
            sleep(Duration::from_millis(20)).await;
        }
        sleep(Duration::from_secs(3)).await;
    };
    let server = LocalSet::new();
    let refuses = refuse_all(listener, refusal, Calls::clone(&calls));
    server
        .run_until(async {
            tokio::select! {
                lost = manager.hold(&lease) => panic!("{lost:?}"),
                called = timeout(TIMEOUT, calling) => called.expect("too few calls"),
                () = refuses => {}
            }
        })
        .await;
    calls.take()
}

#[tokio::test]
async fn a_refused_grant_is_no_etcd_lease() {
    let out_of_range = calls_refused_with((11, "etcdserver: too large lease TTL"), 1).await;
    assert_eq!(out_of_range, ["LeaseGrant"]);
    for refusal in [LEARNER, (9, "etcdserver: not leader"), (9, "etcdserver: another")] {
        let calls = calls_refused_with(refusal, 1).await;
        assert!(calls.iter().all(|call| call == "LeaseGrant"), "{refusal:?}: {calls:?}");
    }
}

#[tokio::test]
async fn a_refused_renewal_is_tried_again_after_a_pause() {
    // The answer to a grant whose first answer was lost.
    let exists = calls_refused_with((9, "etcdserver: lease already exists"), 2).await;
    assert_eq!(exists, ["LeaseGrant", "LeaseKeepAlive"]);
}
