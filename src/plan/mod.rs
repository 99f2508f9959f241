//! Every decision, as functions of values: what the kernel should hold, and what to change for it.

pub mod allow_list;
pub mod backend;
pub mod config_change;
pub mod desired;
pub mod diff;
pub mod masquerade;
pub mod paths;
pub mod preflight;
pub mod scope;
