//! How fast a daemon learns of peers and programs them: starts, events, flips and audits, with etcd
//! and with Kubernetes; and how fast an operator sees all nodes.

pub(crate) mod audit;
pub(crate) mod cold_start;
pub(crate) mod flannel;
pub(crate) mod kubernetes;
pub(crate) mod latency;
pub(crate) mod mass_flip;
pub(crate) mod nodes;
pub(crate) mod probe_cost;
pub(crate) mod reports;
pub(crate) mod storm;
