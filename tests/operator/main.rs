//! `tweedctl` by its command lines, on a kernel in memory: what it shows, changes and refuses.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod cleanup;
mod diff;
mod handover;
mod host;
#[path = "../notation/mod.rs"]
mod notation;
mod trace;
