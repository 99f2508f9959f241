//! The store with Go's host-local, under many processes, and under processes that are killed.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod crash;
mod crowd;
mod interchange;
mod network;
