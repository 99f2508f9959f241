//! The module tree as a map: read it from top to bottom, in the direction of the data.

pub mod backoff;
pub mod config;
pub mod json;
pub mod lease;
pub mod mac;
pub mod node;
pub mod prefix;
pub mod subnet;
// pub mod backend;
pub mod kernel;
