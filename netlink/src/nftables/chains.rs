//! All chains of this host, as far as it takes to know what they let through.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use nix::libc::{NF_ACCEPT, NF_INET_FORWARD, NFT_META_NFPROTO, NFT_MSG_GETCHAIN};

use super::batch::{HEADER, request};
use super::contents::rules_of;
use super::decode::{self, RuleVerdict, outcome};
use super::expression::{Expression, register};
use super::family::TableFamily;
use super::nfta;
use crate::Family;
use crate::attributes::Attributes;
use crate::frame::Frame;
use crate::socket::Socket;

/// A chain that filters, or that such a one may lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterChain {
    pub family: TableFamily,
    pub table: String,
    pub name: String,
    /// What becomes of forwarded packets at its end; none if they do not come here by themselves.
    pub policy: Option<RuleVerdict>,
    /// Those that are understood.
    pub rules: Vec<FilterRule>,
}

/// What becomes of packets of which all `tests` are true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterRule {
    pub tests: Vec<Expression>,
    pub outcome: RuleVerdict,
}

/// All chains of all families; with rules if they are in a table that forwarded packets come to.
pub fn filter_chains(socket: &mut Socket) -> io::Result<Vec<FilterChain>> {
    let mut found = Vec::new();
    for family in TableFamily::ALL {
        let mut chains = chains(socket, family)?;
        let filtering = chains.iter().filter(|chain| chain.policy.is_some());
        let tables: BTreeSet<String> = filtering.map(|chain| chain.table.clone()).collect();
        for table in tables {
            let mut rules = rules(socket, family, &table)?;
            for chain in chains.iter_mut().filter(|chain| chain.table == table) {
                chain.rules = rules.remove(&chain.name).unwrap_or_default();
            }
        }
        found.extend(chains);
    }
    Ok(found)
}

fn chains(socket: &mut Socket, family: TableFamily) -> io::Result<Vec<FilterChain>> {
    socket.list(&request(family, NFT_MSG_GETCHAIN, 0), |frame| {
        let all = of_family(frame, family)?;
        Some(FilterChain {
            family,
            table: all.text(nfta::CHAIN_TABLE)?.to_owned(),
            name: all.text(nfta::CHAIN_NAME)?.to_owned(),
            policy: policy(all),
            rules: Vec::new(),
        })
    })
}

/// Of a chain that forwarded packets come to.
fn policy(chain: Attributes<'_>) -> Option<RuleVerdict> {
    let number = chain.nested(nfta::CHAIN_HOOK)?.be32(nfta::HOOK_HOOKNUM)?;
    let filters = chain.text(nfta::CHAIN_TYPE)? == "filter";
    let policy = chain.be32(nfta::CHAIN_POLICY)?.cast_signed();
    let drops = if policy == NF_ACCEPT { RuleVerdict::Accept } else { RuleVerdict::Drop };
    (filters && number == NF_INET_FORWARD.cast_unsigned()).then_some(drops)
}

/// By the names of their chains.
fn rules(
    socket: &mut Socket,
    family: TableFamily,
    table: &str,
) -> io::Result<BTreeMap<String, Vec<FilterRule>>> {
    let listed = rules_of(socket, family, table, None, |all| {
        let rule = rule(all.nested(nfta::RULE_EXPRESSIONS)?, family)?;
        Some((all.text(nfta::RULE_CHAIN)?.to_owned(), rule))
    })?;
    let mut rules: BTreeMap<String, Vec<FilterRule>> = BTreeMap::new();
    for (chain, rule) in listed {
        rules.entry(chain).or_default().push(rule);
    }
    Ok(rules)
}

fn of_family<'a>(frame: &Frame<'a>, family: TableFamily) -> Option<Attributes<'a>> {
    let is_of_it = *frame.payload.first()? == family.number();
    frame.attributes(HEADER).filter(|_| is_of_it)
}

/// None if anything of it is not known here.
fn rule(elements: Attributes<'_>, family: TableFamily) -> Option<FilterRule> {
    let elements = elements.into_iter().filter(|(kind, _)| *kind == nfta::LIST_ELEM);
    let mut tests: Vec<_> = elements.filter(|(_, element)| !is_silent(element)).collect();
    let outcome = outcome(tests.pop()?.1)?;
    let family = match family {
        TableFamily::Only(family) => family,
        TableFamily::Both => shortened(&mut tests)?,
    };
    Some(FilterRule { tests: decode::expressions(tests, family)?, outcome })
}

/// Removes the first two elements if they test the family, and returns it.
fn shortened(tests: &mut Vec<(u16, &[u8])>) -> Option<Family> {
    let Some((_, first)) = tests.first() else { return Some(Family::V4) };
    let element = Attributes::of(first);
    let key = element.nested(nfta::EXPR_DATA)?.be32(nfta::META_KEY);
    let asks = element.text(nfta::EXPR_NAME)? == "meta" && key == Some(register(NFT_META_NFPROTO));
    let family = decode::compared_byte(tests.get(1)?.1)?;
    let families = [Family::V4, Family::V6].into_iter();
    let family = families.filter(|_| asks).find(|known| known.protocol() == family)?;
    tests.drain(..2);
    Some(family)
}

/// Whether it neither tests nor decides anything.
fn is_silent(element: &[u8]) -> bool {
    let element = Attributes::of(element);
    let extension = || element.nested(nfta::EXPR_DATA).and_then(|data| data.text(nfta::MATCH_NAME));
    match element.text(nfta::EXPR_NAME) {
        Some("counter" | "log") => true,
        Some("match") => extension() == Some("comment"),
        _ => false,
    }
}
