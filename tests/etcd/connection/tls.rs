//! Valid certificates, and the errors of invalid ones.

use std::process::Command;

use tokio::time::timeout;
use tweed::model::status::StoreState;
use tweed::store::claim::Previous;
use tweed::store::etcd::{EtcdOptions, EtcdSubnetManager};
use tweed::store::{Documents, Leases};

use crate::fixture::certificates::Authority;
use crate::fixture::log::Log;
use crate::fixture::node::{V4, config, manager_of, options, vxlan};
use crate::fixture::server::{EtcdServer, TIMEOUT};

/// A server whose certificate is valid for `names`.
async fn server(authority: &Authority, names: &str, more: &[&str]) -> EtcdServer {
    authority.issue("server", names);
    let (cert, key) = (authority.path("server.pem"), authority.path("server.key"));
    let mut arguments = vec!["--cert-file", &cert, "--key-file", &key];
    arguments.extend(more);
    EtcdServer::start_tls(&arguments).await
}

fn with_ca(server: &EtcdServer, authority: &Authority) -> EtcdOptions {
    EtcdOptions { ca_file: Some(authority.file("ca.pem")), ..options(&[server.endpoint()]) }
}

async fn assert_works(options: EtcdOptions) {
    let manager = manager_of(options, Previous::default());
    let node = vxlan(&["192.168.0.9"]);
    let lease = timeout(TIMEOUT, manager.acquire(&config(V4), &node)).await;
    assert_eq!(lease.expect("no lease").unwrap().id.as_str(), "10.5.115.0-24");
}

/// Why `manager` waits, once the reason contains `part`.
async fn reason(manager: &EtcdSubnetManager, part: &str) -> String {
    let mut state = manager.state();
    let contains_part = |state: &StoreState| matches!(state, StoreState::Unreachable(reason) if reason.contains(part));
    let (config, node) = (config(V4), vxlan(&["192.168.0.9"]));
    let reason_text = tokio::select! {
        lease = manager.acquire(&config, &node) => panic!("{lease:?}"),
        state = timeout(TIMEOUT, state.wait_for(contains_part)) => {
            state.map(|state| format!("{:?}", *state.unwrap())).ok()
        }
    };
    reason_text.unwrap_or_else(|| panic!("not {part:?}, but {:?}", *manager.state().borrow()))
}

#[tokio::test]
async fn a_ca_alone_is_enough() {
    let authority = Authority::new("ca");
    let server = server(&authority, "IP:127.0.0.1", &[]).await;
    assert_works(with_ca(&server, &authority)).await;
}

#[tokio::test]
async fn without_a_ca_file_the_certificates_of_the_host_are_trusted() {
    let [trusted, other] = ["ca", "other"].map(Authority::new);
    let server = server(&trusted, "IP:127.0.0.1", &[]).await;
    let listed = |authority: &Authority| {
        let words = ["leases", "usage", "--etcd-endpoints", &server.endpoint()];
        let mut command = Command::new(env!("CARGO_BIN_EXE_tweedctl"));
        command.args(words).env("SSL_CERT_FILE", authority.file("ca.pem"));
        let output = command.output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    assert!(listed(&trusted).contains("no network config"), "{}", listed(&trusted));
    assert!(listed(&other).contains("UnknownIssuer"), "{}", listed(&other));
}

#[tokio::test]
async fn an_endpoint_without_a_scheme_uses_tls_if_files_are_given() {
    let authority = Authority::new("ca");
    let server = server(&authority, "IP:127.0.0.1", &[]).await;
    let endpoint = server.endpoint().replace("https://", "");
    assert_works(EtcdOptions { endpoints: vec![endpoint], ..with_ca(&server, &authority) }).await;
}

#[tokio::test]
async fn a_plain_endpoint_ignores_the_files() {
    let server = EtcdServer::start().await;
    let options = options(&[server.endpoint()]);
    assert_works(EtcdOptions { ca_file: Some("/nowhere".into()), ..options }).await;
}

#[tokio::test]
async fn a_server_gets_our_certificate_on_request() {
    let authority = Authority::new("ca");
    authority.issue("client", "DNS:client");
    let ca = authority.path("ca.pem");
    let server =
        server(&authority, "IP:127.0.0.1", &["--client-cert-auth", "--trusted-ca-file", &ca]).await;
    let options = EtcdOptions {
        cert_file: Some(authority.file("client.pem")),
        key_file: Some(authority.file("client.key")),
        ..with_ca(&server, &authority)
    };
    assert_works(options).await;
}

#[tokio::test]
async fn a_missing_client_certificate_is_suggested_as_the_cause() {
    let authority = Authority::new("ca");
    let ca = authority.path("ca.pem");
    let server =
        server(&authority, "IP:127.0.0.1", &["--client-cert-auth", "--trusted-ca-file", &ca]).await;
    // The server closes the connection in several ways, at random.
    for _ in 0..5 {
        let manager = manager_of(with_ca(&server, &authority), Previous::default());
        // A server that has just been started may not serve yet.
        reason(&manager, "etcd-certfile").await;
    }
}

#[tokio::test]
async fn an_unknown_authority_is_named_and_its_replacement_is_read() {
    let (authority, other) = (Authority::new("ca"), Authority::new("other"));
    let server = server(&authority, "IP:127.0.0.1", &[]).await;
    let manager = manager_of(with_ca(&server, &other), Previous::default());
    let log = Log::catch();
    let reason = reason(&manager, "UnknownIssuer").await;
    assert!(reason.contains(&format!("etcd at {}: ", server.endpoint())), "{reason}");
    std::fs::copy(authority.file("ca.pem"), other.file("ca.pem")).unwrap();
    let node = vxlan(&["192.168.0.9"]);
    timeout(TIMEOUT, manager.acquire(&config(V4), &node)).await.unwrap().unwrap();
    assert_eq!(*manager.state().borrow(), StoreState::Reachable);
    let lines = log.lines();
    assert_eq!(lines.len(), 2, "{lines:#?}");
}

#[tokio::test]
async fn a_certificate_for_another_name_is_reported() {
    let authority = Authority::new("ca");
    let server = server(&authority, "DNS:elsewhere", &[]).await;
    let manager = manager_of(with_ca(&server, &authority), Previous::default());
    reason(&manager, "certificate not valid for name").await;
}

#[tokio::test]
async fn a_file_without_a_certificate_is_reported() {
    let authority = Authority::new("ca");
    let server = server(&authority, "IP:127.0.0.1", &[]).await;
    std::fs::write(authority.file("ca.pem"), "no certificate").unwrap();
    let manager = manager_of(with_ca(&server, &authority), Previous::default());
    reason(&manager, "ca.pem: contains no certificate").await;
}
