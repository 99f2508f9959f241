//! A service proxy: Services and `EndpointSlices` become elements of nftables sets.
//!
//! `desired = plan(services, endpoints)`, `apply(diff(desired, actual))`: the chains stay as they are,
//! and a change of one endpoint is a change of two to four elements.

// What Kubernetes knows.
pub mod endpoints;
pub mod object;
pub mod service;

// What this node programs for it.
pub mod cluster;
pub mod conntrack;
pub mod diff;
pub mod ruleset;
pub mod state;

// The kernel.
pub mod codec;
pub mod kernel;

// The loop between both, and where the objects come from.
pub mod reconciler;
pub mod watch;
