//! The network config and its validation.

mod pool;
mod probe;
mod rollout;
#[cfg(test)]
mod tests;

pub use pool::{Pool, differing_key};
pub use probe::Probe;
pub use rollout::{Rollout, canonical, share};

use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::excerpt;
use crate::model::json::{Fields, NoObject, WrongType};
use crate::model::prefix::{Family, Prefix};

/// The settings that all nodes of a network share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkConfig {
    /// One per enabled family, IPv4 first.
    pub pools: Vec<Pool>,
    pub backend: BackendConfig,
    /// Whether nodes route to peers of another backend.
    pub mixed: bool,
    #[serde(default)]
    pub probe: Probe,
    /// `EnableNFTables`: whether the operator asks for nftables.
    pub nftables: bool,
    /// `NonMasqueradeCIDRs`: destinations to which pods keep their own addresses.
    #[serde(default)]
    pub non_masquerade: Vec<Prefix>,
    /// Which nodes already use `backend`; none means all.
    pub rollout: Option<Rollout>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigUpdate {
    pub config: Result<NetworkConfig, Unusable>,
    /// The revision in the store; 0 without a config.
    pub revision: u64,
}

/// There is no valid config, and why. Until there is one, the applied config stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(pub String);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendConfig {
    pub kind: BackendType,
    /// The options of the tunnel. With `Mixed`, a `host-gw` node has a tunnel, too.
    pub tunnel: Tunnel,
}

/// How a node sends packets to its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackendType {
    Vxlan,
    HostGw,
}

impl BackendType {
    pub const ALL: [Self; 2] = [Self::Vxlan, Self::HostGw];

    /// The name in config and leases.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Vxlan => "vxlan",
            Self::HostGw => "host-gw",
        }
    }

    /// None if tweed does not support the backend.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|backend| backend.as_str() == name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tunnel {
    pub vni: u32,
    pub port: u16,
    /// The MTU of the outer packets, in bytes; none means that of the external interface.
    pub mtu: Option<u32>,
    pub gbp: bool,
    pub learning: bool,
    /// Whether peers on the same link are reached without the tunnel.
    pub direct_routing: bool,
}

impl Tunnel {
    /// The kernel's default port, which flannel uses unless the config sets one.
    pub const DEFAULT_PORT: u16 = 8472;
    pub const DEFAULT_VNI: u32 = 1;
    const MAX_VNI: u32 = (1 << 24) - 1;
}

/// Why a config is invalid. Each message names the key, its value and what is allowed.
#[derive(Debug, thiserror::Error)]
pub enum Invalid {
    #[error("the network config is not a JSON object: {0}")]
    Json(#[from] NoObject),
    #[error(transparent)]
    Type(#[from] WrongType),
    #[error("{key} is {value}, but must be {expected}")]
    Value { key: &'static str, value: String, expected: String },
    #[error("{key} is missing, but {because} is true")]
    Missing { key: &'static str, because: &'static str },
    #[error("EnableIPv4 and EnableIPv6 are both false, but one of them must be true")]
    NoFamily,
}

impl NetworkConfig {
    /// Parses the JSON that operators write. Keys match in any case; unknown keys are ignored.
    pub fn parse(json: &[u8]) -> Result<Self, Invalid> {
        let fields = Fields::parse(json)?;
        let pools = Family::ALL
            .iter()
            .filter_map(|family| pool::parse(&fields, *family).transpose())
            .collect::<Result<Vec<_>, _>>()?;
        if pools.is_empty() {
            return Err(Invalid::NoFamily);
        }
        let backend = parse_backend(&fields)?;
        let config = Self {
            pools,
            probe: probe::parse(&fields, backend.tunnel.port)?,
            backend,
            mixed: fields.bool("Mixed")?.unwrap_or(false),
            nftables: fields.bool("EnableNFTables")?.unwrap_or(false),
            non_masquerade: parse_prefixes(&fields, "NonMasqueradeCIDRs")?,
            rollout: rollout::parse(&fields)?,
        };
        let mtu = config.backend.tunnel.mtu.filter(|mtu| *mtu < MIN_MTU_OF_IPV6);
        let is_limited = config.has_tunnel() && config.pool(Family::V6).is_some();
        if let Some(mtu) = mtu.filter(|_| is_limited) {
            return Err(wrong("Backend.MTU", mtu, format!("at least {MIN_MTU_OF_IPV6} with IPv6")));
        }
        // Without `Mixed`, nodes with different backends cannot reach each other.
        if config.rollout.is_some() && !config.mixed {
            return Err(wrong("Mixed", false, "true while there is a Rollout".to_owned()));
        }
        Ok(config)
    }

    pub fn pool(&self, family: Family) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.network.family() == family)
    }

    pub fn networks(&self) -> impl Iterator<Item = Prefix> + '_ {
        self.pools.iter().map(|pool| pool.network)
    }

    /// Whether a network contains the subnet.
    pub fn contains(&self, subnet: Prefix) -> bool {
        self.networks().any(|network| network.covers(subnet))
    }

    /// Whether the subnet is one of those that nodes may lease.
    pub fn assigns(&self, subnet: Prefix) -> bool {
        self.pool(subnet.family()).is_some_and(|pool| pool.assigns(subnet))
    }

    /// The backend of the node with these names, see [`Rollout::follows`].
    pub fn kind_of(&self, names: impl IntoIterator<Item = impl ToString>) -> BackendType {
        match &self.rollout {
            Some(rollout) if !rollout.follows(names) => rollout.from,
            Some(_) | None => self.backend.kind,
        }
    }

    /// The config as it applies to the node with these names.
    #[must_use]
    pub fn on_node(mut self, names: impl IntoIterator<Item = impl ToString>) -> Self {
        self.backend.kind = self.kind_of(names);
        self
    }

    /// The probe settings, if paths are probed.
    pub fn probing(&self) -> Option<&Probe> {
        Some(&self.probe).filter(|probe| probe.enabled)
    }

    /// The same, if probes decide between the direct path and the tunnel.
    pub fn comparing(&self) -> Option<&Probe> {
        self.probing().filter(|_| self.mixed)
    }

    pub fn has_tunnel(&self) -> bool {
        self.mixed || self.backend.kind == BackendType::Vxlan
    }
}

fn parse_backend(fields: &Fields) -> Result<BackendConfig, Invalid> {
    let given = fields.object("Backend")?;
    let kind = given.as_ref().map(|backend| parse_kind(backend, "Backend.Type")).transpose()?;
    let tunnel = parse_tunnel(&given.unwrap_or_default())?;
    Ok(BackendConfig { kind: kind.unwrap_or(BackendType::Vxlan), tunnel })
}

fn parse_kind(backend: &Fields, key: &'static str) -> Result<BackendType, Invalid> {
    let expected = || "\"vxlan\" or \"host-gw\"".to_owned();
    let Some(name) = backend.str("Type")?.map(str::to_lowercase) else {
        return Err(wrong(key, "missing", expected()));
    };
    BackendType::named(&name).ok_or_else(|| wrong(key, format!("{name:?}"), expected()))
}

fn parse_tunnel(backend: &Fields) -> Result<Tunnel, Invalid> {
    // 0 stands for the default.
    let given = |key| Ok::<_, Invalid>(backend.u32(key)?.filter(|number| *number != 0));
    let vni = backend.u32("VNI")?.unwrap_or(Tunnel::DEFAULT_VNI);
    let vni = within("Backend.VNI", vni, 0..=Tunnel::MAX_VNI)?;
    let port = given("Port")?.unwrap_or(Tunnel::DEFAULT_PORT.into());
    let port = within("Backend.Port", port, 0..=u16::MAX.into())?;
    let mtu = given("MTU")?.map(|mtu| within("Backend.MTU", mtu, MIN_MTU..=MAX_MTU));
    Ok(Tunnel {
        vni,
        port,
        mtu: mtu.transpose()?,
        gbp: backend.bool("GBP")?.unwrap_or(false),
        learning: backend.bool("Learning")?.unwrap_or(false),
        direct_routing: backend.bool("DirectRouting")?.unwrap_or(false),
    })
}

/// Sorted and without duplicates.
fn parse_prefixes(fields: &Fields, key: &'static str) -> Result<Vec<Prefix>, Invalid> {
    let texts = fields.texts(key)?.unwrap_or_default();
    let expected = || "a list of prefixes like \"10.5.0.0/16\"".to_owned();
    let prefix =
        |text: String| text.parse().map_err(|_| wrong(key, format!("{text:?}"), expected()));
    let prefixes: Result<BTreeSet<Prefix>, Invalid> = texts.into_iter().map(prefix).collect();
    Ok(prefixes?.into_iter().collect())
}

const MIN_MTU: u32 = 576;
/// A link with less than 1280 bytes has no IPv6; outer headers have 70.
const MIN_MTU_OF_IPV6: u32 = 1280 + 70;
const MAX_MTU: u32 = 65_535;

/// The number under `key`, which must be in `range`.
fn within<T: TryFrom<u32>>(
    key: &'static str,
    number: u32,
    range: RangeInclusive<u32>,
) -> Result<T, Invalid> {
    let (from, to) = (range.start(), range.end());
    let expected =
        || if *from == 0 { format!("at most {to}") } else { format!("from {from} to {to}") };
    let found = number.try_into().ok().filter(|_| range.contains(&number));
    found.ok_or_else(|| wrong(key, number, expected()))
}

fn wrong(key: &'static str, value: impl Display, expected: String) -> Invalid {
    Invalid::Value { key, value: excerpt::value(&value.to_string()), expected }
}
