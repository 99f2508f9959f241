//! What a manager writes on its own node, and when.

use serde_json::{Value, json};
use tokio::time::timeout;
use tweed::model::config::BackendType;
use tweed::model::lease::Vtep;
use tweed::model::report::NodeReport;
use tweed::model::status::StoreState;
use tweed::store::kube::{KubeSubnetManager, NodeRef};
use tweed::store::{Documents, Leases};
use tweed_lab::ApiServer;

use crate::node::{
    DATA, DUAL, MAC, TIMEOUT, V4, acquire, attributes, config, manager, options, server, subnets,
    vxlan, waits, while_running,
};

fn patches(server: &ApiServer) -> Vec<(String, Value)> {
    let patched = server.take_asked().into_iter().filter(|asked| asked.what.starts_with("PATCH"));
    patched.map(|asked| (asked.what, serde_json::from_str(&asked.body).unwrap())).collect()
}

#[tokio::test]
async fn a_node_publishes_itself_in_one_patch_of_its_annotations() {
    let server = server();
    let lease = acquire(&manager(&server)).await;
    assert_eq!((lease.id.as_str(), subnets(&lease)), ("n1", vec!["10.244.1.0/24".to_owned()]));
    let patch = json!({ "metadata": { "annotations": {
        "flannel.alpha.coreos.com/backend-data": DATA,
        "flannel.alpha.coreos.com/backend-type": "vxlan",
        "flannel.alpha.coreos.com/kube-subnet-manager": "true",
        "flannel.alpha.coreos.com/public-ip": "172.18.0.1",
    } } });
    assert_eq!(patches(&server), [("PATCH /api/v1/nodes/n1/status".to_owned(), patch)]);
}

#[tokio::test]
async fn a_restart_writes_nothing() {
    let server = server();
    acquire(&manager(&server)).await;
    server.take_asked();
    acquire(&manager(&server)).await;
    assert_eq!(patches(&server), []);
}

#[tokio::test]
async fn only_what_changes_is_patched() {
    let server = server();
    let manager = manager(&server);
    acquire(&manager).await;
    server.take_asked();
    let vtep = Some(Vtep { vni: Some(1), mac: MAC.parse().unwrap(), source: None, mixed: false });
    let flipped = attributes(BackendType::HostGw, &["172.18.0.1"], vtep);
    manager.acquire(&config(V4), &flipped).await.unwrap();
    let patch = json!({ "metadata": { "annotations": {
        "flannel.alpha.coreos.com/backend-type": "host-gw",
    } } });
    assert_eq!(patches(&server), [("PATCH /api/v1/nodes/n1/status".to_owned(), patch)]);
}

#[tokio::test]
async fn both_families_are_published() {
    let server = ApiServer::start().unwrap();
    server.add_node("n1", &["10.244.1.0/24", "fd00:0:0:1::/64"]);
    let lease =
        manager(&server).acquire(&config(DUAL), &vxlan(&["172.18.0.1", "fd18::1"])).await.unwrap();
    assert_eq!(subnets(&lease), ["10.244.1.0/24", "fd00:0:0:1::/64"]);
    assert_eq!(server.annotation("n1", "public-ipv6").as_deref(), Some("fd18::1"));
    assert_eq!(server.annotation("n1", "backend-v6-data").as_deref(), Some(DATA));
}

#[tokio::test]
async fn peers_see_the_overwritten_public_ip() {
    let server = server();
    server.annotate("n1", "public-ip-overwrite", Some("203.0.113.7"));
    let lease = acquire(&manager(&server)).await;
    assert_eq!(server.annotation("n1", "public-ip").as_deref(), Some("203.0.113.7"));
    let endpoint = &lease.endpoints[0];
    assert_eq!(endpoint.public_ip.to_string(), "203.0.113.7");
    let source = endpoint.vtep.and_then(|vtep| vtep.source);
    assert_eq!(source, Some("172.18.0.1".parse().unwrap()), "packets come from where they did");
}

#[tokio::test]
async fn another_prefix_changes_the_names_of_annotations() {
    let server = server();
    let mut options = options(&[server.url()]);
    options.annotation_prefix = "example.org/blue".parse().unwrap();
    acquire(&KubeSubnetManager::new(options)).await;
    let node = server.node("n1").unwrap();
    let annotations = node["metadata"]["annotations"].as_object().unwrap();
    assert_eq!(annotations["example.org/blue-public-ip"], "172.18.0.1");
    assert!(annotations.keys().all(|key| key.starts_with("example.org/blue-")), "{annotations:?}");
}

#[tokio::test]
async fn a_node_without_pod_cidr_waits_for_it() {
    let server = ApiServer::start().unwrap();
    server.add_node("n1", &[]);
    let manager = manager(&server);
    let acquired = async {
        let why = waits(&manager, "podCIDR").await;
        assert_eq!(why, "no subnet for this node yet: node n1: it has no IPv4 podCIDR yet");
        server.patch_node("n1", &json!({ "spec": { "podCIDR": "10.244.7.0/24" } }));
    };
    let (lease, ()) = tokio::join!(acquire(&manager), acquired);
    assert_eq!(subnets(&lease), ["10.244.7.0/24"]);
}

/// The network gets a second family before the controller manager does.
#[tokio::test]
async fn a_second_family_without_pod_cidr_leaves_the_subnet_of_the_first() {
    let sentence = "node n1: it has no IPv6 podCIDR yet";
    let kept =
        StoreState::RequestRefused(format!("no subnet of another address family yet: {sentence}"));
    let lost = StoreState::NoSubnet(format!("no subnet for this node yet: {sentence}"));
    for (previous, state) in [("10.244.1.0/24", kept), ("10.244.2.0/24", lost)] {
        let server = ApiServer::start().unwrap();
        server.add_node("n1", &["10.244.1.0/24"]);
        let previous = vec![previous.parse().unwrap()];
        let manager = KubeSubnetManager::with_previous(options(&[server.url()]), previous);
        let mut states = manager.state();
        let (config, attributes) = (config(DUAL), vxlan(&["172.18.0.1", "fd18::1"]));
        tokio::select! {
            biased;
            _ = manager.acquire(&config, &attributes) => panic!("it has no IPv6 subnet"),
            found = states.wait_for(|found| *found == state) => drop(found.unwrap()),
        }
    }
}

#[tokio::test]
async fn a_node_that_is_not_registered_yet_is_waited_for() {
    let server = ApiServer::start().unwrap();
    let manager = manager(&server);
    let registered = async {
        let why = waits(&manager, "there is no node").await;
        assert_eq!(why, "no subnet for this node yet: there is no node n1 yet");
        server.add_node("n1", &["10.244.1.0/24"]);
    };
    let (lease, ()) = tokio::join!(acquire(&manager), registered);
    assert_eq!(lease.id.as_str(), "n1");
}

#[tokio::test]
async fn a_pod_cidr_outside_of_the_network_is_an_error_that_names_the_fix() {
    let server = ApiServer::start().unwrap();
    server.add_node("n1", &["10.9.1.0/24"]);
    let refused = manager(&server).acquire(&config(V4), &vxlan(&["172.18.0.1"])).await;
    assert_eq!(
        refused.unwrap_err().to_string(),
        "podCIDR 10.9.1.0/24 of node n1 is not inside 10.244.0.0/16: \
         make the network config agree with --cluster-cidr of the controller manager"
    );
}

#[tokio::test]
async fn the_node_is_found_by_its_pod() {
    let server = server();
    let pods = "/api/v1/namespaces/kube-flannel/pods";
    server.add(pods, "tweed-x", &json!({ "spec": { "nodeName": "n1" } }));
    let mut options = options(&[server.url()]);
    options.node = NodeRef::OfPod { namespace: "kube-flannel".into(), name: "tweed-x".into() };
    let manager = KubeSubnetManager::new(options.clone());
    assert_eq!(acquire(&manager).await.id.as_str(), "n1");

    // With a typo, it is not known which node this is; that is no lack of a subnet.
    options.node = NodeRef::OfPod { namespace: "kube-flannel".into(), name: "tweed-y".into() };
    let manager = KubeSubnetManager::new(options);
    tokio::select! {
        lease = acquire(&manager) => panic!("{lease:?}"),
        why = waits(&manager, "tweed-y") => assert!(why.contains("it does not exist; set NODE_NAME"), "{why}"),
    }
    assert!(matches!(*manager.state().borrow(), StoreState::RequestRefused(_)));
}

#[tokio::test]
async fn a_denied_request_is_reported_and_retried() {
    let server = server();
    server.fail(|faults| faults.forbidden = vec!["PATCH /api/v1/nodes".to_owned()]);
    let manager = manager(&server);
    let granted = async {
        let why = waits(&manager, "forbids").await;
        assert!(why.starts_with("the API server forbids PATCH /api/v1/nodes/n1/status: "), "{why}");
        assert!(why.ends_with("; docs/kubernetes.md lists the permissions to grant"), "{why}");
        server.fail(|faults| faults.forbidden.clear());
    };
    tokio::join!(acquire(&manager), granted);
    assert_eq!(server.annotation("n1", "kube-subnet-manager").as_deref(), Some("true"));
}

#[tokio::test]
async fn operators_choose_public_ips_before_and_while_a_daemon_runs() {
    use futures::StreamExt;
    let server = server();
    server.annotate("n1", "node-public-ip", Some("203.0.113.7"));
    let manager = manager(&server);
    let mut identities = manager.watch_identity();
    let first = timeout(TIMEOUT, identities.next()).await.unwrap().unwrap();
    assert_eq!(first.name.as_deref(), Some("n1"));
    assert_eq!(first.public_ips, ["203.0.113.7".parse::<std::net::IpAddr>().unwrap()]);
    acquire(&manager).await;
    let mut updates = manager.watch();
    let follow = async { while updates.next().await.is_some() {} };
    server.annotate("n1", "node-public-ip", None);
    let second = while_running(follow, timeout(TIMEOUT, identities.next())).await.unwrap().unwrap();
    assert!(second.public_ips.is_empty());
}

#[tokio::test]
async fn a_refused_report_leaves_the_server_reachable() {
    let server = server();
    let manager = manager(&server);
    acquire(&manager).await;
    // Larger than one ConfigMap, and larger than one request.
    for megabytes in [2, 5] {
        let report = NodeReport { version: "9".repeat(megabytes << 20), ..report() };
        let reason = manager.publish_report(&report).await.unwrap_err().to_string();
        assert!(reason.starts_with("the API server refuses: "), "{reason}");
        let state = manager.state().borrow().clone();
        assert!(
            matches!(&state, StoreState::OptionalRefused(what) if what.contains("report")),
            "{state:?}"
        );
    }
    manager.publish_report(&report()).await.unwrap();
    assert_eq!(*manager.state().borrow(), StoreState::Reachable);
}

/// As without the admission policies, where daemons may write no `ConfigMap`.
#[tokio::test]
async fn a_missing_right_to_write_the_report_is_named() {
    let server = server();
    let manager = manager(&server);
    acquire(&manager).await;
    server.fail(|faults| {
        faults.forbidden = vec!["PATCH /api/v1/namespaces/kube-flannel/configmaps".to_owned()];
    });
    manager.publish_report(&report()).await.unwrap_err();
    let state = manager.state().borrow().clone();
    assert!(state.is_reachable(), "{state:?}");
    let StoreState::OptionalRefused(why) = state else { panic!("{state:?}") };
    let start = "this node's report: the API server forbids PATCH /api/v1/namespaces/kube-flannel/\
                 configmaps/tweed-node-n1: ";
    assert!(why.starts_with(start) && why.contains("docs/kubernetes.md"), "{why}");
    server.fail(|faults| faults.forbidden.clear());
    manager.publish_report(&report()).await.unwrap();
    assert_eq!(*manager.state().borrow(), StoreState::Reachable);
}

#[tokio::test]
async fn a_report_that_a_webhook_fails_leaves_the_server_reachable() {
    let server = server();
    let manager = manager(&server);
    acquire(&manager).await;
    server.fail(|faults| {
        faults.webhook_down = vec!["PATCH /api/v1/namespaces/kube-flannel".to_owned()];
    });
    let reason = manager.publish_report(&report()).await.unwrap_err().to_string();
    assert!(reason.contains("failed calling webhook"), "{reason}");
    let state = manager.state().borrow().clone();
    assert!(
        matches!(&state, StoreState::OptionalRefused(why) if why.contains("webhook")),
        "{state:?}"
    );
    server.fail(|faults| faults.webhook_down.clear());
    manager.publish_report(&report()).await.unwrap();
    assert_eq!(*manager.state().borrow(), StoreState::Reachable);
}

fn report() -> NodeReport {
    let node =
        json!({ "interface": "eth0", "mtu": 1500, "layer2": true, "on_link": [], "uplinks": [] });
    let report = json!({ "version": "1", "lease": "n1", "node": node, "subnets": [],
        "backend": "vxlan", "mixed": false });
    serde_json::from_value(report).unwrap()
}
