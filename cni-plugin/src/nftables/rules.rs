//! The rules that a chain has.

use std::io;

use nix::libc::NFT_MSG_GETRULE;

use super::batch::request;
use super::family::TableFamily;
use super::numbers::{NFTA_RULE_CHAIN, NFTA_RULE_HANDLE, NFTA_RULE_TABLE, NFTA_RULE_USERDATA};
use crate::netlink::Socket;
use crate::netlink::attributes::Attributes;

/// A rule, as far as it takes to find it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub handle: u64,
    pub comment: Option<String>,
}

/// Of the netfilter header behind that of netlink, in bytes.
const HEADER: usize = 4;

/// The rules of `chain` in `table`, which is for both families; none if there is no such chain.
pub fn list(socket: &mut Socket, table: &str, chain: &str) -> io::Result<Vec<Rule>> {
    let question = request(TableFamily::Both, NFT_MSG_GETRULE, 0)
        .text(NFTA_RULE_TABLE, table)
        .text(NFTA_RULE_CHAIN, chain);
    // An older kernel lists more than it is asked for.
    let is_asked_for = |all: Attributes<'_>| {
        all.text(NFTA_RULE_TABLE) == Some(table) && all.text(NFTA_RULE_CHAIN) == Some(chain)
    };
    socket.list(&question, |payload| {
        let all = Attributes::of(payload.get(HEADER..)?);
        is_asked_for(all).then(|| read(all)).flatten()
    })
}

fn read(all: Attributes<'_>) -> Option<Rule> {
    let handle = all.get(NFTA_RULE_HANDLE)?.try_into().ok().map(u64::from_be_bytes)?;
    Some(Rule { handle, comment: all.get(NFTA_RULE_USERDATA).and_then(comment) })
}

fn comment(mut data: &[u8]) -> Option<String> {
    const COMMENT: u8 = 0;
    while let [kind, length, rest @ ..] = data {
        let value = rest.get(..usize::from(*length))?;
        if *kind == COMMENT {
            let text = value.strip_suffix(&[0]).unwrap_or(value);
            return Some(String::from_utf8_lossy(text).into_owned());
        }
        data = rest.get(value.len()..)?;
    }
    None
}
