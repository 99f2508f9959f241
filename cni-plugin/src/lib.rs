//! The contract between a flannel-compatible daemon and its CNI plugin, and the parts of the plugin.

use tweed_netlink::excerpt;

// What a runtime says.
pub mod attachment;
pub mod error;
pub mod error_report;
pub mod json;
pub mod network_config;
pub mod request;
mod runtime_cache;
pub mod version;

// What the daemon says.
pub mod atomic_file;
mod daemon;
pub mod subnet_env;
mod subnet_file;

// What is made of it.
pub mod delegate;
pub mod dns;
pub mod result;
pub mod route;
pub mod state;
pub mod verbs;

// Who does it.
mod bridge;
mod exec;
pub mod host_local;
pub mod install;
pub mod pods;

// The kernel's edge, and that of the disk.
mod deadline;
mod lock;
mod netns;
mod plain_file;
mod room;
