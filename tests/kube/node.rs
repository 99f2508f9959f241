//! What the tests say of nodes, in few words.

use std::future::Future;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::time::{sleep, timeout};
use tweed::config::NetworkConfig;
use tweed::lease::{
    BackendType, EndpointAttributes, Lease, LeaseAttributes, LeaseUpdate, Record, Vtep,
};
use tweed::subnet::kube::{
    AnnotationPrefix, ApiOptions, Condition, KubeOptions, KubeSubnetManager, NodeRef,
};
use tweed::subnet::{StoreState, SubnetManager};
use tweed_lab::ApiServer;

pub(crate) const MAC: &str = "12:c6:65:89:b4:e3";
pub(crate) const DATA: &str = r#"{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}"#;
pub(crate) const V4: &str = r#"{"Network":"10.244.0.0/16"}"#;
pub(crate) const DUAL: &str =
    r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48"}"#;

/// Whatever does not happen by then does not happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const A_WHILE: Duration = Duration::from_secs(1);

pub(crate) fn config(json: &str) -> NetworkConfig {
    NetworkConfig::parse(json.as_bytes()).unwrap()
}

/// A vxlan node with these public IPs.
pub(crate) fn vxlan(public_ips: &[&str]) -> LeaseAttributes {
    let vtep = Some(Vtep { vni: Some(1), mac: MAC.parse().unwrap() });
    attributes(BackendType::Vxlan, public_ips, vtep)
}

pub(crate) fn attributes(
    backend: BackendType,
    public_ips: &[&str],
    vtep: Option<Vtep>,
) -> LeaseAttributes {
    let endpoint = |ip: &&str| EndpointAttributes { public_ip: ip.parse().unwrap(), vtep };
    LeaseAttributes { backend, endpoints: public_ips.iter().map(endpoint).collect() }
}

/// Node n1, which talks to these servers.
pub(crate) fn options(urls: &[String]) -> KubeOptions {
    KubeOptions {
        api: ApiOptions { urls: urls.to_vec(), kubeconfig: None },
        annotation_prefix: AnnotationPrefix::default(),
        node: NodeRef::Name("n1".to_owned()),
        namespace: Some("kube-flannel".to_owned()),
        net_config: "/nowhere/net-conf.json".into(),
        condition: Condition::Cleared,
    }
}

pub(crate) fn manager(server: &ApiServer) -> KubeSubnetManager {
    KubeSubnetManager::new(options(&[server.url()]))
}

/// A server with node n1, of subnet 10.244.1.0/24.
pub(crate) fn server() -> ApiServer {
    let server = ApiServer::start().unwrap();
    server.add_node("n1", &["10.244.1.0/24"]);
    server
}

/// A peer of subnet 10.244.x.0/24 and public IP 172.18.0.x, x being its number.
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
    timeout(PATIENCE, manager.acquire(&config, &attributes)).await.expect("no lease").unwrap()
}

pub(crate) fn subnets(lease: &Lease) -> Vec<String> {
    lease.subnets().map(|subnet| subnet.to_string()).collect()
}

/// What the manager waits for, once it does.
pub(crate) async fn waits(manager: &KubeSubnetManager, says: &str) -> String {
    let mut state = manager.state();
    let is_said =
        |state: &StoreState| matches!(state, StoreState::Waiting(why) if why.contains(says));
    let waiting = timeout(PATIENCE, state.wait_for(is_said)).await;
    let waiting =
        waiting.unwrap_or_else(|_| panic!("{says:?} is not said: {:?}", *manager.state().borrow()));
    match &*waiting.unwrap() {
        StoreState::Waiting(why) => why.clone(),
        state => panic!("{state:?}"),
    }
}

/// Goes on with `work`, which does not end, until `other` has.
pub(crate) async fn beside<T>(work: impl Future, other: impl Future<Output = T>) -> T {
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
    timeout(PATIENCE, met).await.unwrap_or_else(|_| panic!("never: {what}"));
}

pub(crate) type Updates = BoxStream<'static, LeaseUpdate>;

/// The next update in one line.
pub(crate) async fn next(updates: &mut Updates) -> String {
    let update = timeout(PATIENCE, updates.next()).await.expect("no update");
    shown(&update.unwrap())
}

/// Fails if there is an update within a while.
pub(crate) async fn nothing(updates: &mut Updates) {
    if let Ok(update) = timeout(A_WHILE, updates.next()).await {
        panic!("{}", shown(&update.unwrap()));
    }
}

fn shown(update: &LeaseUpdate) -> String {
    match update {
        LeaseUpdate::Snapshot(records) => {
            let ids: Vec<String> = records.iter().map(record).collect();
            format!("snapshot [{}]", ids.join(" "))
        }
        LeaseUpdate::Put(put) => format!("put {}", record(put)),
        LeaseUpdate::Remove(id) => format!("remove {id}"),
    }
}

fn record(record: &Record) -> String {
    let holder = match &record.lease {
        Ok(lease) => lease.endpoints[0].public_ip.to_string(),
        Err(error) => format!("malformed: {error}"),
    };
    format!("{}@{holder}", record.id)
}
