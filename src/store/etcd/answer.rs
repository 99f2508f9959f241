//! What etcd answers in place of what was asked for: refusals, and whose fault an error is.

use etcd_client::Error;

use super::connect::describe;

/// Why a request brought nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// No server could be asked, or it could not answer; the report says more.
    Away,
    /// The server is reachable, and refuses.
    Refused(Refusal),
}

/// An answer that another try on another connection would not change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("there is no such etcd lease")]
    NoGrant,
    #[error("there is such an etcd lease already")]
    GrantExists,
    /// The revision asked for is compacted, or still to come.
    #[error("there is no such revision")]
    NoRevision,
    /// The answer is: the library refuses it before it has read it.
    #[error("{0}")]
    TooLarge(String),
    /// The request is too large, or the server has no space for it.
    #[error("{0}")]
    Invalid(String),
}

/// Whose fault an error is.
pub(super) enum Fault {
    /// None: it is an answer.
    Answer(Refusal),
    /// The server's, which says so itself.
    Server,
    Connection,
}

pub(super) fn fault(error: &Error) -> Fault {
    let Error::GRpcStatus(status) = error else { return Fault::Connection };
    match i32::from(status.code()) {
        NOT_FOUND => Fault::Answer(Refusal::NoGrant),
        FAILED_PRECONDITION => Fault::Answer(Refusal::GrantExists),
        OUT_OF_RANGE if is_of_server(status.message()) => Fault::Answer(Refusal::NoRevision),
        OUT_OF_RANGE => Fault::Answer(Refusal::TooLarge(describe(error))),
        INVALID_ARGUMENT | RESOURCE_EXHAUSTED => Fault::Answer(Refusal::Invalid(describe(error))),
        UNAVAILABLE if is_of_server(status.message()) => Fault::Server,
        _ => Fault::Connection,
    }
}

/// The library has errors of its own under the same codes.
fn is_of_server(message: &str) -> bool {
    message.starts_with("etcdserver: ")
}

/// Whether this etcd user has no right to what was asked.
pub(super) fn is_denied(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if i32::from(status.code()) == PERMISSION_DENIED)
}

/// Whether this etcd takes no such request, from this user or from anybody.
pub(super) fn is_unwelcome(error: &Error) -> bool {
    is_denied(error) || matches!(fault(error), Fault::Answer(Refusal::Invalid(_)))
}

// Numbers of gRPC's status codes, whose type the library does not hand on.
const INVALID_ARGUMENT: i32 = 3;
const NOT_FOUND: i32 = 5;
const PERMISSION_DENIED: i32 = 7;
const RESOURCE_EXHAUSTED: i32 = 8;
const FAILED_PRECONDITION: i32 = 9;
const OUT_OF_RANGE: i32 = 11;
const UNAVAILABLE: i32 = 14;
