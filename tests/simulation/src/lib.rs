//! Whole clusters in one process: the code of the daemon, virtual time, faults by dice, and
//! invariants that judge each history.

#![allow(clippy::indexing_slicing, reason = "the acts of a history name nodes that exist")]

pub mod act;
pub mod cluster;
pub mod coverage;
pub mod dice;
pub mod fault;
pub mod flannel;
pub mod history;
pub mod invariant;
pub mod network;
pub mod node;
mod operator;
pub mod packets;
pub mod prober;
pub mod store;
