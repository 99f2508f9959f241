//! Several daemons, a real etcd and a real kernel, in the lab.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod cluster;
mod start;
