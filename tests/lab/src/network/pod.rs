//! A pod: a namespace behind the bridge `cni0` of its node.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use ipnetwork::IpNetwork;

use crate::network::address::Family;
use crate::network::namespace::Namespace;
use crate::wait::{PATIENCE, eventually};

/// A pod that exists. A cheap handle.
#[derive(Clone, Debug)]
pub struct Pod {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    node: String,
    label: String,
    namespace: Namespace,
    addresses: Vec<IpNetwork>,
}

impl Pod {
    /// Pod number `number` of `node`.
    pub(crate) fn new(
        node: &str,
        number: u32,
        namespace: Namespace,
        addresses: Vec<IpNetwork>,
    ) -> Self {
        let node = node.to_owned();
        let label = if number == 1 { node.clone() } else { format!("{node}.{number}") };
        Self { inner: Arc::new(Inner { node, label, namespace, addresses }) }
    }

    /// A pod that a runtime has started.
    pub(crate) fn adopted(
        node: &str,
        label: &str,
        namespace: Namespace,
        addresses: Vec<IpNetwork>,
    ) -> Self {
        let (node, label) = (node.to_owned(), label.to_owned());
        Self { inner: Arc::new(Inner { node, label, namespace, addresses }) }
    }

    /// The name of the node that the pod runs on.
    pub fn node(&self) -> &str {
        &self.inner.node
    }

    /// Short and unique in the lab: the name of the node, for all but the first pod with a number.
    pub fn label(&self) -> &str {
        &self.inner.label
    }

    pub fn namespace(&self) -> &Namespace {
        &self.inner.namespace
    }

    pub fn address(&self, family: Family) -> Result<IpAddr> {
        let mut addresses = self.inner.addresses.iter().map(IpNetwork::ip);
        let found = addresses.find(|address| Family::of(*address) == family);
        found.with_context(|| format!("{} has no {family:?} address", self.namespace().name()))
    }

    pub fn families(&self) -> Vec<Family> {
        self.inner.addresses.iter().map(|address| Family::of(address.ip())).collect()
    }

    /// One ICMP echo with `payload` bytes that must not be fragmented, answered within a second.
    pub fn ping(&self, address: IpAddr, payload: u32) -> Result<()> {
        let (address, payload) = (address.to_string(), payload.to_string());
        let once = ["-n", "-q", "-c1", "-W1", "-Mdo", "-s", &payload, &address];
        self.namespace().run("ping", &once).map(drop)
    }

    /// As [`ping`](Self::ping), until one is answered: a busy machine answers some too late.
    pub fn reaches(&self, address: IpAddr, payload: u32) -> Result<()> {
        eventually(PATIENCE, || self.ping(address, payload)).map(drop)
    }
}
