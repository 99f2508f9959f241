//! The secret of path probes: the same for all nodes, and none for nodes without the right to read
//! it.

use futures::future::join_all;
use tweed::model::path::Path;
use tweed::model::probe_secret::Secret;
use tweed::probe::{Keyring, Packet, PacketKind};
use tweed::store::Documents;
use tweed::store::claim::Previous;

use crate::fixture::node::{SUBNETS, manager_of, options, with_password};
use crate::fixture::server::{EtcdServer, PASSWORD};

const KEY: &str = "/coreos.com/network/tweed/probe-secret";

/// Whether both contain the same secret.
fn agree(one: &Secret, other: &Secret) -> bool {
    let (from, to) = ("10.5.1.0".parse().unwrap(), "10.5.2.0".parse().unwrap());
    let (kind, path, nonce) = (PacketKind::Request, Path::Direct, 7);
    let packet = Packet { kind, path, nonce, from, to, stamp: None, takes_direct: true };
    Packet::open(&packet.encode(&[], one, 0), &Keyring::new(other.clone())).is_some()
}

#[tokio::test]
async fn nodes_that_start_at_once_share_one_secret() {
    let server = EtcdServer::start().await;
    let managers: Vec<_> =
        (0..20).map(|_| manager_of(options(&[server.endpoint()]), Previous::default())).collect();
    let secrets = join_all(managers.iter().map(|manager| manager.probe_secret())).await;
    let secrets: Vec<Secret> = secrets.into_iter().map(Result::unwrap).collect();
    assert!(secrets.iter().all(|secret| agree(secret, &secrets[0])));
    let kept = server.client().await.get(KEY, None).await.unwrap();
    let kv = kept.kvs().first().unwrap();
    assert_eq!((kv.version(), kv.lease(), kv.value().len()), (1, 0, 64));
}

#[tokio::test]
async fn a_secret_that_is_replaced_or_deleted_is_read_again() {
    let server = EtcdServer::start().await;
    let [one, other] =
        [0, 1].map(|_| manager_of(options(&[server.endpoint()]), Previous::default()));
    let first = one.probe_secret().await.unwrap();
    server.client().await.put(KEY, Secret::text(&[7; 32]), None).await.unwrap();
    assert!(agree(&one.probe_secret().await.unwrap(), &Secret::new(&[7; 32])));
    server.client().await.delete(KEY, None).await.unwrap();
    let third = one.probe_secret().await.unwrap();
    assert!(!agree(&third, &first) && !agree(&third, &Secret::new(&[7; 32])));
    assert!(agree(&third, &other.probe_secret().await.unwrap()));
}

#[tokio::test]
async fn an_invalid_secret_is_reported_and_not_shown() {
    let server = EtcdServer::start().await;
    server.client().await.put(KEY, "hunter2", None).await.unwrap();
    let manager = manager_of(options(&[server.endpoint()]), Previous::default());
    let reason = manager.probe_secret().await.unwrap_err();
    assert_eq!(
        reason,
        format!(
            "key {KEY}: it must be 64 hexadecimal digits: delete it, and tweedd creates a new one"
        )
    );
}

#[tokio::test]
async fn a_denied_secret_is_reported_at_once() {
    let server = EtcdServer::start().await;
    server.enable_authentication(SUBNETS).await;
    let options = with_password(&server, PASSWORD);
    let reason = manager_of(options, Previous::default()).probe_secret().await.unwrap_err();
    assert_eq!(reason, format!("permission denied for key {KEY}: grant it to this etcd user"));
}
