//! Reads foreign rules over netlink.

use std::fs;
use std::io;
use std::path::Path;

use nix::errno::Errno;
use tweed_netlink::nftables::{self, FilterChain, Table, TableFamily};
use tweed_netlink::{Protocol, Socket};

use super::unreadable;
use crate::model::prefix::Family;
use crate::plan::preflight::facts::Unread;

/// The chains, and why they could not be read.
pub(super) fn chains() -> (Vec<FilterChain>, Option<Unread>) {
    let read = Socket::open(Protocol::Netfilter)
        .and_then(|mut socket| nftables::filter_chains(&mut socket));
    match read {
        Ok(chains) => (chains, None),
        Err(error) => {
            let what = "rules of nftables and iptables-nft";
            let (place, obstacle) = ("nft list ruleset".to_owned(), unreadable(&error));
            (Vec::new(), Some(Unread { what, place, obstacle }))
        }
    }
}

/// Whether nftables rejects a query for a table, existing or not.
pub(super) fn lacks_nftables() -> bool {
    let table = Table { family: TableFamily::Only(Family::V4), name: "tweed" };
    let asked = Socket::open(Protocol::Netfilter).and_then(|mut socket| table.read(&mut socket));
    let errno = asked.err().and_then(|error| error.raw_os_error()).map(Errno::from_raw);
    matches!(errno, Some(Errno::EINVAL | Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT))
}

/// The tables, and why they could not be read.
pub(super) fn legacy_tables(proc: &Path) -> (Vec<String>, Option<Unread>) {
    let lists = ["ip_tables_names", "ip6_tables_names"];
    let texts = lists.map(|list| fs::read_to_string(proc.join("thread-self/net").join(list)));
    let forbidden = texts.iter().filter_map(|text| text.as_ref().err()).find_map(|error| {
        // Without the modules of iptables-legacy, there are no files.
        let is_forbidden = error.kind() == io::ErrorKind::PermissionDenied;
        is_forbidden.then(|| Unread {
            what: "rules of iptables-legacy",
            place: "iptables-legacy -S FORWARD".to_owned(),
            obstacle: unreadable(error),
        })
    });
    let names = texts.iter().flatten().flat_map(|list| list.lines()).map(str::to_owned);
    (names.collect(), forbidden)
}
