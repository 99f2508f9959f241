//! What tables and chains hold, those of other programs too, and what of them changes.

use std::collections::BTreeMap;
use std::io;

use nix::errno::Errno;
use nix::libc::{
    NF_ACCEPT, NF_DROP, NFNL_SUBSYS_NFTABLES, NFT_MSG_DELCHAIN, NFT_MSG_DELRULE, NFT_MSG_GETCHAIN,
    NFT_MSG_GETGEN, NFT_MSG_GETRULE, NFT_MSG_GETTABLE, NFT_MSG_NEWCHAIN, NFT_MSG_NEWGEN,
    NFT_MSG_NEWRULE,
};

use super::batch::{HEADER, Hook, request};
use super::decode::{self, outcome};
use super::family::{Table, TableFamily};
use super::nfta;
use super::rule::{Rule, Verdict};
use crate::Family;
use crate::attributes::Attributes;
use crate::frame::{Frame, Refusal};
use crate::socket::Socket;

/// What a table holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// A table owned by tweed has none.
    pub flags: u32,
    /// How many chains, sets and other objects there are.
    pub objects: u32,
    /// Those that have rules, by name.
    pub chains: Vec<Rules>,
}

/// The rules of one chain, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    pub chain: String,
    /// None for a chain that a [`super::Chain`] with a hook does not make.
    pub hook: Option<Hook>,
    /// None for a rule with anything that is not known here.
    pub rules: Vec<Option<Rule>>,
}

/// A rule of any chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedRule {
    pub handle: u64,
    /// As `nft(8)` or as iptables-nft notes it.
    pub comment: Option<String>,
    /// Without comment and counter; none if it has anything else that is not known here.
    pub rule: Option<Rule>,
    /// The chain that it leads to, by a jump or for good.
    pub leads_to: Option<String>,
}

impl Table<'_> {
    /// What it holds; none if there is no such table. Fails if the kernel has no nftables.
    pub fn read(self, socket: &mut Socket) -> io::Result<Option<Contents>> {
        let question = request(self.family, NFT_MSG_GETTABLE, 0).text(nfta::TABLE_NAME, self.name);
        let answer = socket.get(question, |frame| {
            let table = frame.attributes(HEADER)?;
            Some((table.be32(nfta::TABLE_FLAGS).unwrap_or(0), table.be32(nfta::TABLE_USE)?))
        })?;
        let found = match answer {
            Err(Refusal { errno: Errno::ENOENT, .. }) => None,
            answer => answer.map_err(|refusal| refusal.errno)?,
        };
        let Some((flags, objects)) = found else { return Ok(None) };
        let rule = |expressions: Attributes<'_>| decode::rule(expressions.iter(), self.family);
        let listed = self.rules_by_chain(socket, rule)?.into_iter();
        let chains = listed
            .map(|(chain, rules)| Ok(Rules { hook: self.hook(socket, &chain)?, chain, rules }))
            .collect::<io::Result<_>>()?;
        Ok(Some(Contents { flags, objects, chains }))
    }

    /// The rules of `chain`; none if there is no such chain.
    pub fn rules(self, socket: &mut Socket, chain: &str) -> io::Result<Vec<ListedRule>> {
        self.list(socket, Some(chain), |all| listed(all, self.family))
    }

    /// Whether it has this chain. Fails if the kernel has no nftables.
    pub fn has_chain(self, socket: &mut Socket, chain: &str) -> io::Result<bool> {
        Ok(self.ask_chain(socket, chain, |_| Some(()))?.is_some())
    }

    /// Whether it has this chain, and the chain drops what comes to its end.
    pub fn drops(self, socket: &mut Socket, chain: &str) -> io::Result<bool> {
        let policy = |chain: Attributes<'_>| chain.be32(nfta::CHAIN_POLICY).map(u32::cast_signed);
        Ok(self.ask_chain(socket, chain, policy)? == Some(NF_DROP))
    }

    /// What `read` makes of the expressions of each rule, by the names of the chains.
    pub(super) fn rules_by_chain<T>(
        self,
        socket: &mut Socket,
        read: impl Fn(Attributes<'_>) -> T,
    ) -> io::Result<BTreeMap<String, Vec<T>>> {
        let listed = self.list(socket, None, |rule| {
            let chain = rule.text(nfta::RULE_CHAIN)?.to_owned();
            Some((chain, read(rule.nested(nfta::RULE_EXPRESSIONS).unwrap_or_default())))
        })?;
        let mut chains: BTreeMap<String, Vec<T>> = BTreeMap::new();
        for (chain, rule) in listed {
            chains.entry(chain).or_default().push(rule);
        }
        Ok(chains)
    }

    /// By what packets come to `chain`, and are let through at its end.
    fn hook(self, socket: &mut Socket, chain: &str) -> io::Result<Option<Hook>> {
        self.ask_chain(socket, chain, |chain| {
            let place = chain.nested(nfta::CHAIN_HOOK)?;
            let number = place.be32(nfta::HOOK_HOOKNUM)?;
            let found = (number, place.be32(nfta::HOOK_PRIORITY)?, chain.text(nfta::CHAIN_TYPE)?);
            let is_open = chain.be32(nfta::CHAIN_POLICY)?.cast_signed() == NF_ACCEPT;
            Hook::ALL.into_iter().find(|hook| is_open && hook.place() == found)
        })
    }

    /// What `read` finds in this chain; none if there is no such chain.
    fn ask_chain<T>(
        self,
        socket: &mut Socket,
        chain: &str,
        read: impl Fn(Attributes<'_>) -> Option<T>,
    ) -> io::Result<Option<T>> {
        let question = self.chain_message(NFT_MSG_GETCHAIN, 0, chain);
        let answer = socket.get(question, |frame| read(frame.attributes(HEADER)?))?;
        Ok(answer.ok().flatten())
    }

    /// What `read` finds in all rules, or in those of one chain; none if there is no such chain.
    fn list<T>(
        self,
        socket: &mut Socket,
        chain: Option<&str>,
        read: impl Fn(Attributes<'_>) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let question = request(self.family, NFT_MSG_GETRULE, 0)
            .text(nfta::RULE_TABLE, self.name)
            .with(chain, |question, chain| question.text(nfta::RULE_CHAIN, chain));
        socket.list(&question, |frame| {
            let all = frame.attributes(HEADER)?;
            // An older kernel lists more than it is asked for.
            let is_asked_for = *frame.payload.first()? == self.family.number()
                && all.text(nfta::RULE_TABLE) == Some(self.name)
                && chain.is_none_or(|chain| all.text(nfta::RULE_CHAIN) == Some(chain));
            is_asked_for.then(|| read(all)).flatten()
        })
    }
}

fn listed(all: Attributes<'_>, family: TableFamily) -> Option<ListedRule> {
    let handle = all.get(nfta::RULE_HANDLE)?.try_into().ok().map(u64::from_be_bytes)?;
    let elements = all.nested(nfta::RULE_EXPRESSIONS).unwrap_or_default();
    let noted = || elements.iter().find_map(|(_, element)| comment_of_iptables(element));
    let comment = all.get(nfta::RULE_USERDATA).and_then(comment).or_else(noted);
    let counts = |(_, element): &(u16, &[u8])| {
        let is_counter = Attributes::of(element).text(nfta::EXPR_NAME) == Some("counter");
        is_counter || comment_of_iptables(element).is_some()
    };
    let rule = decode::rule(elements.iter().filter(|element| !counts(element)), family);
    let last = elements.iter().filter(|(kind, _)| *kind == nfta::LIST_ELEM).last();
    let leads_to = match last.and_then(|(_, element)| outcome(element)) {
        Some(Verdict::Jump(chain) | Verdict::Goto(chain)) => Some(chain),
        _ => None,
    };
    Some(ListedRule { handle, comment, rule, leads_to })
}

/// The text of a match `comment`; none for anything else.
pub(super) fn comment_of_iptables(element: &[u8]) -> Option<String> {
    let element = Attributes::of(element);
    let data = element.nested(nfta::EXPR_DATA)?;
    let is_comment =
        element.text(nfta::EXPR_NAME)? == "match" && data.text(nfta::MATCH_NAME)? == "comment";
    let text = data.get(nfta::MATCH_INFO)?.split(|byte| *byte == 0).next()?;
    is_comment.then(|| String::from_utf8_lossy(text).into_owned())
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

/// The number of the rule set, which every change of any table changes.
pub fn generation(socket: &mut Socket) -> io::Result<u32> {
    of_generation(socket, nfta::GEN_ID)
}

/// The number of this process as [`committer`] has it: as seen from outside of all namespaces.
pub fn own_number(socket: &mut Socket) -> io::Result<u32> {
    of_generation(socket, nfta::GEN_PROC_PID)
}

fn of_generation(socket: &mut Socket, attribute: u16) -> io::Result<u32> {
    let question = request(TableFamily::Only(Family::V4), NFT_MSG_GETGEN, 0);
    let number = |frame: &Frame<'_>| frame.attributes(HEADER)?.be32(attribute);
    let found = socket.get(question, number)?.map_err(|refusal| refusal.errno)?;
    Ok(found.ok_or(Errno::ENODATA)?)
}

/// The process that made all changes since the last such `frame`; none for any other frame. The kernel
/// sends it to listeners at the end of each transaction.
pub fn committer(frame: &Frame<'_>) -> Option<u32> {
    let kind = i32::from(frame.kind);
    let is_end = kind == NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWGEN;
    is_end.then(|| frame.attributes(HEADER)?.be32(nfta::GEN_PROC_PID))?
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
