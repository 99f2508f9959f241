//! The secret by which daemons authenticate each other's probes.

use std::sync::Arc;
use tokio::time::timeout;
use tweed::model::path::Path;
use tweed::model::probe_secret::Secret;
use tweed::probe::{Packet, PacketKind};
use tweed::store::Documents;
use tweed::store::kube::KubeSubnetManager;

use crate::node::{TIMEOUT, manager, options, server};

/// Base64 of 64 digits.
const TEXT: &str =
    "MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMA==";
const SECRETS: &str = "/api/v1/namespaces/kube-flannel/secrets";

/// A request of a peer; its value itself is never shown.
fn sealed(secret: &Secret) -> Vec<u8> {
    let [from, to] = ["10.244.1.0", "10.244.2.0"].map(|base| base.parse().unwrap());
    let (kind, path) = (PacketKind::Request, Path::Direct);
    let packet = Packet { kind, path, nonce: 7, from, to, stamp: None, takes_direct: true };
    packet.encode(&[], secret, 0)
}

#[tokio::test]
async fn the_first_daemon_creates_the_secret_and_all_read_it() {
    let server = server();
    let nodes: [Arc<KubeSubnetManager>; 4] = std::array::from_fn(|_| manager(&server));
    let secrets = futures::future::join_all(nodes.iter().map(|manager| manager.probe_secret()));
    let secrets = timeout(TIMEOUT, secrets).await.unwrap();
    let later = manager(&server).probe_secret().await.unwrap();
    for secret in secrets {
        assert_eq!(sealed(&secret.unwrap()), sealed(&later));
    }
    let asked = server.take_asked();
    let read = asked.iter().filter(|asked| asked.what == format!("GET {SECRETS}/tweed-probes"));
    assert!(read.count() >= nodes.len(), "what is used is what was read");
    let stored = server.get(SECRETS, "tweed-probes").unwrap();
    assert!(stored["data"]["secret"].as_str().unwrap().len() > 64, "base64 of 64 digits");
    assert_eq!(stored["stringData"], serde_json::Value::Null);
}

#[tokio::test]
async fn errors_of_reading_the_secret_are_reported() {
    let server = server();
    server.fail(|faults| faults.forbidden = vec![format!("GET {SECRETS}")]);
    let denied = manager(&server).probe_secret().await.unwrap_err();
    assert!(denied.starts_with(&format!("the API server forbids GET {SECRETS}/tweed-probes: ")));
    let mut options = options(&[server.url()]);
    options.namespace = None;
    let homeless = KubeSubnetManager::new(options).probe_secret().await.unwrap_err();
    assert_eq!(homeless, "POD_NAMESPACE is not set");
}

/// As without the admission policies, where daemons may create nothing.
#[tokio::test]
async fn an_absent_secret_that_may_not_be_created_is_reported() {
    let server = server();
    server.fail(|faults| faults.forbidden = vec![format!("POST {SECRETS}")]);
    let text = manager(&server).probe_secret().await.unwrap_err();
    let start = "there is no secret kube-flannel/tweed-probes, and the API server forbids POST ";
    assert!(text.starts_with(start), "{text}");
    server.add(SECRETS, "tweed-probes", &serde_json::json!({ "data": { "secret": TEXT } }));
    manager(&server).probe_secret().await.unwrap();
}

#[tokio::test]
async fn an_invalid_secret_is_reported_by_its_name() {
    let server = server();
    let text = serde_json::json!({ "data": { "secret": "b3Vycw==" } });
    server.add(SECRETS, "tweed-probes", &text);
    let text = manager(&server).probe_secret().await.unwrap_err();
    assert!(text.starts_with("secret kube-flannel/tweed-probes: it must be 64 hexadecimal digits"));
}
