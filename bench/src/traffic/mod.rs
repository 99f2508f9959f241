//! The effects on pods: the path between nodes, and packets that changes and faults cost.

pub(crate) mod data_path;
pub(crate) mod faults;
pub(crate) mod migration;
pub(crate) mod probes;
pub(crate) mod replacement;
