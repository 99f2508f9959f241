//! Faults of an API server.

use std::time::Duration;

use hyper::StatusCode;

/// How a server answers while these faults are set.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Delay before each response.
    pub delay: Duration,
    /// Requests whose method and path begin like this are forbidden: `GET /api/v1/nodes`.
    pub forbidden: Vec<String>,
    /// Requests whose method and path begin like this need an admission webhook that does not answer.
    pub webhook_down: Vec<String>,
    pub page: Option<Page>,
    /// This number of requests is throttled.
    pub throttled: u32,
    /// The seconds in the `Retry-After` header of such a response.
    pub retry_after: Option<u64>,
    pub lists: Lists,
    pub gone: Gone,
    /// Every request is accepted, but never answered.
    pub hangs: bool,
}

/// What a proxy in front of the server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// In the query of each request that the proxy answers.
    pub query: &'static str,
    pub content_type: &'static str,
    pub status: StatusCode,
}

/// Whether lists are streamed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lists {
    #[default]
    Streamed,
    /// As before version 1.32: the request is refused.
    Paged,
    /// As by a server that is busy: the answer begins, and has nothing.
    Stalled,
    /// As before version 1.27: existing objects are sent, without a bookmark that marks their end.
    Endless,
}

/// How a watch reports that its version is compacted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gone {
    #[default]
    AsEvent,
    AsAnswer,
}
