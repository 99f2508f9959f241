//! Which nodes a list shows, and in which order.

use std::net::IpAddr;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::model::lease::LeaseId;
use crate::model::prefix::{Family, Prefix};

/// The node and the address family that a list is limited to.
#[derive(Clone, Debug, Default, Args)]
pub(in crate::operator) struct Selection {
    /// Only this node, by name, public IP, subnet or lease
    #[arg(long, value_name = "NAME")]
    pub(in crate::operator) node: Option<String>,
    /// Only this address family: v4 or v6
    #[arg(long, value_name = "FAMILY", hide_possible_values = true)]
    #[arg(value_parser = PossibleValuesParser::new(["v4", "v6"]).map(|name| family(&name)))]
    pub(in crate::operator) family: Option<Family>,
}

fn family(name: &str) -> Family {
    if name == "v6" { Family::V6 } else { Family::V4 }
}

/// Whether a node may be named so: by its lease, a public IP or a subnet.
pub(in crate::operator) fn is_named(
    name: &str,
    lease: &LeaseId,
    public_ips: impl IntoIterator<Item = IpAddr>,
    subnets: impl IntoIterator<Item = Prefix>,
) -> bool {
    lease.as_str() == name
        || public_ips.into_iter().any(|ip| ip.to_string() == name)
        || subnets.into_iter().any(|subnet| subnet.to_string() == name)
}

/// A key that sorts `n9` before `n10`: texts without digits, each with the number after it.
pub(in crate::operator) fn numeric(name: &str) -> Vec<(String, u128)> {
    let is_digit = |c: char| c.is_ascii_digit();
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let (text, from_digit) = rest.split_at(rest.find(is_digit).unwrap_or(rest.len()));
        let after = from_digit.find(|c| !is_digit(c)).unwrap_or(from_digit.len());
        let (number, next) = from_digit.split_at(after);
        parts.push((text.to_owned(), number.parse().unwrap_or_default()));
        rest = next;
    }
    parts
}
