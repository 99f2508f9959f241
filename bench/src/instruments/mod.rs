//! The instruments: peers in etcd, a node with a daemon, a listener on its kernel, and a relay.

pub(crate) mod listener;
pub(crate) mod peer;
pub(crate) mod relay;
pub(crate) mod script;
pub(crate) mod site;
pub(crate) mod writer;
