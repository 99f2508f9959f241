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
