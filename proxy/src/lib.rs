//! A service proxy: Services and `EndpointSlices` become elements of nftables sets.
//!
//! `desired = plan(services, endpoints)`, `apply(diff(desired, actual))`: the chains stay as they are,
//! and a change of one endpoint is a change of two to five elements of each frontend.

pub mod state;

pub mod objects;
pub mod plan;

pub mod kernel;

// The loop between all of these.
pub mod reconciler;
