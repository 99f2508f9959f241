//! Reservations by an operator: no write over another client's, and the node gets its subnet.

use std::collections::BTreeSet;
use std::time::Duration;

use tweed::model::lease::LeaseId;
use tweed::model::prefix::Prefix;
use tweed::store::Leases;
use tweed::store::etcd::EtcdClusterStore;
use tweed::store::etcd::value::reserve;
use tweed::store::operator::{LeaseChange, Swap};

use crate::fixture::node::{CONFIG, SUBNETS, V4, config, manager, options, value, vxlan};
use crate::fixture::server::EtcdServer;

const ID: &str = "10.5.7.0-24";

fn id() -> LeaseId {
    LeaseId::new(ID)
}

fn key() -> String {
    format!("{SUBNETS}{ID}")
}

fn create(public_ip: &str, seen: i64) -> LeaseChange {
    let subnet: Prefix = "10.5.7.0/24".parse().unwrap();
    let value = reserve(&[subnet], &[public_ip.parse().unwrap()]);
    LeaseChange::Create { id: id(), value, seen }
}

#[tokio::test]
async fn a_reserved_subnet_is_taken_by_its_node_and_by_no_other() {
    let server = EtcdServer::start().await;
    server.put(CONFIG, V4).await;
    let operator = EtcdClusterStore::new(options(&[server.endpoint()]));
    let seen = operator.read_leases().await.unwrap();
    assert_eq!((seen.config.unwrap().text.as_str(), seen.leases.len()), (V4, 0));
    let change = create("192.168.0.9", seen.revision);
    assert!(matches!(operator.change(&change).await, Ok(Swap::Done(_))));
    let seen = operator.read_leases().await.unwrap();
    let [reserved] = &seen.leases[..] else { panic!("{seen:?}") };
    assert!(reserved.is_vacant && reserved.held.grant.is_none(), "{reserved:?}");

    // The second address has the same slot of the network, which is 10.5.115.0/24 otherwise.
    let other = manager(&server).acquire(&config(V4), &vxlan(&["192.168.0.10"])).await.unwrap();
    assert_ne!(other.id, id());
    let own = manager(&server).acquire(&config(V4), &vxlan(&["192.168.0.9"])).await.unwrap();
    assert_eq!((own.id, own.grant), (id(), None));
    assert_eq!(server.get(&key()).await.unwrap(), (value("192.168.0.9"), 0));
    let seen = operator.read_leases().await.unwrap();
    assert!(seen.leases.iter().all(|lease| !lease.is_vacant), "{seen:?}");
    let grants: BTreeSet<i64> = seen.leases.iter().filter_map(|it| it.held.grant).collect();
    let terms = operator.terms(grants).await.unwrap();
    let day = Duration::from_secs(86_400);
    assert!(terms.len() == 1 && terms.values().all(|it| it.whole == day && it.left <= day));
}

#[tokio::test]
async fn a_subnet_that_another_client_took_after_the_read_is_not_reserved() {
    let server = EtcdServer::start().await;
    let operator = EtcdClusterStore::new(options(&[server.endpoint()]));
    // A key of another name, whose subnet contains the wanted one.
    let seen = operator.read_leases().await.unwrap().revision;
    let wide = format!("{SUBNETS}10.5.4.0-22");
    server.put_with_grant(&wide, &value("192.168.0.4")).await;
    assert_eq!(operator.change(&create("192.168.0.9", seen)).await, Ok(Swap::Outdated));
    assert_eq!(server.keys(SUBNETS).await, [wide.as_str()]);
    // Keys outside of the leases do not matter, nor does a lease that was deleted.
    let seen = operator.read_leases().await.unwrap().revision;
    server.put(CONFIG, V4).await;
    server.delete(&wide).await;
    let change = create("192.168.0.9", seen);
    assert!(matches!(operator.change(&change).await, Ok(Swap::Done(_))));
    assert_eq!(operator.change(&change).await, Ok(Swap::Outdated), "it is there now");
}

#[tokio::test]
async fn a_lease_that_was_written_after_the_read_is_neither_kept_nor_deleted() {
    let server = EtcdServer::start().await;
    let operator = EtcdClusterStore::new(options(&[server.endpoint()]));
    let revision = async || operator.read_leases().await.unwrap().leases[0].revision;
    server.put_with_grant(&key(), &value("192.168.0.7")).await;
    let seen = revision().await;
    let grant = server.put_with_grant(&key(), &value("192.168.0.8")).await;
    let keep =
        |seen, value: &str| LeaseChange::Keep { id: id(), value: value.as_bytes().to_vec(), seen };
    let delete = |seen| LeaseChange::Delete { id: id(), seen };
    assert_eq!(operator.change(&delete(seen)).await, Ok(Swap::Outdated));
    assert_eq!(operator.change(&keep(seen, "old")).await, Ok(Swap::Outdated));
    assert_eq!(server.get(&key()).await.unwrap(), (value("192.168.0.8"), grant));

    let change = keep(revision().await, &value("192.168.0.8"));
    assert!(matches!(operator.change(&change).await, Ok(Swap::Done(_))));
    assert_eq!(server.get(&key()).await.unwrap(), (value("192.168.0.8"), 0), "it has no term");
    let change = delete(revision().await);
    assert!(matches!(operator.change(&change).await, Ok(Swap::Done(_))));
    assert_eq!(server.get(&key()).await, None);
}
