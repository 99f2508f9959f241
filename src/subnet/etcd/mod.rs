//! Subnets from etcd v3, in flannel's keys and values.

pub mod key;
pub mod value;
