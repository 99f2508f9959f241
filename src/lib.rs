//! The module tree as a map: read it from top to bottom, in the direction of the data.

// What everything else is made of.
pub mod backoff;
pub mod prefix;
pub use tweed_netlink::{excerpt, mac};

// What operators and peers write, decoded once.
pub mod json;

pub mod config;

pub mod options;

pub mod lease;

pub mod node;

// What is done with packets beside routing them.
pub mod guard;
pub mod masquerade;

// Where config and leases come from.
pub mod subnet;

// Which ways to peers carry packets.
pub mod probe;

// What the kernel should hold, and what it holds.
pub mod backend;

pub mod kernel;

// The loop between them.
pub mod reconciler;

// What the loop tells the outside, and how it is told.
pub mod checkpoint;
pub mod metrics;
pub mod report;
pub mod status;

pub mod http;
pub mod notify;

// Moving a cluster from one backend to another.
pub mod migration;

// What of the host is in the way.
pub mod preflight;

// Wiring.
pub mod daemon;

// The operator's command line.
pub mod ctl;
