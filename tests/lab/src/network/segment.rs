//! A layer-2 segment: a bridge in its own namespace, with prefixes to take addresses from.

use std::str::FromStr;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use ipnetwork::IpNetwork;

use crate::network::address::{Family, nth};
use crate::network::namespace::Namespace;
use crate::network::wire::Wire;
use crate::wait::lock;

const FIRST_ROUTER: u32 = 1;
const FIRST_HOST: u32 = 11;

/// The plan of a segment: `SegmentPlan::new("10.99.1.0/24").and("fd99:1::/64").mtu(9000)`.
#[derive(Clone, Debug)]
pub struct SegmentPlan {
    prefixes: Vec<String>,
    mtu: u32,
}

impl SegmentPlan {
    pub fn new(prefix: &str) -> Self {
        Self { prefixes: vec![prefix.to_owned()], mtu: 1500 }
    }

    /// A second prefix, usually of the other family.
    #[must_use]
    pub fn and(mut self, prefix: &str) -> Self {
        self.prefixes.push(prefix.to_owned());
        self
    }

    #[must_use]
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = mtu;
        self
    }
}

impl From<&str> for SegmentPlan {
    fn from(prefix: &str) -> Self {
        Self::new(prefix)
    }
}

/// A segment. A cheap handle.
#[derive(Clone, Debug)]
pub struct Segment {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    switch: Namespace,
    prefixes: Vec<IpNetwork>,
    mtu: u32,
    population: Mutex<Population>,
}

#[derive(Debug)]
struct Population {
    next_router: u32,
    next_host: u32,
    gateways: Vec<IpNetwork>,
    hosts: Vec<Namespace>,
}

impl Segment {
    pub(crate) fn build(plan: &SegmentPlan, switch: Namespace) -> Result<Self> {
        let parse = |text: &String| IpNetwork::from_str(text).with_context(|| text.clone());
        let prefixes = plan.prefixes.iter().map(parse).collect::<Result<_>>()?;
        switch.set_sysctl("net.ipv6.conf.default.disable_ipv6", "1")?;
        switch.ip_batch(&format!(
            "link add br0 type bridge forward_delay 0 mcast_snooping 0\n\
             link set br0 mtu {} up\n",
            plan.mtu
        ))?;
        let (gateways, hosts) = (Vec::new(), Vec::new());
        let population =
            Population { next_router: FIRST_ROUTER, next_host: FIRST_HOST, gateways, hosts };
        let population = Mutex::new(population);
        Ok(Self { inner: Arc::new(Inner { switch, prefixes, mtu: plan.mtu, population }) })
    }

    pub fn mtu(&self) -> u32 {
        self.inner.mtu
    }

    pub fn prefixes(&self) -> &[IpNetwork] {
        &self.inner.prefixes
    }

    /// The namespace of the bridge.
    pub fn switch(&self) -> &Namespace {
        &self.inner.switch
    }

    /// Joins a namespace as an ordinary host: next free address, no route beyond the segment.
    pub(crate) fn join(&self, namespace: &Namespace, device: &str) -> Result<Wire> {
        let index = {
            let mut population = lock(&self.inner.population);
            population.next_host += 1;
            population.next_host - 1
        };
        self.connect(namespace, device, index)
    }

    /// Like [`join`](Self::join), with a default route if the segment has a router.
    pub(crate) fn join_routed(&self, namespace: &Namespace, device: &str) -> Result<Wire> {
        let wire = self.join(namespace, device)?;
        let mut population = lock(&self.inner.population);
        population.hosts.push(namespace.clone());
        default_routes(namespace, &population.gateways)?;
        Ok(wire)
    }

    /// Joins a router; the first one of a segment becomes the default gateway of its hosts.
    pub(crate) fn join_router(&self, namespace: &Namespace, device: &str) -> Result<Wire> {
        let mut population = lock(&self.inner.population);
        let wire = self.connect(namespace, device, population.next_router)?;
        population.next_router += 1;
        if population.gateways.is_empty() {
            population.gateways.clone_from(&wire.addresses);
            population.hosts.iter().try_for_each(|host| default_routes(host, &wire.addresses))?;
        }
        Ok(wire)
    }

    fn connect(&self, namespace: &Namespace, device: &str, index: u32) -> Result<Wire> {
        let inner = &self.inner;
        let port = format!("port{index}");
        let addresses = inner.prefixes.iter().map(|prefix| nth(*prefix, index));
        let addresses = addresses.collect::<Result<_>>()?;
        Wire::plug((&inner.switch, port), (namespace, device), inner.mtu, addresses)
    }
}

fn default_routes(host: &Namespace, gateways: &[IpNetwork]) -> Result<()> {
    gateways.iter().try_for_each(|gateway| {
        let family = Family::of(gateway.ip()).flag();
        host.ip(&format!("{family} route replace default via {}", gateway.ip()))?;
        Ok(())
    })
}
