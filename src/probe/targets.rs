//! Whom to probe, and as whom.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::model::config::Probe;
use crate::model::lease::Endpoint;
use crate::model::local::Local as NodeLocal;
use crate::model::prefix::Family;

/// All that probing depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// None while paths are not to be probed.
    pub local: Option<Local>,
    /// By the first address of the peer's subnet.
    pub peers: BTreeMap<IpAddr, Target>,
}

/// This node, as its probes show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    pub probe: Probe,
    /// The first addresses of our subnets, one per family.
    pub addresses: BTreeMap<Family, IpAddr>,
    /// The largest packet of pods, in bytes: that of a large probe with its headers.
    pub pod_mtu: u32,
}

/// A peer in one address family, and the ways there are to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub public_ip: IpAddr,
    /// Whether it is on our link.
    pub direct: bool,
    /// Whether its tunnel is one of ours.
    pub tunnel: bool,
    /// Raised where the peer has to be asked anew: that it did not answer before says nothing any more.
    pub round: u32,
}

impl Local {
    /// None while paths are not to be probed.
    pub fn of(local: &NodeLocal, pod_mtu: u32) -> Option<Self> {
        let own = local.own.as_ref()?;
        let probe = local.config.probing()?.clone();
        let address = |endpoint: &Endpoint| (endpoint.subnet.family(), endpoint.subnet.base());
        let addresses = own.endpoints.iter().map(address).collect();
        Some(Self { probe, addresses, pod_mtu })
    }
}

impl Target {
    pub fn of(local: &NodeLocal, endpoint: &Endpoint, round: u32) -> Self {
        let vni = local.config.backend.tunnel.vni;
        let is_ours = |theirs: Option<u32>| theirs.is_none_or(|theirs| theirs == vni);
        Self {
            public_ip: endpoint.public_ip,
            direct: local.node.is_adjacent(endpoint.public_ip),
            tunnel: endpoint.vtep.is_some_and(|vtep| is_ours(vtep.vni)),
            round,
        }
    }
}
