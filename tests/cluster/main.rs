//! Several daemons, a real etcd and a real kernel, in the lab.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(unreachable_pub, reason = "nothing of a test binary can be reached from outside")]
#![allow(
    clippy::print_stdout,
    clippy::similar_names,
    clippy::disallowed_methods,
    reason = "tests wait, print durations, and compare similar values"
)]

mod firewall;
mod fixture;
mod leases;
mod migration;
mod operator;
mod paths;
mod recovery;
mod store;
