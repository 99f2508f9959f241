//! The path to each peer: by backend, distance and probes.

mod mixed;
pub(crate) mod probe;
mod reachability;
mod start;
mod views;
