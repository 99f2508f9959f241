//! Services, endpoint slices and Nodes: what is used of them, and where they come from.

pub mod endpoints;
pub mod object;
pub mod service;
pub mod watch;
