//! Other documents in etcd: the config, reports of nodes, the secret of probes.

mod network_config;
mod node_report;
mod operator;
mod probe_secret;
mod reservation;
