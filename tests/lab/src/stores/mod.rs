//! Stores of leases: etcd, and an API server of Kubernetes.

pub(crate) mod api_server;
pub(crate) mod etcd;
