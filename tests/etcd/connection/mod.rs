//! Connections to etcd: several servers, TLS, users.

mod auth;
mod failover;
mod tls;
