//! Several daemons, a real etcd and a real kernel, in the lab.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(unreachable_pub, reason = "nothing of a test binary can be reached from outside")]
#![allow(
    clippy::print_stdout,
    clippy::similar_names,
    clippy::disallowed_methods,
    reason = "tests wait, print durations, and compare similar values"
)]

mod ask;
mod change;
mod cluster;
mod command_line;
mod connections;
mod ctl;
mod doctor;
mod firewall;
mod flanneld;
mod flip;
mod flows;
mod forged;
mod forward;
mod gap;
mod guard;
mod health;
mod hostile;
mod identity;
mod injection;
mod kept;
mod kube;
mod leases;
mod live;
mod masquerade;
mod meanwhile;
mod migrate;
mod mixed;
mod peer;
mod privileges;
mod probe;
mod reboot;
mod repair;
mod restart;
mod scene;
mod start;
mod store;
mod table;
mod takeover;
