//! The contract between a flannel-compatible daemon and its CNI plugin.

pub mod atomic_file;
pub mod subnet_env;
