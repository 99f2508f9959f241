//! What is told of connections that fail.

use std::io::{Error, ErrorKind};

use super::*;

#[derive(Debug, thiserror::Error)]
#[error("error reading a body from connection")]
struct Reading(#[source] Error);

#[test]
fn a_server_that_was_killed_is_told_in_plain_words() {
    let eof = Error::new(ErrorKind::UnexpectedEof, "no close_notify: https://docs.rs/rustls");
    let said = describe(&Reading(eof));
    assert_eq!(said, "the API server ended the connection");
}

#[test]
fn the_innermost_cause_is_told() {
    let refused = Error::new(ErrorKind::ConnectionRefused, "connection refused");
    assert_eq!(
        describe(&Reading(refused)),
        "error reading a body from connection: connection refused"
    );
}

/// A kubeconfig of a user with `secret`, for the server `url`.
fn kubeconfig(url: &str, secret: &str) -> tempfile::NamedTempFile {
    let text = format!(
        "apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: '{url}'}}}}]
users: [{{name: u, user: {{{secret}}}}}]
"
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, text).unwrap();
    file
}

async fn refusal(url: &str, secret: &str, flag: Option<&str>) -> Option<String> {
    let file = kubeconfig(url, secret);
    let kubeconfig = Some(file.path().to_owned());
    open(&ApiOptions { urls: Vec::new(), kubeconfig }, flag).await.err()
}

#[tokio::test]
async fn no_token_or_password_is_sent_unencrypted() {
    let plain = "http://10.0.0.1:8080";
    for secret in ["token: abc", "username: u, password: p"] {
        let refused = refusal(plain, secret, None).await.unwrap();
        assert_eq!(
            refused,
            "http://10.0.0.1:8080/: the token or password of this account is not sent \
             unencrypted: use https"
        );
        assert_eq!(refusal("https://10.0.0.1:6443", secret, Some(plain)).await, Some(refused));
        assert_eq!(refusal("http://127.0.0.1:8001", secret, None).await, None);
    }
    assert_eq!(refusal(plain, "", None).await, None, "there is nothing to keep");
}
