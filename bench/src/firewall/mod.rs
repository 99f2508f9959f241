//! The cost of rules: masquerading, and the guard of the tunnel.

pub(crate) mod guard;
pub(crate) mod masquerade;
