//! All chains of this host, as far as it takes to know what they let through.

use std::collections::BTreeSet;
use std::io;

use nix::libc::{NF_ACCEPT, NF_INET_FORWARD, NFT_META_NFPROTO, NFT_MSG_GETCHAIN};

use super::batch::{HEADER, request};
use super::contents::comment_of_iptables;
use super::decode::{self, outcome};
use super::expression::register;
use super::family::{Table, TableFamily};
use super::nfta;
use super::rule::{Rule, Verdict};
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
    pub policy: Option<Verdict>,
    /// Those that are understood. One that rejects drops.
    pub rules: Vec<Rule>,
}

/// All chains of all families; with rules if they are in a table that forwarded packets come to.
pub fn filter_chains(socket: &mut Socket) -> io::Result<Vec<FilterChain>> {
    let mut found = Vec::new();
    for family in TableFamily::ALL {
        let mut chains = chains(socket, family)?;
        let filtering = chains.iter().filter(|chain| chain.policy.is_some());
        let tables: BTreeSet<String> = filtering.map(|chain| chain.table.clone()).collect();
        for table in tables {
            let mut rules =
                Table { family, name: &table }.rules_by_chain(socket, |one| rule(one, family))?;
            for chain in chains.iter_mut().filter(|chain| chain.table == table) {
                let rules = rules.remove(&chain.name).unwrap_or_default();
                chain.rules = rules.into_iter().flatten().collect();
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
fn policy(chain: Attributes<'_>) -> Option<Verdict> {
    let number = chain.nested(nfta::CHAIN_HOOK)?.be32(nfta::HOOK_HOOKNUM)?;
    let filters = chain.text(nfta::CHAIN_TYPE)? == "filter";
    let policy = chain.be32(nfta::CHAIN_POLICY)?.cast_signed();
    let drops = if policy == NF_ACCEPT { Verdict::Accept } else { Verdict::Drop };
    (filters && number == NF_INET_FORWARD.cast_unsigned()).then_some(drops)
}

fn of_family<'a>(frame: &Frame<'a>, family: TableFamily) -> Option<Attributes<'a>> {
    let is_of_it = *frame.payload.first()? == family.number();
    frame.attributes(HEADER).filter(|_| is_of_it)
}

/// None if anything of it is not known here.
fn rule(elements: Attributes<'_>, family: TableFamily) -> Option<Rule> {
    let elements = elements.iter().filter(|(kind, _)| *kind == nfta::LIST_ELEM);
    let mut tests: Vec<_> = elements.filter(|(_, element)| !is_silent(element)).collect();
    let verdict = outcome(tests.pop()?.1)?;
    let family = match family {
        TableFamily::Only(family) => family,
        TableFamily::Both => shortened(&mut tests)?,
    };
    Some(Rule { conditions: decode::conditions(tests, family)?, verdict })
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
    let name = Attributes::of(element).text(nfta::EXPR_NAME);
    matches!(name, Some("counter" | "log")) || comment_of_iptables(element).is_some()
}
