//! The plugin as a runtime calls it, on a real kernel, compared with Debian's plugins.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../harness/mod.rs"]
mod harness;

mod bridge;
mod chain;
mod delegation;
mod device;
mod interchange;
mod ipv6;
mod protocol;
mod reboot;
mod storm;
