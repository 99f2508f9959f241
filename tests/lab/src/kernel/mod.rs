//! The state and notifications of a node's kernel, and the paths between nodes.

pub(crate) mod facts;
pub(crate) mod matrix;
pub(crate) mod monitor;
pub(crate) mod snapshot;
