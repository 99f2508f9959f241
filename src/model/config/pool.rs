//! The subnets of one address family, computed as flannel does.

use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Invalid, wrong};
use crate::model::json::Fields;
use crate::model::prefix::{Family, Prefix, number};

/// The network of one family, and how it is divided into subnets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    pub network: Prefix,
    pub subnet_len: u8,
    /// The first subnet that is assigned.
    pub min: Prefix,
    /// The last subnet that is assigned.
    pub max: Prefix,
}

impl Pool {
    /// The default prefix length of subnets, if the network is large enough.
    pub const fn usual_len(family: Family) -> u8 {
        match family {
            Family::V4 => 24,
            Family::V6 => 64,
        }
    }

    pub fn count(&self) -> u128 {
        let span = number(self.max.base()).saturating_sub(number(self.min.base()));
        span / self.min.size() + 1
    }

    /// The subnet number `index`, counted from `min`.
    pub fn subnet(&self, index: u128) -> Prefix {
        let base = self.min.nth(index.wrapping_mul(self.min.size()));
        Prefix::holding(base, self.subnet_len).unwrap_or(self.min)
    }

    /// How many subnets of the network `leased` takes, and how many are left, if each has `len` bits.
    pub fn usage(&self, leased: impl Iterator<Item = Prefix>, len: u8) -> (u128, u128) {
        let parts = |whole: Prefix| {
            1_u128.checked_shl(len.saturating_sub(whole.prefix_len()).into()).unwrap_or(u128::MAX)
        };
        let count = if len == self.subnet_len { self.count() } else { parts(self.network) };
        let leased = leased.filter(|subnet| self.network.covers(*subnet));
        let used = leased.map(parts).fold(0, u128::saturating_add);
        (used, count.saturating_sub(used))
    }

    /// The number of `subnet`; none if the pool does not assign it.
    pub fn index(&self, subnet: Prefix) -> Option<u128> {
        self.assigns(subnet)
            .then(|| (number(subnet.base()) - number(self.min.base())) / self.min.size())
    }

    pub fn assigns(&self, subnet: Prefix) -> bool {
        subnet.family() == self.network.family()
            && subnet.prefix_len() == self.subnet_len
            && (self.min..=self.max).contains(&subnet)
    }
}

struct PoolKeys {
    family: Family,
    enable: &'static str,
    network: &'static str,
    subnet_len: &'static str,
    min: &'static str,
    max: &'static str,
}

impl PoolKeys {
    const fn of(family: Family) -> Self {
        let [enable, network, subnet_len, min, max] = match family {
            Family::V4 => ["EnableIPv4", "Network", "SubnetLen", "SubnetMin", "SubnetMax"],
            Family::V6 => {
                ["EnableIPv6", "IPv6Network", "IPv6SubnetLen", "IPv6SubnetMin", "IPv6SubnetMax"]
            }
        };
        Self { family, enable, network, subnet_len, min, max }
    }
}

/// The pool of `family`; none if the config does not enable it.
pub(super) fn parse(fields: &Fields, family: Family) -> Result<Option<Pool>, Invalid> {
    let keys = &PoolKeys::of(family);
    if !fields.bool(keys.enable)?.unwrap_or(family == Family::V4) {
        return Ok(None);
    }
    let missing = Invalid::Missing { key: keys.network, because: keys.enable };
    let network = parse_network(fields, keys)?.ok_or(missing)?;
    let subnet_len = parse_subnet_len(fields, keys, network)?;
    // The first subnet contains the network's base address, which old software treats as a
    // broadcast address.
    let second = network.nth(1 << (keys.family.width() - subnet_len));
    let min = parse_bound(fields, keys.min, network, subnet_len, second)?;
    let max = parse_bound(fields, keys.max, network, subnet_len, network.last())?;
    if min > max {
        let expected = format!("at most {} {}", keys.max, max.base());
        return Err(Invalid::Value { key: keys.min, value: min.base().to_string(), expected });
    }
    Ok(Some(Pool { network, subnet_len, min, max }))
}

/// The first key by which two pools of `family` differ; none if they are equal.
pub fn differing_key(
    family: Family,
    one: Option<&Pool>,
    other: Option<&Pool>,
) -> Option<&'static str> {
    let keys = PoolKeys::of(family);
    let (one, other) = match (one, other) {
        (None, None) => return None,
        (Some(_), None) | (None, Some(_)) => return Some(keys.enable),
        (Some(one), Some(other)) => (one, other),
    };
    let differing = [
        (keys.network, one.network != other.network),
        (keys.subnet_len, one.subnet_len != other.subnet_len),
        (keys.min, one.min != other.min),
        (keys.max, one.max != other.max),
    ];
    differing.into_iter().find_map(|(key, differs)| differs.then_some(key))
}

fn parse_network(fields: &Fields, keys: &PoolKeys) -> Result<Option<Prefix>, Invalid> {
    let Some(text) = fields.str(keys.network)? else { return Ok(None) };
    let network = Prefix::from_str(text).ok().filter(|network| network.family() == keys.family);
    let expected = || format!("an {} prefix with its length", keys.family);
    let network = network.ok_or_else(|| wrong(keys.network, text, expected()))?;
    if network.prefix_len() == 0 {
        let expected = "longer than /0: nodes and services need addresses, too".to_owned();
        return Err(wrong(keys.network, text, expected));
    }
    Ok(Some(network))
}

fn parse_subnet_len(fields: &Fields, keys: &PoolKeys, network: Prefix) -> Result<u8, Invalid> {
    // A longer prefix has no addresses for pods.
    let (shortest, longest) = (network.prefix_len() + 2, keys.family.width() - 2);
    if shortest > longest {
        let expected = format!("a prefix of length {} or shorter", longest - 2);
        return Err(wrong(keys.network, network, expected));
    }
    match fields.u32(keys.subnet_len)?.filter(|len| *len != 0) {
        None => Ok(Pool::usual_len(keys.family).max(shortest)),
        Some(len) => u8::try_from(len)
            .ok()
            .filter(|len| (shortest..=longest).contains(len))
            .ok_or_else(|| {
                let range = format!("from {shortest} to {longest}, for {network}");
                wrong(keys.subnet_len, len, range)
            }),
    }
}

/// The subnet that begins at the address under `key`, or the one that contains `default`.
fn parse_bound(
    fields: &Fields,
    key: &'static str,
    network: Prefix,
    subnet_len: u8,
    default: IpAddr,
) -> Result<Prefix, Invalid> {
    let unspecified = network.family().unspecified();
    let outside = |text: &str| wrong(key, text, format!("an address inside {network}"));
    let parse = |text: &str| match text.parse() {
        // Flannel treats the unspecified address as absent.
        Ok(address) if address == unspecified => Ok(None),
        Ok(address) if network.contains(address) => Ok(Some(address)),
        Ok(address) => Err(outside(&address.to_string())),
        Err(_) => Err(outside(text)),
    };
    let given = fields.str(key)?.map_or(Ok(None), parse)?;
    let slot = Prefix::holding(given.unwrap_or(default), subnet_len);
    slot.filter(|slot| given.is_none_or(|address| slot.base() == address)).ok_or_else(|| {
        wrong(key, given.unwrap_or(default), format!("the first address of a /{subnet_len}"))
    })
}
