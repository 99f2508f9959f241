//! The kernel edge against a real kernel, every test in a network namespace of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod apply;
mod chains;
mod device;
mod facts;
mod foreign;
mod guard;
mod host;
mod neighbour;
mod nexthop;
mod observe;
mod preflight;
mod roundtrip;
mod scale;
mod settings;
mod tables;
