//! The contract between a flannel-compatible daemon and its CNI plugin, and the parts of the plugin.

pub mod atomic_file;
pub mod attachment;
pub mod dns;
pub mod error;
pub mod host_local;
pub mod json;
pub mod route;
pub mod subnet_env;
