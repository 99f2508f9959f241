//! The subnet manager on an API server: what it publishes, what it accepts, and which faults change
//! nothing.

#![allow(
    clippy::large_futures,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod announce;
mod events;
mod failover;
mod hold;
mod net_config;
mod node;
mod operator;
mod probe_secret;
mod proxy;
mod publish;
#[path = "../notation/subnets.rs"]
mod subnets;
mod throttle;
mod watch;
