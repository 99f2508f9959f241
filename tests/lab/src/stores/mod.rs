//! Where leases are kept: etcd, and an API server of Kubernetes.

pub(crate) mod api_server;
pub(crate) mod etcd;
