//! The modules in the order of their imports: each uses those above it, and none below.

// Values and decisions: no clock, no file, no socket.
pub mod model;
pub mod plan;

// The edges: etcd and Kubernetes,
pub mod store;

// the kernel,
pub mod kernel;

// and other daemons.
pub mod probe;

// The loop between them.
pub mod control;

// The programs: `tweedd` and `tweedctl`.
pub mod daemon;
pub mod operator;

pub use tweed_client::random;
pub use tweed_netlink::{excerpt, mac};
