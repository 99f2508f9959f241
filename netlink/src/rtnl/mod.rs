//! Routing netlink: links, addresses, neighbours, routes.

pub mod address;
pub mod link;
pub mod neighbour;
pub mod route;

pub use neighbour::{NextHops, Resolution};
