//! What can be wrong with an API server.

use std::time::Duration;

/// How a server answers for as long as it is told to.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Before it answers at all.
    pub delay: Duration,
    /// Requests whose method and path begin so are forbidden: `GET /api/v1/nodes`.
    pub forbidden: Vec<String>,
    /// So many requests more are refused for want of time.
    pub throttled: u32,
    /// The seconds that go with such a refusal.
    pub retry_after: Option<u64>,
    pub lists: Lists,
    pub gone: Gone,
    /// Every request is accepted, and none is answered.
    pub hangs: bool,
}

/// Whether lists are streamed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lists {
    #[default]
    Streamed,
    /// As before version 1.32: who asks is told so.
    Paged,
    /// As before version 1.27: who asks gets what is there, and no word that this was all.
    Endless,
}

/// How a watch learns that its history is forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gone {
    #[default]
    AsEvent,
    AsAnswer,
}
