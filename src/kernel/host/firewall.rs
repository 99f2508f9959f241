//! Reads foreign rules over netlink.

use std::path::Path;

use nix::errno::Errno;
use tweed_netlink::nftables::{self, FilterChain, Table, TableFamily};
use tweed_netlink::{Protocol, Socket};

use super::text;
use crate::model::prefix::Family;
use crate::plan::preflight::facts::Module;

pub(super) fn chains() -> Vec<FilterChain> {
    let read = Socket::open(Protocol::Netfilter)
        .and_then(|mut socket| nftables::filter_chains(&mut socket));
    read.unwrap_or_else(|error| {
        tracing::debug!(%error, "chains of nftables were not read");
        Vec::new()
    })
}

/// Whether nftables accepts a query for a table, existing or not.
pub(super) fn nftables() -> Module {
    let table = Table { family: TableFamily::Only(Family::V4), name: "tweed" };
    let asked = Socket::open(Protocol::Netfilter).and_then(|mut socket| table.read(&mut socket));
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
