//! A lease: who holds which subnet, and how to reach it.

mod belief;
mod index;
mod peers;
#[cfg(test)]
mod tests;

pub use belief::{BadSource, Contested, Rejected, Rules};
pub use peers::{Absence, Peer, Peers, Withdrawal};

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::excerpt;
use crate::mac::MacAddr;
use crate::model::config::BackendType;
use crate::model::prefix::{Family, Prefix};

/// What a lease is called in its store: `10.5.52.0-24`, or a node's name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String")]
pub struct LeaseId(Arc<str>);

/// The longest id that is kept as it is, in bytes: the longest name of a Node has as many.
const LONGEST_ID: usize = 253;

impl LeaseId {
    /// Keys are written by others: no legal one is changed, and what is too long or not printable
    /// is cut and escaped, with a checksum that keeps two such ids apart.
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

/// The right of one node to one subnet of each family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub id: LeaseId,
    /// One per family, IPv4 first.
    pub endpoints: Vec<Endpoint>,
    /// When the store first saw it, in the store's own count: it decides some conflicts.
    pub created: u64,
    /// The store's handle of the lease's term, by which its holder proves after a restart that it
    /// is its own; none for a reservation, which has no term.
    pub grant: Option<i64>,
}

/// One address family of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    pub subnet: Prefix,
    pub public_ip: IpAddr,
    /// The backend that the node says it uses.
    pub backend: PublishedBackend,
    /// Where its tunnel ends, if it has one.
    pub vtep: Option<Vtep>,
}

/// The backend that a lease names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PublishedBackend {
    /// One that tweed does not support, by its name; empty if the lease names none.
    Other(#[serde(deserialize_with = "excerpt::deserialize")] String),
    #[serde(untagged)]
    Supported(BackendType),
}

/// The end of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vtep {
    /// Old peers do not say.
    pub vni: Option<u32>,
    pub mac: MacAddr,
    /// Where its packets come from, if that is another address than the public IP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<IpAddr>,
}

/// What a node publishes about itself in its lease.
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

/// What a store holds under one id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub id: LeaseId,
    pub lease: Result<Lease, Malformed>,
}

/// A record that is no lease, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub String);

/// A change to the set of leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseUpdate {
    /// All records there are; those not named are gone.
    Snapshot(Vec<Record>),
    /// A record is new or has changed.
    Put(Record),
    /// The record was removed. Its node may run: terms end, and keys are deleted by hand.
    Remove(LeaseId),
    /// The node itself was deleted, and its record with it.
    DeleteNode(LeaseId),
}

impl Vtep {
    /// The MAC address of a node with this public IP: the same after every reboot, and no other node's.
    pub fn derived_mac(public_ip: IpAddr, vni: u32) -> MacAddr {
        MacAddr::derived_from(&format!("{public_ip} vni {vni}"))
    }
}

impl Endpoint {
    /// Whether its VTEP has the MAC address that belongs to its public IP.
    pub fn has_derived_mac(&self) -> bool {
        let derived = |vtep: &Vtep| Some(Vtep::derived_mac(self.public_ip, vtep.vni?));
        self.vtep.is_some_and(|vtep| derived(&vtep) == Some(vtep.mac))
    }
}

impl Lease {
    /// What can be said of a record from which no lease could ever be read.
    pub const fn unreadable(id: LeaseId) -> Self {
        Self { id, endpoints: Vec::new(), created: 0, grant: None }
    }

    pub fn subnets(&self) -> impl Iterator<Item = Prefix> + '_ {
        self.endpoints.iter().map(|endpoint| endpoint.subnet)
    }

    pub fn endpoint(&self, family: Family) -> Option<&Endpoint> {
        self.endpoints.iter().find(|endpoint| endpoint.subnet.family() == family)
    }
}

impl LeaseAttributes {
    /// What peers see of `subnets`: an endpoint for each whose family has attributes.
    pub fn published_for(&self, subnets: impl IntoIterator<Item = Prefix>) -> Vec<Endpoint> {
        let of_family = |family| {
            let mut all = self.endpoints.iter();
            all.find(|published| Family::of(published.public_ip) == family)
        };
        let endpoints = subnets.into_iter().filter_map(|subnet| {
            let published = of_family(subnet.family())?;
            Some(Endpoint {
                subnet,
                public_ip: published.public_ip,
                backend: self.backend.into(),
                vtep: published.vtep,
            })
        });
        endpoints.collect()
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
