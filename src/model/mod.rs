//! Value types shared by all of tweed: config, leases, this node, kernel entries. No effects.

pub mod checkpoint;
pub mod config;
pub mod entry;
pub mod event;
pub mod json;
pub mod lease;
pub mod measurements;
pub mod node;
pub mod node_inputs;
pub mod path;
pub mod policy;
pub mod prefix;
pub mod probe_secret;
pub mod report;
pub mod status;
