//! A lease: which node has which subnet, and how to reach it.

mod index;
mod peers;
#[cfg(test)]
mod tests;
mod validation;

pub use peers::{Absence, Peer, Peers, Withdrawal};
pub use validation::{BadSource, Contested, Rejected, Rules, is_node_address};

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::excerpt;
use crate::mac::MacAddr;
use crate::model::config::BackendType;
use crate::model::prefix::{Family, Prefix};

/// The id of a lease in its store: `10.5.52.0-24`, or a node's name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String")]
pub struct LeaseId(Arc<str>);

/// The length up to which an id is not cut, in bytes: that of the longest Node name.
const LONGEST_ID: usize = 253;

impl LeaseId {
    /// Other programs write the keys of a store. Valid ids are unchanged. An id that is too long or
    /// not printable is cut and escaped, with a checksum so that two such ids stay distinct.
    pub fn new(id: impl Into<Arc<str>>) -> Self {
        let id = id.into();
        if id.len() <= LONGEST_ID && excerpt::is_printable(&id) {
            return Self(id);
        }
        Self(format!("{}#{:08x}", excerpt::value(&id), crc32fast::hash(id.as_bytes())).into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for LeaseId {
    fn from(id: String) -> Self {
        Self::new(id)
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Assigns one subnet per family to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub id: LeaseId,
    /// One per family, IPv4 first.
    pub endpoints: Vec<Endpoint>,
    /// When the store first had it, as a store revision. Of conflicting leases, the older one wins
    /// in most cases.
    pub created: u64,
    /// The store's handle of the lease's term. After a restart, a node recognizes its own lease by
    /// it. None for a reservation, which has no term.
    pub grant: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    pub subnet: Prefix,
    pub public_ip: IpAddr,
    pub backend: PublishedBackend,
    /// The end of its tunnel, if it has one.
    pub vtep: Option<Vtep>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PublishedBackend {
    /// A backend that tweed does not support, by name; empty if the lease has none.
    Other(#[serde(deserialize_with = "excerpt::deserialize")] String),
    #[serde(untagged)]
    Supported(BackendType),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vtep {
    /// None in leases of old versions.
    pub vni: Option<u32>,
    pub mac: MacAddr,
    /// The source address of its packets, if it differs from the public IP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<IpAddr>,
    /// Shows that its node, which is on vxlan, has `Mixed` on. False shows nothing. See
    /// [`Endpoint::is_mixed`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mixed: bool,
}

/// As in `10.244.7.0/24 (172.16.0.7)`.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.subnet, self.public_ip)
    }
}

/// The attributes that a node publishes in its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseAttributes {
    pub backend: BackendType,
    /// One per enabled family, IPv4 first.
    pub endpoints: Vec<EndpointAttributes>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointAttributes {
    pub public_ip: IpAddr,
    pub vtep: Option<Vtep>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub id: LeaseId,
    pub lease: Result<Lease, Malformed>,
}

/// The record is not a lease, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub String);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseUpdate {
    /// All records of the store. Records that are not listed do not exist any more.
    Snapshot(Vec<Record>),
    Put(Record),
    /// The record was removed. Its node may still run: leases expire, and keys are deleted by hand.
    Remove(LeaseId),
    /// The node was deleted, and its record with it.
    DeleteNode(LeaseId),
}

impl Vtep {
    /// The MAC address derived from a public IP: constant across reboots and unique per node.
    pub fn derived_mac(public_ip: IpAddr, vni: u32) -> MacAddr {
        MacAddr::derived_from(&format!("{public_ip} vni {vni}"))
    }
}

impl Endpoint {
    pub fn has_derived_mac(&self) -> bool {
        let derived = |vni| Vtep::derived_mac(self.public_ip, vni);
        self.vtep.is_some_and(|vtep| vtep.vni.map(derived) == Some(vtep.mac))
    }

    /// Whether its lease shows that the node has `Mixed` on, and so accepts packets on either path: a
    /// node on host-gw has a VTEP only then. One on vxlan publishes it if it comes from there.
    pub fn is_mixed(&self) -> bool {
        self.vtep.is_some_and(|vtep| match self.backend.supported() {
            Some(BackendType::HostGw) => true,
            Some(BackendType::Vxlan) => vtep.mixed,
            None => false,
        })
    }

    /// What its node publishes once it has `Mixed` off.
    fn unmixed(&self) -> Self {
        let is_on_vxlan = self.backend.supported() == Some(BackendType::Vxlan);
        let vtep = self.vtep.filter(|_| is_on_vxlan).map(|vtep| Vtep { mixed: false, ..vtep });
        Self { vtep, ..self.clone() }
    }
}

impl Lease {
    /// The status of a record from which no valid lease was ever read.
    pub const fn unreadable(id: LeaseId) -> Self {
        Self { id, endpoints: Vec::new(), created: 0, grant: None }
    }

    pub fn subnets(&self) -> impl Iterator<Item = Prefix> + '_ {
        self.endpoints.iter().map(|endpoint| endpoint.subnet)
    }

    pub fn endpoint(&self, family: Family) -> Option<&Endpoint> {
        self.endpoints.iter().find(|endpoint| endpoint.subnet.family() == family)
    }

    /// What its node publishes once it has `Mixed` off.
    pub fn unmixed(&self) -> Cow<'_, Self> {
        if !self.endpoints.iter().any(Endpoint::is_mixed) {
            return Cow::Borrowed(self);
        }
        let endpoints = self.endpoints.iter().map(Endpoint::unmixed).collect();
        Cow::Owned(Self { endpoints, ..self.clone() })
    }

    /// Whether it is a reservation in which no node has published its backend yet: it only keeps
    /// subnets free, and is no peer. It has an endpoint for each public IP that it is reserved for.
    pub fn is_vacant(&self) -> bool {
        let mut backends = self.endpoints.iter().map(|endpoint| endpoint.backend.as_str());
        self.grant.is_none() && backends.all(str::is_empty)
    }
}

impl LeaseAttributes {
    /// The endpoints that peers see: one per subnet whose family has attributes.
    pub fn published_for(&self, subnets: impl IntoIterator<Item = Prefix>) -> Vec<Endpoint> {
        let endpoint = |subnet: Prefix| {
            let mut published = self.endpoints.iter();
            let EndpointAttributes { public_ip, vtep } =
                *published.find(|it| Family::of(it.public_ip) == subnet.family())?;
            Some(Endpoint { subnet, public_ip, backend: self.backend.into(), vtep })
        };
        subnets.into_iter().filter_map(endpoint).collect()
    }
}

impl PublishedBackend {
    /// The name in leases and annotations.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Supported(backend) => backend.as_str(),
            Self::Other(name) => name,
        }
    }

    /// None if tweed does not support it.
    pub const fn supported(&self) -> Option<BackendType> {
        match self {
            Self::Supported(backend) => Some(*backend),
            Self::Other(_) => None,
        }
    }
}

impl From<&str> for PublishedBackend {
    fn from(name: &str) -> Self {
        let other = || Self::Other(excerpt::value(name));
        BackendType::named(name).map_or_else(other, Self::Supported)
    }
}

impl From<BackendType> for PublishedBackend {
    fn from(backend: BackendType) -> Self {
        Self::Supported(backend)
    }
}
