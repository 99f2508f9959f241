//! Namespaces and their connections: wires, segments, routers, addresses.

pub(crate) mod address;
pub(crate) mod http;
pub(crate) mod namespace;
pub(crate) mod pod;
pub(crate) mod router;
pub(crate) mod segment;
pub(crate) mod wire;
