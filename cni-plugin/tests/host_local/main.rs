//! The store beside Go's host-local, under a crowd, and under processes that are killed.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod crash;
mod crowd;
mod interchange;
mod network;
