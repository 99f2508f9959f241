//! The lease that a node gets, and the resulting content of etcd.

use futures::future::join_all;
use tweed::model::config::BackendType;
use tweed::model::lease::Vtep;
use tweed::store::Leases;

use crate::fixture::log::Log;
use crate::fixture::node::{
    MAC, SUBNETS, V4, attributes, config, manager, manager_of, next, options, previous, subnets,
    value, vxlan,
};
use crate::fixture::server::EtcdServer;

#[tokio::test]
async fn the_stored_bytes_equal_flannels() {
    let server = EtcdServer::start().await;
    let lease = manager(&server).acquire(&config(V4), &vxlan(&["192.168.0.9"])).await.unwrap();
    assert_eq!(subnets(&lease), ["10.5.115.0/24"]);
    let (stored, grant) = server.get(&format!("{SUBNETS}10.5.115.0-24")).await.unwrap();
    assert_eq!(
        stored,
        r#"{"PublicIP":"192.168.0.9","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}}"#
    );
    assert_eq!(lease.grant, Some(grant));
    let ttl = server.client().await.lease_time_to_live(grant, None).await.unwrap();
    assert_eq!(ttl.granted_ttl(), 86_400);
}

#[tokio::test]
async fn a_host_gw_lease_keeps_its_vtep() {
    let server = EtcdServer::start().await;
    let manager = manager(&server);
    let vtep = Some(Vtep { vni: Some(1), mac: MAC.parse().unwrap(), source: None, mixed: false });
    let host_gw = attributes(BackendType::HostGw, &["192.168.0.9"], vtep);
    let before = manager.acquire(&config(V4), &vxlan(&["192.168.0.9"])).await.unwrap();
    let after = manager.acquire(&config(V4), &host_gw).await.unwrap();
    assert_eq!((before.id, before.grant, before.created), (after.id, after.grant, after.created));
    assert_eq!(after.endpoints[0].backend, BackendType::HostGw.into());
    let (stored, _) = server.get(&format!("{SUBNETS}10.5.115.0-24")).await.unwrap();
    assert_eq!(
        stored,
        r#"{"PublicIP":"192.168.0.9","PublicIPv6":null,"BackendType":"host-gw","BackendData":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}}"#
    );
}

#[tokio::test]
async fn a_lease_with_our_public_ip_is_used_again() {
    let server = EtcdServer::start().await;
    server.put_with_grant(&format!("{SUBNETS}10.5.7.0-24"), &value("192.168.0.9")).await;
    let manager = manager(&server);
    let lease = manager.acquire(&config(V4), &vxlan(&["192.168.0.9"])).await.unwrap();
    assert_eq!(subnets(&lease), ["10.5.7.0/24"]);
    assert_eq!(server.keys(SUBNETS).await.len(), 1);
    let mut updates = manager.watch();
    assert_eq!(next(&mut updates).await, "snapshot [10.5.7.0-24@192.168.0.9]");
}

#[tokio::test]
async fn twenty_nodes_share_twenty_subnets_without_a_conflict() {
    let server = EtcdServer::start().await;
    let tight =
        config(r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.20.0"}"#);
    for round in 0..10 {
        let managers: Vec<_> = (0..20).map(|_| manager(&server)).collect();
        let nodes = managers.iter().enumerate().map(|(index, manager)| {
            // All have the same first choice.
            let node = vxlan(&[format!("192.168.{}.{}", index / 10, index % 10 * 20).as_str()]);
            let tight = &tight;
            async move { manager.acquire(tight, &node).await.unwrap().id }
        });
        let mut ids = join_all(nodes).await;
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 20, "round {round}");
        server
            .client()
            .await
            .delete(SUBNETS, Some(etcd_client::DeleteOptions::new().with_prefix()))
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn another_holder_of_our_subnet_is_an_error_that_names_it() {
    let server = EtcdServer::start().await;
    server.put(&format!("{SUBNETS}10.5.7.0-24"), &value("192.168.0.8")).await;
    let manager = manager_of(options(&[server.endpoint()]), previous(&["10.5.7.0/24"], Some(9)));
    let error = manager.acquire(&config(V4), &vxlan(&["192.168.0.9"])).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "subnet 10.5.7.0/24 of this node is held by the node with public IP 192.168.0.8: \
         stop one of the two nodes, or remove /run/flannel/subnet.env to take a new subnet"
    );
}

#[tokio::test]
async fn no_subnet_is_allocated_where_the_host_has_addresses() {
    let server = EtcdServer::start().await;
    let manager = manager(&server);
    manager.avoid(vec!["10.5.115.0/24".parse().unwrap(), "10.5.0.0/17".parse().unwrap()]);
    let lease = manager.acquire(&config(V4), &vxlan(&["192.168.0.9"])).await.unwrap();
    let octets: Vec<u8> =
        lease.id.as_str().split('.').map_while(|octet| octet.parse().ok()).collect();
    assert!(octets[2] >= 128, "{}", lease.id);
}

#[tokio::test]
async fn the_previous_subnet_has_precedence_over_a_leftover_lease() {
    let server = EtcdServer::start().await;
    server.put_with_grant(&format!("{SUBNETS}10.5.3.0-24"), &value("192.168.0.9")).await;
    let manager = manager_of(options(&[server.endpoint()]), previous(&["10.5.7.0/24"], None));
    let lease = manager.acquire(&config(V4), &vxlan(&["192.168.0.9"])).await.unwrap();
    assert_eq!(subnets(&lease), ["10.5.7.0/24"]);
    assert_eq!(server.keys(SUBNETS).await, [format!("{SUBNETS}10.5.7.0-24")]);
}

#[tokio::test]
async fn a_free_previous_subnet_is_claimed_again() {
    let server = EtcdServer::start().await;
    let manager = manager_of(options(&[server.endpoint()]), previous(&["10.5.7.0/24"], Some(9)));
    let lease = manager.acquire(&config(V4), &vxlan(&["192.168.0.9"])).await.unwrap();
    assert_eq!(subnets(&lease), ["10.5.7.0/24"]);
    // The previous etcd lease has expired, so this one is new.
    assert_ne!(lease.grant, Some(9));
}

#[tokio::test]
async fn the_previous_subnet_has_precedence_over_another_with_our_public_ip() {
    let server = EtcdServer::start().await;
    for id in ["10.5.3.0-24", "10.5.7.0-24"] {
        server.put_with_grant(&format!("{SUBNETS}{id}"), &value("192.168.0.9")).await;
    }
    let manager = manager_of(options(&[server.endpoint()]), previous(&["10.5.7.0/24"], None));
    let lease = manager.acquire(&config(V4), &vxlan(&["192.168.0.9"])).await.unwrap();
    assert_eq!(subnets(&lease), ["10.5.7.0/24"]);
    let (_, grant) = server.get(&format!("{SUBNETS}10.5.7.0-24")).await.unwrap();
    assert_eq!(lease.grant, Some(grant));
}

#[tokio::test]
async fn leases_of_ours_on_other_subnets_are_deleted_and_logged_in_one_line() {
    let server = EtcdServer::start().await;
    for subnet in 1..=100 {
        let key = format!("{SUBNETS}10.6.{subnet}.0-24");
        server.put_with_grant(&key, &value("192.168.0.9")).await;
    }
    let log = Log::catch();
    manager(&server).acquire(&config(V4), &vxlan(&["192.168.0.9"])).await.unwrap();
    let lines = log.lines();
    let about: Vec<_> = lines.iter().filter(|line| line.contains("10.6.")).collect();
    assert_eq!(about.len(), 1, "{about:#?}");
    assert!(about[0].contains("64"), "{about:?}");
    // One transaction deletes 64 of them; the lease itself is the 37th.
    assert_eq!(server.keys(SUBNETS).await.len(), 37);
}
