//! Masquerading in nftables, in the table that the CNI plugins share.

use std::collections::HashSet;
use std::fmt::Display;
use std::io;

use ipnetwork::IpNetwork;
use nix::errno::Errno;
use tweed_netlink::nftables::{
    Batch, Chain, Condition, Hook, ListedRule, Match, Ports, Rule, Table, TableFamily, Verdict,
};
use tweed_netlink::{Family, Protocol, Refusal, Socket};

use super::names;
use crate::bridge::identity::Identity;
use crate::protocol::error::Error;
use crate::protocol::request::Attachment;

const NAME: &str = "cni_plugins_masquerade";
const TABLE: Table<'_> = Table { family: TableFamily::Both, name: NAME };
const CHECKS: &str = "masq_checks";
const POSTROUTING: &str = "postrouting";

/// The number of rules to remove in one batch, which must fit into one send.
const AT_ONCE: usize = 500;

/// Why there are no rules.
#[derive(Debug)]
pub(super) enum Refused {
    /// The kernel has no NAT in tables of both families, as before Linux 5.2.
    Lacking(Error),
    Other(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

pub(super) fn ensure(identity: &Identity, addresses: &[IpNetwork]) -> Result<(), Refused> {
    let lacking = |cause: &dyn Display| {
        Refused::Lacking(failure(&format!("the kernel cannot do NAT there: {cause}")))
    };
    let Some(mut socket) = open_if_there()? else {
        return Err(lacking(&Errno::EPROTONOSUPPORT));
    };
    let stale = rules_of(&mut socket, &names::of_attachment(identity))?;
    let comment = names::comment(identity);
    let frame = frame(&mut socket)?;
    let cleared = stale.iter().fold(frame, |batch, rule| batch.delete_rule(CHECKS, rule.handle));
    let batch = addresses.iter().fold(cleared, |batch, address| {
        let source = Condition::source(Match::Is, address.ip());
        let conditions = [source, Condition::destination(Match::IsNot, *address)];
        let rule = Rule::of(conditions, Verdict::Masquerade(Ports::Kept));
        batch.rule(CHECKS, &rule, Some(&comment))
    });
    let refusals = batch.commit(&mut socket).map_err(|error| failure(&error))?;
    match refusals.first() {
        Some(refusal) if stale.is_empty() && is_unknown(refusal.errno) => Err(lacking(refusal)),
        first => Ok(check(first)?),
    }
}

/// Whether there were any.
pub(super) fn remove(identity: &Identity) -> Result<bool, Error> {
    let Some(mut socket) = open_if_there()? else { return Ok(false) };
    let rules = rules_of(&mut socket, &names::of_attachment(identity))?;
    delete(&mut socket, &rules)?;
    Ok(!rules.is_empty())
}

pub(super) fn collect(network: &str, valid: &[Attachment]) -> Result<(), Error> {
    let Some(mut socket) = open_if_there()? else { return Ok(()) };
    let lives: HashSet<_> = valid
        .iter()
        .map(|attachment| names::of_attachment(&Identity::new(network, attachment)))
        .collect();
    let mut rules = rules_of(&mut socket, &names::of_network(network))?;
    let is_valid = |comment: &str| comment.split(',').next().is_some_and(|key| lives.contains(key));
    rules.retain(|rule| !rule.comment.as_deref().is_some_and(is_valid));
    delete(&mut socket, &rules)
}

/// The chains that all attachments need, as all plugins write them. They are not rewritten: the kernel
/// would wait for all readers before it frees what it replaces.
fn frame(socket: &mut Socket) -> Result<Batch, Error> {
    let rules = postrouting();
    let present = match TABLE.rules(socket, POSTROUTING) {
        Err(error) if is_without_nftables(&error) => Vec::new(),
        present => present.map_err(|error| failure(&error))?,
    };
    if present.len() == rules.len() {
        return Ok(Batch::of(TABLE));
    }
    let comment = "Masquerading for plugins from github.com/containernetworking/plugins";
    let of_checks =
        "Masquerade traffic from certain IPs to any (non-multicast) IP outside their subnet";
    let empty = Batch::of(TABLE)
        .table(Some(comment))
        .chain(Chain { name: CHECKS, hook: None, comment: Some(of_checks) })
        .chain(Chain { name: POSTROUTING, hook: Some(Hook::SourceNat), comment: None })
        .flush(POSTROUTING);
    Ok(rules.iter().fold(empty, |batch, rule| batch.rule(POSTROUTING, rule, None)))
}

fn postrouting() -> Vec<Rule> {
    let spared = Family::ALL.map(Family::multicast).into_iter();
    let spared =
        spared.map(|group| Rule::of([Condition::destination(Match::Is, group)], Verdict::Return));
    spared.chain([Rule::of([], Verdict::Goto(CHECKS.to_owned()))]).collect()
}

fn rules_of(socket: &mut Socket, key: &str) -> Result<Vec<ListedRule>, Error> {
    let is_its =
        |rule: &ListedRule| rule.comment.as_deref().is_some_and(|text| text.starts_with(key));
    let all = TABLE.rules(socket, CHECKS);
    let mut rules = match all {
        Err(error) if is_without_nftables(&error) => Vec::new(),
        all => all.map_err(|error| failure(&error))?,
    };
    rules.retain(is_its);
    Ok(rules)
}

fn delete(socket: &mut Socket, rules: &[ListedRule]) -> Result<(), Error> {
    rules.chunks(AT_ONCE).try_for_each(|rules| {
        let start = Batch::of(TABLE);
        let batch = rules.iter().fold(start, |batch, rule| batch.delete_rule(CHECKS, rule.handle));
        commit(socket, batch)
    })
}

fn commit(socket: &mut Socket, batch: Batch) -> Result<(), Error> {
    check(batch.commit(socket).map_err(|error| failure(&error))?.first())
}

fn check(refusal: Option<&Refusal>) -> Result<(), Error> {
    match refusal {
        None => Ok(()),
        // Another process has removed one of them meanwhile: a retry finds what is left.
        Some(refusal) if refusal.errno == Errno::ENOENT => {
            Err(Error::try_again_later(format!("the rules of {NAME} have changed meanwhile")))
        }
        Some(refusal) => Err(failure(refusal)),
    }
}

/// None on a kernel without netfilter's messages.
fn open_if_there() -> Result<Option<Socket>, Error> {
    match Socket::open(Protocol::Netfilter) {
        Err(error) if is_without_nftables(&error) => Ok(None),
        socket => socket.map(Some).map_err(|error| failure(&error)),
    }
}

/// So a kernel answers that lacks a chain's type, an expression, or nftables.
fn is_unknown(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT | Errno::EINVAL)
}

/// So a kernel answers that knows other parts of netfilter alone, or none: it has no such rules.
fn is_without_nftables(error: &io::Error) -> bool {
    let lacks_protocol = error.raw_os_error() == Some(Errno::EPROTONOSUPPORT as i32);
    lacks_protocol || error.kind() == io::ErrorKind::InvalidInput
}

fn failure(cause: &impl std::fmt::Display) -> Error {
    Error::failed(format!("masquerading by the nftables table inet {NAME}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_nftables_has_no_nftables_rules() {
        for errno in [Errno::EINVAL, Errno::EPROTONOSUPPORT] {
            assert!(is_without_nftables(&errno.into()), "{errno}");
        }
        for errno in [Errno::ENOBUFS, Errno::EPERM, Errno::EMFILE] {
            assert!(!is_without_nftables(&errno.into()), "{errno}");
        }
    }
}
