//! Pure planning: what the kernel should hold, and which operations change it to that.

pub mod allow_list;
pub mod backend;
pub mod config_change;
pub mod desired;
pub mod diff;
pub mod masquerade;
pub mod paths;
pub mod preflight;
pub mod scope;
pub mod trace;
