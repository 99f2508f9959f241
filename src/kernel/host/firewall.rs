//! Reads foreign rules over netlink.

use std::path::Path;

use nix::errno::Errno;
use tweed_netlink::nftables::{self, Expression, FilterChain, FilterRule, Match, TableFamily};
use tweed_netlink::{Protocol, Socket};

use super::text;
use crate::model::prefix::Family;
use crate::plan::preflight::facts::{ForeignChain, ForeignRule, Module};

pub(super) fn chains() -> Vec<ForeignChain> {
    let read = Socket::open(Protocol::Netfilter)
        .and_then(|mut socket| nftables::filter_chains(&mut socket));
    let found = read.unwrap_or_else(|error| {
        tracing::debug!(%error, "chains of nftables were not read");
        Vec::new()
    });
    found.into_iter().map(chain).collect()
}

/// Whether nftables accepts a query for a table, existing or not.
pub(super) fn nftables() -> Module {
    let asked = Socket::open(Protocol::Netfilter)
        .and_then(|mut socket| nftables::read(&mut socket, Family::V4, "tweed"));
    let errno = asked.err().map(|error| error.raw_os_error().map(Errno::from_raw));
    match errno {
        None => Module::Available,
        Some(Some(Errno::EINVAL | Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT)) => Module::Missing,
        Some(_) => Module::Unknown,
    }
}

pub(super) fn legacy_tables(proc: &Path) -> Vec<String> {
    let lists = ["ip_tables_names", "ip6_tables_names"];
    let texts = lists.map(|list| text(&proc.join("thread-self/net").join(list)));
    texts.iter().flatten().flat_map(|list| list.lines()).map(str::to_owned).collect()
}

fn chain(found: FilterChain) -> ForeignChain {
    let FilterChain { family, table, name, policy, rules } = found;
    let family = match family {
        TableFamily::Both => None,
        TableFamily::Only(family) => Some(family),
    };
    let rules = rules.into_iter().filter_map(rule).collect();
    ForeignChain { family, table, name, policy, rules }
}

/// None if the rule matches on more than addresses.
fn rule(FilterRule { tests, outcome }: FilterRule) -> Option<ForeignRule> {
    let mut rule = ForeignRule { source: None, destination: None, then: outcome };
    for test in tests {
        let (side, network) = match test {
            Expression::Source(Match::Is, network) => (&mut rule.source, network),
            Expression::Destination(Match::Is, network) => (&mut rule.destination, network),
            _ => return None,
        };
        if side.replace(network.into()).is_some() {
            return None;
        }
    }
    Some(rule)
}
