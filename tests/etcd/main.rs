//! The subnet manager on real etcd servers: what it stores, which node gets a subnet, and which faults
//! change nothing.

#![allow(
    clippy::large_futures,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod connection;
mod documents;
mod fixture;
mod leases;
mod model;
#[path = "../notation/subnets.rs"]
mod subnets;
