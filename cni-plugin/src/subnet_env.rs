//! subnet.env: the subnets and settings of this node's pods, written by the daemon, read by the CNI plugin.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use ipnetwork::IpNetwork;
use tweed_netlink::Family;

use crate::disk::plain_file::{self, Symlink};
use crate::disk::{self, atomic_file};
use crate::excerpt;

const NETWORK: &str = "FLANNEL_NETWORK";
const SUBNET: &str = "FLANNEL_SUBNET";
const IPV6_NETWORK: &str = "FLANNEL_IPV6_NETWORK";
const IPV6_SUBNET: &str = "FLANNEL_IPV6_SUBNET";
const MTU: &str = "FLANNEL_MTU";
const IPMASQ: &str = "FLANNEL_IPMASQ";
const KEYS: [&str; 6] = [NETWORK, SUBNET, IPV6_NETWORK, IPV6_SUBNET, MTU, IPMASQ];

/// No subnet.env is longer, in bytes.
const LONGEST: u64 = 1 << 16;

/// The content of subnet.env.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SubnetEnv {
    /// Where pods live, cluster-wide; IPv4 before IPv6.
    pub networks: Vec<IpNetwork>,
    /// At most one per family, IPv4 first, each as the [`gateway`] address with its length.
    pub subnets: Vec<IpNetwork>,
    /// Bytes.
    pub mtu: u32,
    /// Whether the daemon masquerades; the plugin does it otherwise.
    pub ip_masq: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum SubnetEnvError {
    /// The wording is what people search their logs for.
    #[error("open {}: no such file or directory", path.display())]
    Absent { path: PathBuf },
    #[error("reading {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is not a subnet file", path.display())]
    Malformed { path: PathBuf, source: Malformed },
}

/// Why a text is not a subnet.env; lines count from 1.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Malformed {
    #[error("line {line}: {key} has no value")]
    NoValue { line: usize, key: &'static str },
    #[error("line {line}: {key} is {value:?}, not {wanted}")]
    BadValue { line: usize, key: &'static str, value: String, wanted: &'static str },
    #[error("missing {}", .0.join(", "))]
    Missing(Vec<&'static str>),
}

impl SubnetEnv {
    /// The exact bytes that flanneld writes.
    pub fn render(&self) -> String {
        let networks = |family| listed(&self.networks, family);
        let subnets = |family| listed(&self.subnets, family);
        let values = [
            (NETWORK, networks(Family::V4)),
            (SUBNET, subnets(Family::V4)),
            (IPV6_NETWORK, networks(Family::V6)),
            (IPV6_SUBNET, subnets(Family::V6)),
            (MTU, self.mtu.to_string()),
            (IPMASQ, self.ip_masq.to_string()),
        ];
        let lines = values.iter().filter(|(_, value)| !value.is_empty());
        lines.map(|(key, value)| [key, "=", value, "\n"].concat()).collect()
    }

    /// Reads what the plugin would accept: plain `KEY=value`, no quotes, the last of equal keys.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let mut values = Values::default();
        for (index, line) in text.lines().enumerate() {
            values.read_line(index + 1, line)?;
        }
        values.complete()
    }

    pub fn read(path: &Path) -> Result<Self, SubnetEnvError> {
        let text = read_text(path).map_err(|source| unreadable(path, source))?;
        Self::parse(&text).map_err(|source| SubnetEnvError::Malformed { path: path.into(), source })
    }

    /// Replaces the file at once, readable for all users; an error names `path`.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        atomic_file::write(path, &[self.render().as_bytes()], 0o644)
    }
}

/// The address of the node's bridge in `subnet`: the one after its base.
pub fn gateway(subnet: IpNetwork) -> IpNetwork {
    let address = match subnet.network() {
        IpAddr::V4(base) => IpAddr::V4(Ipv4Addr::from_bits(base.to_bits().saturating_add(1))),
        IpAddr::V6(base) => IpAddr::V6(Ipv6Addr::from_bits(base.to_bits().saturating_add(1))),
    };
    IpNetwork::new(address, subnet.prefix()).unwrap_or(subnet)
}

/// The subnets that this node had, base addresses, at most one per family; reads as flanneld does:
/// shell syntax, unknown lines skipped, no subnet from a list of several.
pub fn previous_subnets(path: &Path) -> Result<Vec<IpNetwork>, SubnetEnvError> {
    let content = disk::if_present(plain_file::read(path, LONGEST, Symlink::Followed))
        .map_err(|source| unreadable(path, source))?;
    let text = String::from_utf8_lossy(content.as_deref().unwrap_or_default());
    let previous = |key, family| only_subnet(last_value(&text, key)?, family);
    let both = [previous(SUBNET, Family::V4), previous(IPV6_SUBNET, Family::V6)];
    Ok(both.into_iter().flatten().collect())
}

/// The values of the lines so far.
#[derive(Default)]
struct Values {
    networks: BTreeMap<Family, Vec<IpNetwork>>,
    subnets: BTreeMap<Family, IpNetwork>,
    mtu: Option<u32>,
    ip_masq: Option<bool>,
}

impl Values {
    fn read_line(&mut self, line: usize, text: &str) -> Result<(), Malformed> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let Some(key) = KEYS.into_iter().find(|key| *key == name) else { return Ok(()) };
        let value = value.ok_or(Malformed::NoValue { line, key })?;
        self.set(key, value).map_err(|wanted| {
            let value = excerpt::value(value);
            Malformed::BadValue { line, key, value, wanted }
        })
    }

    /// An error names what the value must be.
    fn set(&mut self, key: &'static str, value: &str) -> Result<(), &'static str> {
        let family = if key.contains("IPV6") { Family::V6 } else { Family::V4 };
        match key {
            NETWORK | IPV6_NETWORK => drop(self.networks.insert(family, networks(value, family)?)),
            SUBNET | IPV6_SUBNET => drop(self.subnets.insert(family, prefix(value, family)?)),
            MTU => self.mtu = Some(value.parse().map_err(|_| "a number of bytes")?),
            _ => self.ip_masq = Some(value == "true"),
        }
        Ok(())
    }

    fn complete(self) -> Result<SubnetEnv, Malformed> {
        let missing: Vec<_> = [
            (self.networks.is_empty(), &[NETWORK, IPV6_NETWORK][..]),
            (self.subnets.is_empty(), &[SUBNET, IPV6_SUBNET]),
            (self.mtu.is_none(), &[MTU]),
            (self.ip_masq.is_none(), &[IPMASQ]),
        ]
        .into_iter()
        .filter(|(is_missing, _)| *is_missing)
        .flat_map(|(_, keys)| keys.iter().copied())
        .collect();
        match (self.mtu, self.ip_masq) {
            (Some(mtu), Some(ip_masq)) if missing.is_empty() => Ok(SubnetEnv {
                networks: self.networks.into_values().flatten().collect(),
                subnets: self.subnets.into_values().collect(),
                mtu,
                ip_masq,
            }),
            _ => Err(Malformed::Missing(missing)),
        }
    }
}

fn listed(prefixes: &[IpNetwork], family: Family) -> String {
    let of_family = prefixes.iter().filter(|prefix| Family::of(prefix.ip()) == family);
    of_family.map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn networks(value: &str, family: Family) -> Result<Vec<IpNetwork>, &'static str> {
    let mut networks = Vec::new();
    for text in value.split(',') {
        let network = masked(prefix(text, family)?);
        if !networks.contains(&network) {
            networks.push(network);
        }
    }
    Ok(networks)
}

/// Address, slash, length. The library's own parser would also take a bare address or a netmask.
fn prefix(text: &str, family: Family) -> Result<IpNetwork, &'static str> {
    let parsed = text.split_once('/').and_then(|(address, length)| {
        let digits = length.bytes().all(|byte| byte.is_ascii_digit());
        let length = length.parse().ok().filter(|_| digits)?;
        IpNetwork::new(address.parse().ok()?, length).ok()
    });
    parsed.filter(|prefix| Family::of(prefix.ip()) == family).ok_or(match family {
        Family::V4 => "an IPv4 prefix",
        Family::V6 => "an IPv6 prefix",
    })
}

/// Without the bits of an address within it.
pub(crate) fn masked(prefix: IpNetwork) -> IpNetwork {
    IpNetwork::new(prefix.network(), prefix.prefix()).unwrap_or(prefix)
}

/// Shell syntax: `export`, quotes and comments may stand around.
fn last_value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut assigned = text.lines().rev().filter_map(|line| {
        let line = line.trim();
        let (name, value) = line.strip_prefix("export ").unwrap_or(line).split_once('=')?;
        (name.trim() == key).then(|| value.trim().trim_matches(['"', '\'']))
    });
    assigned.next()
}

fn only_subnet(value: &str, family: Family) -> Option<IpNetwork> {
    let mut subnets = value.split(',').filter_map(|text| prefix(text.trim(), family).ok());
    match (subnets.next(), subnets.next()) {
        (Some(subnet), None) => Some(masked(subnet)),
        _ => None,
    }
}

fn read_text(path: &Path) -> io::Result<String> {
    let bytes = plain_file::read(path, LONGEST, Symlink::Followed)?;
    String::from_utf8(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}

fn unreadable(path: &Path, source: io::Error) -> SubnetEnvError {
    match source.kind() {
        io::ErrorKind::NotFound => SubnetEnvError::Absent { path: path.into() },
        _ => SubnetEnvError::Read { path: path.into(), source },
    }
}
