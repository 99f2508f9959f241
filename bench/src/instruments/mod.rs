//! The instruments: peers in etcd, a node with a daemon, and a listener on its kernel.

pub(crate) mod listener;
pub(crate) mod peer;
pub(crate) mod script;
pub(crate) mod site;
pub(crate) mod writer;
