//! Reads and writes of an operator: everything in one read, and no write over another client's
//! edit.

use std::time::Duration;

use etcd_client::PutOptions;
use tokio::time::{Instant, timeout};
use tweed::model::report::NodeReport;
use tweed::store::etcd::EtcdClusterStore;
use tweed::store::operator::{Swap, Written};
use tweed::store::{ClusterStore, Documents, Leases};

use crate::documents::node_report::report;
use crate::fixture::node::{CONFIG, SUBNETS, V4, config, manager, options, value, vxlan};
use crate::fixture::server::{EtcdServer, TIMEOUT};

const MIXED: &str = r#"{"Network":"10.5.0.0/16","Mixed":true}"#;
const OTHER: &str = r#"{"Network":"10.5.0.0/16","Mixed":false}"#;

async fn read(operator: &EtcdClusterStore) -> Written {
    operator.read().await.unwrap().config.unwrap()
}

#[tokio::test]
async fn a_config_is_swapped_only_over_the_revision_that_was_read() {
    let server = EtcdServer::start().await;
    server.put(CONFIG, V4).await;
    let operator = EtcdClusterStore::new(options(&[server.endpoint()]));
    let seen = read(&operator).await;
    assert_eq!(seen.text, V4);
    server.put(CONFIG, OTHER).await;
    assert_eq!(operator.swap(seen.revision, MIXED).await, Ok(Swap::Outdated));
    let now = read(&operator).await;
    assert_eq!(now.text, OTHER);
    let Ok(Swap::Done(revision)) = operator.swap(now.revision, MIXED).await else { panic!() };
    assert_eq!(read(&operator).await, Written { text: MIXED.to_owned(), revision });
}

#[tokio::test]
async fn any_number_of_leases_is_read() {
    let server = EtcdServer::start().await;
    let manager = manager(&server);
    let lease = manager.acquire(&config(V4), &vxlan(&["192.168.0.7"])).await.unwrap();
    let value = r#"{"PublicIP":"192.168.9.9","BackendType":"host-gw"}"#;
    for subnet in 0..1200 {
        let (third, fourth) = (subnet / 64, subnet % 64 * 4);
        server.put(&format!("{SUBNETS}10.6.{third}.{fourth}-30"), value).await;
    }
    let operator = EtcdClusterStore::new(options(&[server.endpoint()]));
    let holdings = operator.read().await.unwrap();
    assert_eq!((holdings.config, holdings.records.len()), (None, 1201));
    assert!(holdings.records.iter().any(|record| record.id == lease.id));
}

#[tokio::test]
async fn the_report_of_a_node_handed_over_to_flanneld_is_ignored() {
    let server = EtcdServer::start().await;
    let manager = manager(&server);
    let lease = manager.acquire(&config(V4), &vxlan(&["192.168.0.7"])).await.unwrap();
    manager.publish_report(&report(&lease)).await.unwrap();
    let operator = EtcdClusterStore::new(options(&[server.endpoint()]));
    let reports = async || operator.read().await.unwrap().reports.len();
    assert_eq!(reports().await, 1);
    // flanneld renews with a new etcd lease, under which it writes the key.
    let mut client = server.client().await;
    let term = client.lease_grant(86_400, None).await.unwrap().id();
    let key = format!("{SUBNETS}{}", lease.id);
    let (value, _) = server.get(&key).await.unwrap();
    let under = PutOptions::new().with_lease(term);
    client.put(key.as_str(), value.as_str(), Some(under)).await.unwrap();
    assert_eq!(reports().await, 0);
    // A reservation has no etcd lease; its report is used.
    client.put(key.as_str(), value.as_str(), None).await.unwrap();
    assert_eq!(reports().await, 1);
    // The subnet was released: its report stays for the term of the etcd lease.
    client.delete(key.as_str(), None).await.unwrap();
    assert_eq!(reports().await, 0);
}

#[tokio::test]
async fn each_node_is_read_with_the_time_since_its_refresh() {
    let server = EtcdServer::start().await;
    let managers = [manager(&server), manager(&server)];
    for (number, manager) in (7..).zip(&managers) {
        let public_ip = format!("192.168.0.{number}");
        let lease = manager.acquire(&config(V4), &vxlan(&[&public_ip])).await.unwrap();
        let report = NodeReport { refresh_seconds: Some(1), ..report(&lease) };
        manager.publish_report(&report).await.unwrap();
    }
    server.put(&format!("{SUBNETS}10.5.9.0-24"), &value("192.168.0.9")).await;
    let operator = EtcdClusterStore::new(options(&[server.endpoint()]));
    let found = operator.read().await.unwrap();
    assert_eq!((found.records.len(), found.reports.len()), (3, 2));
    let own = managers[0].acquire(&config(V4), &vxlan(&["192.168.0.7"])).await.unwrap();
    let is_stale = async {
        loop {
            let begun = Instant::now();
            managers[0].refresh_report(&report(&own)).await.unwrap();
            let reports = operator.read().await.unwrap().reports;
            // A busy machine may read so late that it is stale again; etcd rounds to seconds.
            let is_early = begun.elapsed() < Duration::from_secs(1);
            let stale = reports.iter().filter(|it| it.report.is_stale(it.age));
            let stale: Vec<_> = stale.map(|it| it.report.lease.clone()).collect();
            assert!(!is_early || !stale.contains(&own.id), "{reports:?}");
            if is_early && stale.len() == 1 {
                break;
            }
        }
    };
    timeout(TIMEOUT, is_stale).await.unwrap();
}

#[tokio::test]
async fn an_unreachable_store_is_reported_soon() {
    let mut server = EtcdServer::start().await;
    let operator = EtcdClusterStore::new(options(&[server.endpoint()]));
    server.kill();
    let update = timeout(Duration::from_secs(20), operator.read()).await.unwrap();
    assert!(update.unwrap_err().to_string().starts_with("etcd at "));
}
