//! Servers that are sometimes unreachable: which of several is used, how long to wait before a retry,
//! and how the history of what they store is followed through all interruptions.

// When and how often.
pub mod backoff;
pub mod random;

// Any servers.
pub mod failover;
pub mod transport;
pub mod watch;

// Those of Kubernetes.
pub mod api;
