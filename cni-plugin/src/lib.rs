//! The contract between a flannel-compatible daemon and its CNI plugin, and the parts of the plugin.

use tweed_netlink::excerpt;

pub mod verbs;

pub mod bridge;
pub mod delegate;
pub mod host_local;
pub mod install;
pub mod state;

mod daemon;
mod deadline;
pub mod disk;
pub mod netns;
pub mod protocol;
pub mod subnet_env;
