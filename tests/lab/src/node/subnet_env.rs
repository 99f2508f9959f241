//! The fields of the file `subnet.env` that the lab reads and writes.

use std::fmt::{Display, Formatter};
use std::str::FromStr;

use anyhow::{Context, Result};
use ipnetwork::IpNetwork;

use crate::network::address::Family;

/// What a daemon publishes for the pods of its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubnetEnv {
    /// `FLANNEL_NETWORK` and `FLANNEL_IPV6_NETWORK`, if present.
    pub networks: Vec<IpNetwork>,
    /// `FLANNEL_SUBNET` and `FLANNEL_IPV6_SUBNET`: the bridge's address with the subnet's length.
    pub gateways: Vec<IpNetwork>,
    pub mtu: u32,
    pub masquerade: bool,
}

impl SubnetEnv {
    /// The subnet of a family: `10.244.3.0/24` if the gateway is `10.244.3.1/24`.
    pub fn subnet(&self, family: Family) -> Option<IpNetwork> {
        self.subnets().into_iter().find(|subnet| Family::of(subnet.ip()) == family)
    }

    pub fn subnets(&self) -> Vec<IpNetwork> {
        self.gateways.iter().map(base).collect()
    }
}

impl FromStr for SubnetEnv {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let value = |key: &str| {
            let pairs = text.lines().filter_map(|line| line.split_once('='));
            pairs.filter(|(name, _)| *name == key).map(|(_, value)| value).next_back()
        };
        let prefixes = |v4, v6| -> Result<Vec<IpNetwork>> {
            let values = [value(v4), value(v6)].into_iter().flatten();
            values.map(|value| value.parse().with_context(|| value.to_owned())).collect()
        };
        Ok(Self {
            networks: prefixes("FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK")?,
            gateways: prefixes("FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET")?,
            mtu: value("FLANNEL_MTU").context("FLANNEL_MTU is missing")?.parse()?,
            masquerade: value("FLANNEL_IPMASQ").context("FLANNEL_IPMASQ is missing")?.parse()?,
        })
    }
}

impl Display for SubnetEnv {
    fn fmt(&self, out: &mut Formatter<'_>) -> std::fmt::Result {
        for (network, gateway) in self.networks.iter().zip(&self.gateways) {
            let infix = if gateway.is_ipv4() { "" } else { "IPV6_" };
            writeln!(out, "FLANNEL_{infix}NETWORK={network}")?;
            writeln!(out, "FLANNEL_{infix}SUBNET={gateway}")?;
        }
        writeln!(out, "FLANNEL_MTU={}", self.mtu)?;
        writeln!(out, "FLANNEL_IPMASQ={}", self.masquerade)
    }
}

fn base(gateway: &IpNetwork) -> IpNetwork {
    // The length comes from a valid prefix, so the fallback is never taken.
    IpNetwork::new(gateway.network(), gateway.prefix()).unwrap_or(*gateway)
}
