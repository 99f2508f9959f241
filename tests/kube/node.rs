//! Nodes of the tests, in a short notation.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::time::{sleep, timeout};
use tweed::model::lease::{Lease, LeaseAttributes, LeaseUpdate};
use tweed::model::status::StoreState;
use tweed::store::kube::{AnnotationPrefix, ApiOptions, KubeOptions, KubeSubnetManager, NodeRef};
use tweed::store::{Documents, Leases};
use tweed_lab::ApiServer;

use crate::subnets::shown;
pub(crate) use crate::subnets::{attributes, config, subnets};

pub(crate) const MAC: &str = "12:c6:65:89:b4:e3";
pub(crate) const DATA: &str = r#"{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}"#;
pub(crate) const V4: &str = r#"{"Network":"10.244.0.0/16"}"#;
pub(crate) const DUAL: &str =
    r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48"}"#;

/// Longer than any step takes.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(180);
pub(crate) const A_WHILE: Duration = Duration::from_secs(1);

/// A vxlan node with these public IPs.
pub(crate) fn vxlan(public_ips: &[&str]) -> LeaseAttributes {
    crate::subnets::vxlan(MAC, public_ips)
}

/// Node n1 with these servers.
pub(crate) fn options(urls: &[String]) -> KubeOptions {
    KubeOptions {
        api: ApiOptions { urls: urls.to_vec(), ..ApiOptions::default() },
        annotation_prefix: AnnotationPrefix::default(),
        node: NodeRef::Name("n1".to_owned()),
        pod: None,
        namespace: Some("kube-flannel".to_owned()),
        net_config: "/nowhere/net-conf.json".into(),
        clears_condition: true,
    }
}

pub(crate) fn manager(server: &ApiServer) -> Arc<KubeSubnetManager> {
    KubeSubnetManager::new(options(&[server.url()]))
}

/// A server with node n1, of subnet 10.244.1.0/24.
pub(crate) fn server() -> ApiServer {
    let server = ApiServer::start().unwrap();
    server.add_node("n1", &["10.244.1.0/24"]);
    server
}

/// A peer with subnet 10.244.x.0/24 and public IP 172.18.0.x, where x is `number`.
pub(crate) fn add_peer(server: &ApiServer, number: u8) {
    let public_ip = format!("172.18.0.{number}");
    server.add_peer(
        &format!("n{number}"),
        &format!("10.244.{number}.0/24"),
        &[
            ("kube-subnet-manager", "true"),
            ("backend-type", "vxlan"),
            ("backend-data", DATA),
            ("public-ip", &public_ip),
        ],
    );
}

pub(crate) async fn acquire(manager: &KubeSubnetManager) -> Lease {
    let (config, attributes) = (config(V4), vxlan(&["172.18.0.1"]));
    timeout(TIMEOUT, manager.acquire(&config, &attributes)).await.expect("no lease").unwrap()
}

/// The reason why the manager waits, once it contains `part`.
pub(crate) async fn waits(manager: &KubeSubnetManager, part: &str) -> String {
    let mut state = manager.state();
    let matches_part = |state: &StoreState| matches!(state, StoreState::RequestRefused(why) | StoreState::NoSubnet(why) | StoreState::ListRefused(why) | StoreState::Unreachable(why) if why.contains(part));
    let waiting = timeout(TIMEOUT, state.wait_for(matches_part)).await;
    let waiting =
        waiting.unwrap_or_else(|_| panic!("no {part:?}: {:?}", *manager.state().borrow()));
    match &*waiting.unwrap() {
        StoreState::RequestRefused(why)
        | StoreState::NoSubnet(why)
        | StoreState::ListRefused(why)
        | StoreState::Unreachable(why) => why.clone(),
        state => panic!("{state:?}"),
    }
}

/// Runs `work`, which does not end, until `other` has ended.
pub(crate) async fn while_running<T>(work: impl Future, other: impl Future<Output = T>) -> T {
    tokio::select! {
        _ = work => panic!("it ended"),
        result = other => result,
    }
}

/// Waits until `holds`.
pub(crate) async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let met = async {
        while !holds() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(TIMEOUT, met).await.unwrap_or_else(|_| panic!("never: {what}"));
}

pub(crate) type Updates = BoxStream<'static, LeaseUpdate>;

/// The next update in one line.
pub(crate) async fn next(updates: &mut Updates) -> String {
    let update = timeout(TIMEOUT, updates.next()).await.expect("no update");
    shown(&update.unwrap())
}

/// Fails if there is an update within a while.
pub(crate) async fn nothing(updates: &mut Updates) {
    if let Ok(update) = timeout(A_WHILE, updates.next()).await {
        panic!("{}", shown(&update.unwrap()));
    }
}
