//! What the kernel of a node holds and reports, and which paths there are between nodes.

pub(crate) mod facts;
pub(crate) mod matrix;
pub(crate) mod monitor;
pub(crate) mod snapshot;
