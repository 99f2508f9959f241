//! host-local's config, in all the spellings that it accepts, and where the store of a network is.

use std::net::IpAddr;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tweed_netlink::Family;
use tweed_netlink::rtnl::route::Route;

use super::range::{Range, RangeSet};
use crate::disk::lock::LOCK_WAIT;
use crate::excerpt;
use crate::host_local::runtime_cache::RESULTS;
use crate::protocol::error::Error;
use crate::protocol::json::{self, Object};
use crate::protocol::result::parse_route;

const DATA_DIR: &str = "/var/lib/cni/networks";

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Config {
    pub location: Location,
    /// One address comes from each; the order is that of the result.
    pub range_sets: Vec<RangeSet>,
    /// Addresses that the runtime or the user requests, at most one for each set.
    pub requested: Vec<IpAddr>,
    pub routes: Vec<Route>,
    /// The file that name resolution is read from.
    pub resolv_conf: Option<PathBuf>,
}

/// Where the store of a network is, and what is needed to free what is in it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Location {
    /// Also the name of the store below `data_dir`.
    pub network: String,
    pub data_dir: PathBuf,
    /// The cache of the runtime: what it has added and not deleted.
    pub results: PathBuf,
    /// How long to wait for another process that holds the lock of the store.
    pub lock_wait: Duration,
}

impl Config {
    /// Reads a config as host-local gets it on standard input, and `IP` of `CNI_ARGS`.
    pub fn parse(config: &Object, ip: Option<&str>) -> Result<Self, Error> {
        let missing = || Error::invalid_config("IPAM config missing 'ipam' key");
        let ipam = json::object(config, "ipam")?.ok_or_else(missing)?;
        let runtime = json::object(config, "runtimeConfig")?;
        let range_sets = range_sets(ipam, runtime)?;
        path(ipam, "dataDir")?;
        check_version(json::text(config, "cniVersion")?, &range_sets)?;
        Ok(Self {
            location: Location::parse(config)?,
            range_sets,
            requested: requested(config, runtime, ip)?,
            routes: json::objects(ipam, "routes")?
                .into_iter()
                .map(parse_route)
                .collect::<Result<_, _>>()?,
            resolv_conf: path(ipam, "resolvConf")?,
        })
    }
}

impl Location {
    /// The store of `network` in the default directory.
    pub fn of(network: &str) -> Result<Self, Error> {
        let mut parts = Path::new(network).components();
        match (parts.next(), parts.next()) {
            (Some(Component::Normal(part)), None) if part == network => Ok(Self {
                network: network.to_owned(),
                data_dir: DATA_DIR.into(),
                results: RESULTS.into(),
                lock_wait: LOCK_WAIT,
            }),
            _ => Err(Error::invalid_config(format!(
                "the network's name is {}: not a file name",
                excerpt::quoted(network)
            ))),
        }
    }

    /// The store that a config of host-local names; its network needs the name of a directory.
    pub fn parse(config: &Object) -> Result<Self, Error> {
        let location = Self::of(json::text(config, "name")?.unwrap_or_default())?;
        // A value of another type was refused by the ADD, which made nothing.
        let ipam = json::object(config, "ipam").ok().flatten();
        let data_dir = ipam.and_then(|ipam| path(ipam, "dataDir").ok().flatten());
        Ok(Self { data_dir: data_dir.unwrap_or(location.data_dir), ..location })
    }

    /// The directory of the reservations.
    pub fn directory(&self) -> PathBuf {
        self.data_dir.join(&self.network)
    }
}

fn path(ipam: &Object, key: &str) -> Result<Option<PathBuf>, Error> {
    Ok(json::filled_text(ipam, key)?.map(PathBuf::from))
}

/// First the ranges of the runtime, then the flat spelling, then the nested one.
fn range_sets(ipam: &Object, runtime: Option<&Object>) -> Result<Vec<RangeSet>, Error> {
    let mut raw = Vec::new();
    if let Some(runtime) = runtime {
        raw.extend(sets(runtime, "ipRanges")?);
    }
    if json::get(ipam, "subnet").is_some() {
        raw.push(vec![ipam]);
    }
    raw.extend(sets(ipam, "ranges")?);
    let parsed = raw.into_iter().enumerate().map(|(index, set)| {
        parse_set(&set).map_err(|error| error.context(format!("invalid range set {index}")))
    });
    let sets = parsed.collect::<Result<Vec<_>, _>>()?;
    if sets.is_empty() {
        return Err(Error::invalid_config("no IP ranges specified"));
    }
    check_apart(&sets)?;
    Ok(sets)
}

fn parse_set(set: &[&Object]) -> Result<RangeSet, Error> {
    RangeSet::of(set.iter().map(|range| Range::parse(range)).collect::<Result<_, _>>()?)
}

fn check_apart(sets: &[RangeSet]) -> Result<(), Error> {
    for (index, one) in sets.iter().enumerate() {
        let other = sets.iter().enumerate().skip(index + 1).find(|(_, two)| one.overlaps(two));
        if let Some((other, _)) = other {
            let overlap = format!("range set {index} overlaps with {other}");
            return Err(Error::invalid_config(overlap));
        }
    }
    Ok(())
}

/// The results of the first versions hold one address of each family.
fn check_version(version: Option<&str>, sets: &[RangeSet]) -> Result<(), Error> {
    let version = version.filter(|version| !version.is_empty()).unwrap_or("0.1.0");
    let v4 = sets.iter().filter(|set| set.is_ipv4()).count();
    let one_each = v4 <= 1 && sets.len() - v4 <= 1;
    if one_each || !["0.1.0", "0.2.0"].contains(&version) {
        return Ok(());
    }
    Err(Error::invalid_config(format!(
        "CNI version {version} does not support more than 1 address per family"
    )))
}

fn requested(
    config: &Object,
    runtime: Option<&Object>,
    ip: Option<&str>,
) -> Result<Vec<IpAddr>, Error> {
    let args = json::cni_args(config)?;
    let mut texts: Vec<_> = ip.filter(|ip| !ip.is_empty()).into_iter().collect();
    for source in [args, runtime].into_iter().flatten() {
        texts.extend(json::texts(source, "ips")?);
    }
    let mut addresses = Vec::new();
    for text in texts {
        let address = requested_address(text)?;
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}

/// A prefix length may follow, and is ignored.
fn requested_address(text: &str) -> Result<IpAddr, Error> {
    let (address, length) = text.split_once('/').unwrap_or((text, "0"));
    let is_length = |address: &IpAddr| {
        length.parse::<u8>().is_ok_and(|length| length <= Family::of(*address).width())
    };
    json::address(address).filter(is_length).ok_or_else(|| {
        let text = excerpt::quoted(text);
        Error::invalid_config(format!("the requested IP {text} is not an address"))
    })
}

fn sets<'a>(object: &'a Object, key: &str) -> Result<Vec<Vec<&'a Object>>, Error> {
    let wrong = || Error::invalid_config(format!("{key} is not a list of lists of ranges"));
    let sets = json::list(object, key)?.into_iter().flatten();
    sets.map(|set| objects(set).ok_or_else(wrong)).collect()
}

fn objects(list: &Value) -> Option<Vec<&Object>> {
    list.as_array()?.iter().map(Value::as_object).collect()
}

#[cfg(test)]
#[path = "tests/config.rs"]
mod tests;
