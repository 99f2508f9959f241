//! Tests of kernel access with a real kernel, each in its own network namespace.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod apply;
mod device;
mod facts;
mod firewall;
mod foreign;
mod host;
mod model;
mod neighbour;
mod nexthop;
mod observe;
mod preflight;
mod roundtrip;
mod scale;
mod settings;
