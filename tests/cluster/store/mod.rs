//! Faults of etcd, and Kubernetes as the store.

mod gap;
mod kube;
mod outage;
