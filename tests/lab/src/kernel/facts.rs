//! The state of a node's kernel, read for assertions.

use std::fmt::{Display, Formatter};
use std::net::IpAddr;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::network::address::{Address, Family};
use crate::node::Node;

/// A route, as `ip route` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Route {
    /// `default`, an address or a prefix.
    #[serde(rename = "dst")]
    pub destination: String,
    pub gateway: Option<IpAddr>,
    pub dev: Option<String>,
    /// A name or a number: `boot`, `static`, `241`.
    pub protocol: Option<String>,
    pub metric: Option<u32>,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The nexthop object, if the route uses one.
    pub nhid: Option<u32>,
    #[serde(default)]
    flags: Vec<String>,
}

impl Route {
    pub fn onlink(&self) -> bool {
        self.flags.iter().any(|flag| flag == "onlink")
    }
}

/// A nexthop object, as `ip nexthop` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Nexthop {
    pub id: u32,
    pub gateway: Option<IpAddr>,
    pub dev: Option<String>,
    /// A name or a number: `zebra`, `241`.
    pub protocol: Option<String>,
    #[serde(default)]
    flags: Vec<String>,
}

impl Nexthop {
    pub fn onlink(&self) -> bool {
        self.flags.iter().any(|flag| flag == "onlink")
    }
}

/// A neighbour (ARP or ND), as `ip neigh` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Neighbour {
    #[serde(rename = "dst")]
    pub address: IpAddr,
    pub dev: String,
    #[serde(rename = "lladdr")]
    pub mac: Option<String>,
    #[serde(default)]
    pub state: Vec<String>,
}

impl Neighbour {
    pub fn is_permanent(&self) -> bool {
        self.state.iter().any(|state| state == "PERMANENT")
    }
}

/// An entry of a forwarding database, as `bridge fdb` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Fdb {
    pub mac: String,
    #[serde(rename = "ifname")]
    pub dev: String,
    #[serde(rename = "dst")]
    pub remote: Option<IpAddr>,
    pub state: Option<String>,
}

/// A device, as `ip -d link` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    pub mac: String,
    pub mtu: u32,
    pub up: bool,
    pub vxlan: Option<Vxlan>,
}

/// The settings of a VXLAN device.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Vxlan {
    pub id: u32,
    pub port: u16,
    pub learning: bool,
    /// The underlying device.
    pub link: Option<String>,
    #[serde(alias = "local6")]
    pub local: Option<IpAddr>,
}

/// The path of packets to a peer's subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Path {
    /// Through the underlay, not encapsulated.
    Direct,
    /// Through a device whose name begins with `flannel`.
    Tunnel,
    None,
}

impl Display for Path {
    fn fmt(&self, out: &mut Formatter<'_>) -> std::fmt::Result {
        out.pad(match self {
            Self::Direct => "direct",
            Self::Tunnel => "tunnel",
            Self::None => "none",
        })
    }
}

impl Node {
    /// Every route of the main table.
    pub fn routes(&self, family: Family) -> Result<Vec<Route>> {
        self.namespace().ip_json(&format!("-details {} route show", family.flag()))
    }

    /// Every nexthop object.
    pub fn nexthops(&self) -> Result<Vec<Nexthop>> {
        self.namespace().ip_json("-details nexthop show")
    }

    /// The route of the main table to exactly this prefix, if there is one.
    pub fn route_to(&self, prefix: impl Display) -> Result<Option<Route>> {
        Ok(self.routes_to(prefix)?.into_iter().next())
    }

    /// More than one if they differ in metric.
    pub fn routes_to(&self, prefix: impl Display) -> Result<Vec<Route>> {
        let prefix = prefix.to_string();
        let family = if prefix.contains(':') { Family::V6 } else { Family::V4 };
        let show = format!("-details {} route show exact {prefix}", family.flag());
        self.namespace().ip_json(&show)
    }

    pub fn path_to(&self, prefix: impl Display) -> Result<Path> {
        let route = self.route_to(prefix)?;
        Ok(match route.and_then(|route| route.dev) {
            Some(dev) if dev.starts_with("flannel") => Path::Tunnel,
            Some(_) => Path::Direct,
            None => Path::None,
        })
    }

    /// Empty if the device does not exist.
    pub fn neighbours(&self, dev: &str) -> Result<Vec<Neighbour>> {
        let mut all: Vec<Neighbour> = self.namespace().ip_json("neighbour show")?;
        all.retain(|neighbour| neighbour.dev == dev);
        Ok(all)
    }

    /// Empty if the device does not exist.
    pub fn fdb(&self, dev: &str) -> Result<Vec<Fdb>> {
        let mut all: Vec<Fdb> = self.namespace().bridge_json("fdb show")?;
        all.retain(|entry| entry.dev == dev);
        Ok(all)
    }

    pub fn links(&self) -> Result<Vec<Link>> {
        let all: Vec<LinkJson> = self.namespace().ip_json("-details link show")?;
        all.into_iter().map(Link::try_from).collect()
    }

    pub fn link(&self, dev: &str) -> Result<Option<Link>> {
        Ok(self.links()?.into_iter().find(|link| link.name == dev))
    }

    /// Empty if the device does not exist.
    pub fn addresses(&self, dev: &str) -> Result<Vec<Address>> {
        self.namespace().addresses(dev)
    }
}

#[derive(Deserialize)]
struct LinkJson {
    ifindex: u32,
    ifname: String,
    address: String,
    mtu: u32,
    flags: Vec<String>,
    linkinfo: Option<LinkInfo>,
}

#[derive(Deserialize)]
struct LinkInfo {
    info_kind: Option<String>,
    info_data: Option<serde_json::Value>,
}

impl TryFrom<LinkJson> for Link {
    type Error = anyhow::Error;

    fn try_from(json: LinkJson) -> Result<Self> {
        let vxlan = match json.linkinfo {
            Some(LinkInfo { info_kind: Some(kind), info_data: Some(data) }) if kind == "vxlan" => {
                Some(
                    serde_json::from_value(data)
                        .context("reading the settings of a vxlan device")?,
                )
            }
            _ => None,
        };
        let up = json.flags.iter().any(|flag| flag == "UP");
        let (index, name, mac, mtu) = (json.ifindex, json.ifname, json.address, json.mtu);
        Ok(Self { index, name, mac, mtu, up, vxlan })
    }
}
