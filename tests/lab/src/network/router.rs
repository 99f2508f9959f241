//! A router that joins segments.

use anyhow::Result;

use crate::network::namespace::Namespace;
use crate::network::segment::Segment;
use crate::network::wire::Wire;

/// A namespace with a device on each segment (`eth0`, `eth1`, …), forwarding both families.
#[derive(Clone, Debug)]
pub struct Router {
    namespace: Namespace,
    wires: Vec<Wire>,
}

impl Router {
    pub(crate) fn build(namespace: Namespace, segments: &[&Segment]) -> Result<Self> {
        forward(&namespace)?;
        let join = |(index, segment): (usize, &&Segment)| {
            segment.join_router(&namespace, &format!("eth{index}"))
        };
        let wires = segments.iter().enumerate().map(join).collect::<Result<_>>()?;
        Ok(Self { namespace, wires })
    }

    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// One per segment, in the order given.
    pub fn wires(&self) -> &[Wire] {
        &self.wires
    }
}

/// Enables forwarding, and makes addresses usable at once.
pub(crate) fn forward(namespace: &Namespace) -> Result<()> {
    let settings = [
        ("net.ipv4.ip_forward", "1"),
        ("net.ipv6.conf.all.forwarding", "1"),
        ("net.ipv6.conf.all.accept_dad", "0"),
        ("net.ipv6.conf.default.accept_dad", "0"),
        ("net.ipv6.conf.default.router_solicitations", "0"),
    ];
    settings.iter().try_for_each(|(key, value)| namespace.set_sysctl(key, value))
}
