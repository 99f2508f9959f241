//! The subnet manager on real etcd servers: what is stored, who wins, and what survives which failure.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod acquire;
mod node;
mod server;
