//! Ranges to allocate from, sets of them, and the next address of a set, in the order of Go's host-local.

use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use ipnetwork::IpNetwork;
use tweed_netlink::Family;

use crate::excerpt;
use crate::protocol::error::Error;
use crate::protocol::json::{self, Object};

/// Part of one subnet; `first` and `last` belong to it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Range {
    pub subnet: IpNetwork,
    pub first: IpAddr,
    pub last: IpAddr,
    /// Never handed out; may lie outside of the range and even of the subnet.
    pub gateway: IpAddr,
}

impl Range {
    /// Reads `subnet`, `rangeStart`, `rangeEnd` and `gateway`, of which only the first must be there.
    pub fn parse(range: &Object) -> Result<Self, Error> {
        let subnet = json::text(range, "subnet")?.ok_or_else(|| invalid("subnet is missing"))?;
        let subnet = parse_subnet(subnet)?;
        let (after_base, before_end) = ends(subnet);
        let range = Self {
            subnet,
            gateway: optional(range, "gateway")?.unwrap_or(after_base),
            first: optional(range, "rangeStart")?.unwrap_or(after_base),
            last: optional(range, "rangeEnd")?.unwrap_or(before_end),
        };
        range.check()?;
        Ok(range)
    }

    fn check(&self) -> Result<(), Error> {
        let Self { subnet, first, last, .. } = *self;
        if !subnet.contains(first) || number(first) > number(last) {
            return Err(invalid(format!("RangeStart {first} not in network {subnet}")));
        }
        if !subnet.contains(last) {
            return Err(invalid(format!("RangeEnd {last} not in network {subnet}")));
        }
        Ok(())
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        self.first.is_ipv4() == address.is_ipv4()
            && (number(self.first)..=number(self.last)).contains(&number(address))
    }

    /// `address` as an interface in this subnet has it.
    pub fn interface_address(&self, address: IpAddr) -> IpNetwork {
        IpNetwork::new(address, self.subnet.prefix()).unwrap_or_else(|_| address.into())
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// Alternatives of one family, tried in this order; never empty, never overlapping.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RangeSet(Vec<Range>);

impl RangeSet {
    pub fn of(ranges: Vec<Range>) -> Result<Self, Error> {
        let family = ranges.first().ok_or_else(|| invalid("empty range set"))?.first.is_ipv4();
        if ranges.iter().any(|range| range.first.is_ipv4() != family) {
            return Err(invalid("mixed address families"));
        }
        for (index, one) in ranges.iter().enumerate() {
            if let Some(two) = ranges.iter().skip(index + 1).find(|two| one.overlaps(two)) {
                return Err(invalid(format!("subnets {one} and {two} overlap")));
            }
        }
        Ok(Self(ranges))
    }

    pub fn is_ipv4(&self) -> bool {
        self.0.iter().any(|range| range.first.is_ipv4())
    }

    pub fn range_of(&self, address: IpAddr) -> Option<&Range> {
        self.0.iter().find(|range| range.contains(address))
    }

    pub fn overlaps(&self, other: &Self) -> bool {
        self.0.iter().any(|one| other.0.iter().any(|two| one.overlaps(two)))
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges: Vec<_> = self.0.iter().map(Range::to_string).collect();
        f.write_str(&ranges.join(","))
    }
}

/// The first address of `set` that is not `taken`, with its range; `None` if all are.
///
/// Begins after `last_reserved`, or with the first address if that is not in `set`: so an address
/// that was freed is given again as late as possible.
pub(super) fn next_free<'a>(
    set: &'a RangeSet,
    last_reserved: Option<IpAddr>,
    taken: &HashSet<IpAddr>,
) -> Option<(&'a Range, IpAddr)> {
    let free = |range: &'a Range, first: u128, last: u128| {
        let (first, last) = (first.max(number(range.first)), last.min(number(range.last)));
        let mut addresses = (first..=last).map(address);
        let free = addresses.find(|it| *it != range.gateway && !taken.contains(it));
        free.map(|address| (range, address))
    };
    let whole = |range| free(range, 0, u128::MAX);
    let index = |last| set.0.iter().position(|range| range.contains(last));
    let Some((index, last)) = last_reserved.and_then(|last| Some((index(last)?, number(last))))
    else {
        return set.0.iter().find_map(whole);
    };
    let (before, from) = set.0.split_at(index);
    let (current, after) = from.split_first()?;
    free(current, last.saturating_add(1), u128::MAX)
        .or_else(|| after.iter().chain(before).find_map(whole))
        .or_else(|| free(current, 0, last))
}

/// Both families on one line: IPv4 where IPv6 maps it.
fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn address(number: u128) -> IpAddr {
    Ipv6Addr::from_bits(number).to_canonical()
}

fn invalid(msg: impl Into<String>) -> Error {
    Error::invalid_config(msg)
}

/// The network itself, with room for more than its own two addresses.
fn parse_subnet(text: &str) -> Result<IpNetwork, Error> {
    let with_prefix = text.contains('/').then(|| text.parse::<IpNetwork>().ok()).flatten();
    let subnet = with_prefix
        .ok_or_else(|| invalid(format!("invalid CIDR address: {}", excerpt::value(text))))?;
    if subnet.ip().to_canonical().is_ipv4() != subnet.is_ipv4() {
        return Err(invalid(format!("subnet {subnet} maps IPv4 into IPv6: write it as IPv4")));
    }
    if Family::of(subnet.ip()).width() - subnet.prefix() < 2 {
        return Err(invalid(format!("Network {subnet} too small to allocate from")));
    }
    if subnet.ip() != subnet.network() {
        return Err(invalid(format!(
            "Network has host bits set. For a subnet mask of length {} the network address is {}",
            subnet.prefix(),
            subnet.network()
        )));
    }
    Ok(subnet)
}

fn optional(range: &Object, key: &str) -> Result<Option<IpAddr>, Error> {
    let text = json::filled_text(range, key)?;
    let wrong = |text| invalid(format!("{key} {} is not an address", excerpt::quoted(text)));
    text.map(|text| json::address(text).ok_or_else(|| wrong(text))).transpose()
}

/// The first and the last address to hand out: not the network's own, nor IPv4's broadcast.
fn ends(subnet: IpNetwork) -> (IpAddr, IpAddr) {
    let broadcast = u128::from(subnet.is_ipv4());
    (address(number(subnet.network()) + 1), address(number(subnet.broadcast()) - broadcast))
}

#[cfg(test)]
#[path = "tests/range.rs"]
mod tests;

#[cfg(test)]
#[path = "tests/order.rs"]
mod order_tests;
