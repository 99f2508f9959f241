//! The rules that a chain has, whoever made them.

use std::io;

use nix::libc::NFT_MSG_GETRULE;

use super::Outcome;
use super::batch::{HEADER, request};
use super::chains::outcome;
use super::decode;
use super::expression::Expression;
use super::family::{IpFamily, TableFamily};
use super::numbers::{
    NFTA_EXPR_DATA, NFTA_EXPR_NAME, NFTA_LIST_ELEM, NFTA_MATCH_INFO, NFTA_MATCH_NAME,
    NFTA_RULE_CHAIN, NFTA_RULE_EXPRESSIONS, NFTA_RULE_HANDLE, NFTA_RULE_TABLE, NFTA_RULE_USERDATA,
};
use crate::attributes::Attributes;
use crate::socket::Socket;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub handle: u64,
    /// As `nft(8)` or as iptables-nft notes it.
    pub comment: Option<String>,
    /// Without comment and counter; none if one of them is not known here.
    pub expressions: Option<Vec<Expression>>,
    /// The chain that it leads to, by a jump or for good.
    pub leads_to: Option<String>,
}

/// The rules of `chain` in `table`; none if there is no such chain.
pub fn list(
    socket: &mut Socket,
    family: TableFamily,
    table: &str,
    chain: &str,
) -> io::Result<Vec<Rule>> {
    let question = request(family, NFT_MSG_GETRULE, 0)
        .text(NFTA_RULE_TABLE, table)
        .text(NFTA_RULE_CHAIN, chain);
    // An older kernel lists more than it is asked for.
    let is_asked_for = |all: Attributes<'_>| {
        all.text(NFTA_RULE_TABLE) == Some(table) && all.text(NFTA_RULE_CHAIN) == Some(chain)
    };
    socket.list(&question, |frame| {
        let all = frame.attributes(HEADER)?;
        is_asked_for(all).then(|| read(all, family)).flatten()
    })
}

fn read(all: Attributes<'_>, family: TableFamily) -> Option<Rule> {
    let handle = all.get(NFTA_RULE_HANDLE)?.try_into().ok().map(u64::from_be_bytes)?;
    let elements = all.nested(NFTA_RULE_EXPRESSIONS).unwrap_or(Attributes::of(&[]));
    let noted = || elements.into_iter().find_map(|(_, element)| comment_of_iptables(element));
    let comment = all.get(NFTA_RULE_USERDATA).and_then(comment).or_else(noted);
    let counts = |(_, element): &(u16, &[u8])| {
        let is_counter = Attributes::of(element).text(NFTA_EXPR_NAME) == Some("counter");
        is_counter || comment_of_iptables(element).is_some()
    };
    let family = match family {
        TableFamily::Only(family) => family,
        TableFamily::Both => IpFamily::V4,
    };
    let expressions =
        decode::expressions(elements.into_iter().filter(|element| !counts(element)), family);
    let last = elements.into_iter().filter(|(kind, _)| *kind == NFTA_LIST_ELEM).last();
    let leads_to = match last.and_then(|(_, element)| outcome(element)) {
        Some(Outcome::Jump(chain) | Outcome::Goto(chain)) => Some(chain),
        Some(Outcome::Accept | Outcome::Drop | Outcome::Return) | None => None,
    };
    Some(Rule { handle, comment, expressions, leads_to })
}

/// The text of a match `comment`; none for anything else.
fn comment_of_iptables(element: &[u8]) -> Option<String> {
    let element = Attributes::of(element);
    let data = element.nested(NFTA_EXPR_DATA)?;
    let is_comment =
        element.text(NFTA_EXPR_NAME)? == "match" && data.text(NFTA_MATCH_NAME)? == "comment";
    is_comment.then(|| data.text(NFTA_MATCH_INFO).map(str::to_owned)).flatten()
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
