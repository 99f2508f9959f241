//! The subnet manager on real etcd servers: what is stored, who wins, and what survives which failure.

#![allow(
    clippy::large_futures,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod acquire;
mod auth;
mod certificates;
mod failover;
mod families;
mod hold;
mod log;
mod network_config;
mod node;
mod node_report;
mod operator;
mod probe_secret;
mod proxy;
mod refusal;
mod reserve;
mod scale;
mod server;
mod snapshot;
#[path = "../notation/subnets.rs"]
mod subnets;
mod tls;
mod watch;
