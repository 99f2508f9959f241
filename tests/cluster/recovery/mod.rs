//! Restarts, reboots, and entries that other programs change.

mod reboot;
mod repair;
mod restart;
