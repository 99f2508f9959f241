//! What tables and chains hold, those of other programs too, and what of them changes.

use std::io;

use nix::errno::Errno;
use nix::libc::{
    NF_ACCEPT, NF_DROP, NFNL_SUBSYS_NFTABLES, NFT_MSG_DELCHAIN, NFT_MSG_DELRULE, NFT_MSG_GETCHAIN,
    NFT_MSG_GETGEN, NFT_MSG_GETRULE, NFT_MSG_GETTABLE, NFT_MSG_NEWCHAIN, NFT_MSG_NEWGEN,
    NFT_MSG_NEWRULE,
};

use super::batch::{HEADER, Hook, request};
use super::decode::{self, RuleVerdict, outcome};
use super::expression::Expression;
use super::family::TableFamily;
use super::nfta;
use crate::Family;
use crate::attributes::Attributes;
use crate::frame::Frame;
use crate::socket::Socket;

/// A table for one family, as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// A table owned by tweed has none.
    pub flags: u32,
    /// How many chains, sets and other objects there are.
    pub objects: u32,
    /// Those that have rules.
    pub chains: Vec<Rules>,
}

/// The rules of one chain, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    pub chain: String,
    /// None for a chain that a [`super::Chain`] with a hook does not make.
    pub hook: Option<Hook>,
    /// None for a rule with an expression that is not known here.
    pub rules: Vec<Option<Vec<Expression>>>,
}

/// A rule of any chain.
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

/// What `table` holds; none if there is no such table. Fails if the kernel has no nftables.
pub fn read(socket: &mut Socket, family: Family, table: &str) -> io::Result<Option<Contents>> {
    let question = request(TableFamily::Only(family), NFT_MSG_GETTABLE, 0);
    let answer = socket.get(question.text(nfta::TABLE_NAME, table), |frame| {
        let table = frame.attributes(HEADER)?;
        Some((table.be32(nfta::TABLE_FLAGS).unwrap_or(0), table.be32(nfta::TABLE_USE)?))
    })?;
    let found = match answer {
        Err(refusal) if refusal.errno == Errno::ENOENT => None,
        answer => answer.map_err(|refusal| io::Error::from(refusal.errno))?,
    };
    let Some((flags, objects)) = found else { return Ok(None) };
    let mut chains = rules(socket, family, table)?;
    for chain in &mut chains {
        chain.hook = hook(socket, family, table, &chain.chain)?;
    }
    Ok(Some(Contents { flags, objects, chains }))
}

fn rules(socket: &mut Socket, family: Family, table: &str) -> io::Result<Vec<Rules>> {
    let listed = rules_of(socket, TableFamily::Only(family), table, None, |rule| {
        let expressions = rule.nested(nfta::RULE_EXPRESSIONS).unwrap_or(Attributes::of(&[]));
        let chain = rule.text(nfta::RULE_CHAIN)?.to_owned();
        Some((chain, decode::expressions(expressions, family)))
    })?;
    let mut chains: Vec<Rules> = Vec::new();
    for (chain, rule) in listed {
        match chains.last_mut().filter(|last| last.chain == chain) {
            Some(last) => last.rules.push(rule),
            None => chains.push(Rules { chain, hook: None, rules: vec![rule] }),
        }
    }
    Ok(chains)
}

/// By what packets come to `chain`, and are let through at its end.
fn hook(socket: &mut Socket, family: Family, table: &str, chain: &str) -> io::Result<Option<Hook>> {
    ask_chain(socket, family, table, chain, |chain| {
        let place = chain.nested(nfta::CHAIN_HOOK)?;
        let number = place.be32(nfta::HOOK_HOOKNUM)?;
        let found = (number, place.be32(nfta::HOOK_PRIORITY)?, chain.text(nfta::CHAIN_TYPE)?);
        let is_open = chain.be32(nfta::CHAIN_POLICY)?.cast_signed() == NF_ACCEPT;
        Hook::ALL.into_iter().find(|hook| is_open && hook.place() == found)
    })
}

/// What `read` finds in this chain; none if there is no such chain.
fn ask_chain<T>(
    socket: &mut Socket,
    family: Family,
    table: &str,
    chain: &str,
    read: impl Fn(Attributes<'_>) -> Option<T>,
) -> io::Result<Option<T>> {
    let question = request(TableFamily::Only(family), NFT_MSG_GETCHAIN, 0)
        .text(nfta::CHAIN_TABLE, table)
        .text(nfta::CHAIN_NAME, chain);
    let answer = socket.get(question, |frame| read(frame.attributes(HEADER)?))?;
    Ok(answer.ok().flatten())
}

/// What `read` finds in the rules of `table`, or of one chain of it; none if there is no such chain.
pub(super) fn rules_of<T>(
    socket: &mut Socket,
    family: TableFamily,
    table: &str,
    chain: Option<&str>,
    read: impl Fn(Attributes<'_>) -> Option<T>,
) -> io::Result<Vec<T>> {
    let question = request(family, NFT_MSG_GETRULE, 0)
        .text(nfta::RULE_TABLE, table)
        .with(chain, |question, chain| question.text(nfta::RULE_CHAIN, chain));
    socket.list(&question, |frame| {
        let all = frame.attributes(HEADER)?;
        // An older kernel lists more than it is asked for.
        let is_asked_for = *frame.payload.first()? == family.number()
            && all.text(nfta::RULE_TABLE) == Some(table)
            && chain.is_none_or(|chain| all.text(nfta::RULE_CHAIN) == Some(chain));
        is_asked_for.then(|| read(all)).flatten()
    })
}

/// The rules of `chain` in `table`; none if there is no such chain.
pub fn list(
    socket: &mut Socket,
    family: TableFamily,
    table: &str,
    chain: &str,
) -> io::Result<Vec<Rule>> {
    rules_of(socket, family, table, Some(chain), |all| rule(all, family))
}

fn rule(all: Attributes<'_>, family: TableFamily) -> Option<Rule> {
    let handle = all.get(nfta::RULE_HANDLE)?.try_into().ok().map(u64::from_be_bytes)?;
    let elements = all.nested(nfta::RULE_EXPRESSIONS).unwrap_or(Attributes::of(&[]));
    let noted = || elements.into_iter().find_map(|(_, element)| comment_of_iptables(element));
    let comment = all.get(nfta::RULE_USERDATA).and_then(comment).or_else(noted);
    let counts = |(_, element): &(u16, &[u8])| {
        let is_counter = Attributes::of(element).text(nfta::EXPR_NAME) == Some("counter");
        is_counter || comment_of_iptables(element).is_some()
    };
    let family = match family {
        TableFamily::Only(family) => family,
        TableFamily::Both => Family::V4,
    };
    let expressions =
        decode::expressions(elements.into_iter().filter(|element| !counts(element)), family);
    let last = elements.into_iter().filter(|(kind, _)| *kind == nfta::LIST_ELEM).last();
    let leads_to = match last.and_then(|(_, element)| outcome(element)) {
        Some(RuleVerdict::Jump(chain) | RuleVerdict::Goto(chain)) => Some(chain),
        Some(RuleVerdict::Accept | RuleVerdict::Drop | RuleVerdict::Return) | None => None,
    };
    Some(Rule { handle, comment, expressions, leads_to })
}

/// The text of a match `comment`; none for anything else.
fn comment_of_iptables(element: &[u8]) -> Option<String> {
    let element = Attributes::of(element);
    let data = element.nested(nfta::EXPR_DATA)?;
    let is_comment =
        element.text(nfta::EXPR_NAME)? == "match" && data.text(nfta::MATCH_NAME)? == "comment";
    is_comment.then(|| data.text(nfta::MATCH_INFO).map(str::to_owned)).flatten()
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

/// Whether `table` has this chain. Fails if the kernel has no nftables.
pub fn has_chain(
    socket: &mut Socket,
    family: Family,
    table: &str,
    chain: &str,
) -> io::Result<bool> {
    Ok(ask_chain(socket, family, table, chain, |_| Some(()))?.is_some())
}

/// Whether `table` has this chain, and it drops what comes to its end.
pub fn drops(socket: &mut Socket, family: Family, table: &str, chain: &str) -> io::Result<bool> {
    let policy = |chain: Attributes<'_>| chain.be32(nfta::CHAIN_POLICY).map(u32::cast_signed);
    Ok(ask_chain(socket, family, table, chain, policy)? == Some(NF_DROP))
}

/// The number of the rule set, which every change of any table changes.
pub fn generation(socket: &mut Socket) -> io::Result<u32> {
    let question = request(TableFamily::Only(Family::V4), NFT_MSG_GETGEN, 0);
    let number = |frame: &Frame<'_>| frame.attributes(HEADER)?.be32(nfta::GEN_ID);
    let generation = socket.get(question, number)?.map_err(|refusal| refusal.errno)?;
    generation.ok_or_else(|| Errno::ENODATA.into())
}

/// The table that changed, by a `frame` that the kernel sends to listeners.
pub fn changed_table<'a>(frame: &Frame<'a>) -> Option<(TableFamily, &'a str)> {
    // Whatever is changed in a table, the first attribute is the table's name.
    const TABLE: u16 = 1;
    let (kind, family, all) = change(frame)?;
    (kind != NFT_MSG_NEWGEN).then_some((family, all.text(TABLE)?))
}

/// The chain that changed, or that has another rule now, behind the name of its table; likewise.
pub fn changed_chain<'a>(frame: &Frame<'a>) -> Option<(TableFamily, &'a str, &'a str)> {
    let (kind, family, all) = change(frame)?;
    let (table, chain) = match kind {
        NFT_MSG_NEWCHAIN | NFT_MSG_DELCHAIN => (nfta::CHAIN_TABLE, nfta::CHAIN_NAME),
        NFT_MSG_NEWRULE | NFT_MSG_DELRULE => (nfta::RULE_TABLE, nfta::RULE_CHAIN),
        _ => return None,
    };
    Some((family, all.text(table)?, all.text(chain)?))
}

/// The kind of change, and its attributes.
fn change<'a>(frame: &Frame<'a>) -> Option<(i32, TableFamily, Attributes<'a>)> {
    let kind = i32::from(frame.kind);
    let family = TableFamily::of_number(*frame.payload.first()?)?;
    let all = frame.attributes(HEADER)?;
    (kind >> 8 == NFNL_SUBSYS_NFTABLES).then_some((kind & 0xff, family, all))
}
