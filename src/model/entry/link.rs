//! Network devices and their names.

use std::cmp::Ordering;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Key, KeyRef, Kind, Ownership, write_option};
use crate::mac::MacAddr;
use crate::model::prefix::Family;

/// A network device of tweed, or a foreign one with the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub name: LinkName,
    pub kind: LinkKind,
    /// In bytes.
    pub mtu: u32,
    pub mac: MacAddr,
    pub up: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkKind {
    Vxlan(Box<Vxlan>),
    /// Any other kind, by its kernel name.
    Other(String),
}

/// The attributes of a VXLAN device that flannel sets or compares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vxlan {
    pub vni: u32,
    /// None if the device that it was bound to was removed.
    pub underlay: Option<LinkName>,
    pub local: Option<IpAddr>,
    pub port: u16,
    pub learning: bool,
    pub gbp: bool,
    /// The multicast group or default destination; never set by tweed.
    pub group: Option<IpAddr>,
    /// Whether the kernel asks user space for unknown destinations; never set by tweed.
    pub l2miss: bool,
}

const LOOPBACK: &str = "lo";
/// The bridge that the CNI plugin connects pods to.
pub const POD_BRIDGE: &str = "cni0";

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LinkName(Arc<str>);

impl LinkName {
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    pub fn loopback() -> Self {
        Self::new(LOOPBACK)
    }

    pub fn is_loopback(&self) -> bool {
        self.as_str() == LOOPBACK
    }

    /// Flannel's name for the tunnel device.
    pub fn tunnel(family: Family, vni: u32) -> Self {
        Self::new(format!("{}{vni}", tunnel_stem(family)))
    }

    pub fn is_tunnel(&self) -> bool {
        Family::ALL.iter().any(|family| self.is_tunnel_of(*family))
    }

    pub fn is_tunnel_of(&self, family: Family) -> bool {
        self.as_str().starts_with(tunnel_stem(family))
    }

    /// Whether its reverse-path filter can drop packets of pods with addresses of these families: it
    /// exists for IPv4 only.
    pub fn filters(&self, mut families: impl Iterator<Item = Family>) -> bool {
        families.any(|family| family == Family::V4) && !self.is_tunnel_of(Family::V6)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The part of the name before the VNI.
const fn tunnel_stem(family: Family) -> &'static str {
    match family {
        Family::V4 => "flannel.",
        Family::V6 => "flannel-v6.",
    }
}

impl Kind for Link {
    const LOCAL: bool = true;
    const OWNERSHIP: Ownership = Ownership::Unmarked;

    fn key_ref(&self) -> KeyRef<'_> {
        Key::Link(&self.name)
    }
}

impl fmt::Display for LinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.up { "up" } else { "down" };
        write!(f, "link {} {state} mtu {} address {} {}", self.name, self.mtu, self.mac, self.kind)
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vxlan(vxlan) => vxlan.fmt(f),
            Self::Other(kind) => write!(f, "type {kind}"),
        }
    }
}

impl fmt::Display for Vxlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "type vxlan id {}", self.vni)?;
        write_option(f, "remote", self.group)?;
        write_option(f, "local", self.local)?;
        write_option(f, "dev", self.underlay.as_ref())?;
        write!(f, " dstport {}", self.port)?;
        f.write_str(if self.learning { " learning" } else { " nolearning" })?;
        f.write_str(if self.l2miss { " l2miss" } else { "" })?;
        f.write_str(if self.gbp { " gbp" } else { "" })
    }
}

/// Most comparisons are of the same shared allocation, so pointers are compared first.
impl Ord for LinkName {
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.cmp(&other.0) }
    }
}

impl PartialOrd for LinkName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
