//! Applies ops in order, in batches.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::mem;

use nix::errno::Errno;
use tweed_netlink::{Message, Refusal};

use super::NetlinkKernel;
use super::remedy::{Remedy, remedy};
use crate::kernel::codec::{self, Request, Unencodable};
use crate::kernel::iptables::HostChains;
use crate::kernel::{Chains, Observation, Refused};
use crate::model::entry::{Entry, LinkName};
use crate::plan::diff::Op;

/// The maximum number of messages in a batch, to limit the memory for encoded messages.
const BATCH: usize = 512;

/// One pass over a list of ops.
#[derive(Default)]
struct Pass {
    batch: Batch,
    /// Ops on tables, applied after the batch.
    tables: Vec<Op>,
    refused: Vec<Refused>,
    links: Knowledge,
    /// Links that may be gone or down since the last notification, because an op on them was
    /// refused.
    uncertain: BTreeSet<LinkName>,
}

/// Messages that are encoded but not yet sent.
#[derive(Default)]
struct Batch {
    ops: Vec<Op>,
    messages: Vec<Message>,
    /// The op that each message applies; none for an auxiliary message.
    owners: Vec<Option<usize>>,
}

/// How current the indices of links are.
#[derive(Default, PartialEq, Eq)]
enum Knowledge {
    /// From the last dump and later notifications.
    #[default]
    Good,
    /// Read in this pass.
    Fresh,
    /// A link in the batch will be created or recreated.
    Outdated,
}

impl NetlinkKernel {
    pub(super) async fn carry_out(&mut self, ops: &[Op]) -> io::Result<Vec<Refused>> {
        let mut pass = Pass::default();
        for op in ops {
            self.step(op.clone(), &mut pass).await?;
            if pass.batch.messages.len() >= BATCH {
                self.flush(&mut pass).await?;
            }
        }
        self.flush(&mut pass).await?;
        self.check_links(pass.uncertain).await?;
        Ok(pass.refused)
    }

    /// Reports links of `uncertain` that have changed. When a link is removed, the kernel first
    /// reports each entry on it: without this check, thousands of them would be recreated in vain.
    async fn check_links(&mut self, uncertain: BTreeSet<LinkName>) -> io::Result<()> {
        if uncertain.is_empty() {
            return Ok(());
        }
        let known: Vec<_> =
            uncertain.into_iter().map(|link| (self.links.get(&link).cloned(), link)).collect();
        self.read_links().await?;
        let changed =
            known.into_iter().filter(|(known, link)| self.links.get(link) != known.as_ref());
        self.observed.extend(changed.map(|(_, link)| Observation::LinkChanged(link)));
        Ok(())
    }

    async fn step(&mut self, op: Op, pass: &mut Pass) -> io::Result<()> {
        let is_link = matches!(op.entry(), Entry::Link(_));
        // Entries on a link need its index, which the kernel assigns when the link is created.
        if !is_link && pass.links == Knowledge::Outdated {
            self.learn_links(pass).await?;
        }
        let mut request = codec::encode(&op, &self.links);
        if matches!(request, Err(Unencodable::NoLink(_))) && pass.links != Knowledge::Fresh {
            self.learn_links(pass).await?;
            request = codec::encode(&op, &self.links);
        }
        match request {
            Ok(Request::Netlink(messages)) => {
                self.flush_tables(pass).await?;
                pass.batch.push(op, messages);
            }
            Ok(Request::Nftables) => pass.tables.push(op),
            Ok(Request::Iptables) => {
                self.flush(pass).await?;
                pass.refused.extend(HostChains.carry_out(vec![op]).await);
            }
            Ok(Request::Setting(setting)) => {
                self.flush(pass).await?;
                if let Err(reason) = self.settings.write(&setting) {
                    pass.refuse(op, &reason);
                }
            }
            // The entry was removed with its link.
            Err(Unencodable::NoLink(_)) if matches!(op, Op::Remove(_)) => {}
            Err(reason) => pass.refuse(op, &reason),
        }
        if is_link {
            pass.links = Knowledge::Outdated;
        }
        Ok(())
    }

    async fn learn_links(&mut self, pass: &mut Pass) -> io::Result<()> {
        self.flush(pass).await?;
        self.read_links().await?;
        pass.links = Knowledge::Fresh;
        Ok(())
    }

    async fn flush(&mut self, pass: &mut Pass) -> io::Result<()> {
        self.flush_batch(pass).await?;
        self.flush_tables(pass).await
    }

    async fn flush_tables(&mut self, pass: &mut Pass) -> io::Result<()> {
        if !pass.tables.is_empty() {
            self.flush_batch(pass).await?;
            pass.refused.extend(self.tables.carry_out(mem::take(&mut pass.tables)));
        }
        Ok(())
    }

    async fn flush_batch(&mut self, pass: &mut Pass) -> io::Result<()> {
        let mut second = Batch::default();
        for (op, refusal) in self.send(mem::take(&mut pass.batch)).await? {
            self.lacks_nexthops |= means_no_nexthops(&op, refusal.errno);
            match remedy(&op, refusal.errno) {
                Some(remedy) => self.retry(op, remedy, &mut second),
                None => pass.refuse_unless_done(op, &refusal),
            }
        }
        for (op, refusal) in self.send(second).await? {
            pass.refuse_unless_done(op, &refusal);
        }
        Ok(())
    }

    async fn send(&mut self, batch: Batch) -> io::Result<Vec<(Op, Refusal)>> {
        let refusals = self.requests.execute(batch.messages).await?;
        let op = |refusal: &Refusal| batch.ops.get((*batch.owners.get(refusal.index)?)?).cloned();
        Ok(refusals.into_iter().filter_map(|refusal| Some((op(&refusal)?, refusal))).collect())
    }

    fn retry(&self, op: Op, Remedy { before, after }: Remedy, batch: &mut Batch) {
        let assistance = |op: Option<Op>| op.iter().flat_map(|op| self.messages(op)).collect();
        batch.assist(assistance(before));
        let messages = self.messages(&op);
        batch.push(op, messages);
        batch.assist(assistance(after));
    }

    fn messages(&self, op: &Op) -> Vec<Message> {
        match codec::encode(op, &self.links) {
            Ok(Request::Netlink(messages)) => messages,
            Ok(Request::Nftables | Request::Iptables | Request::Setting(_)) | Err(_) => Vec::new(),
        }
    }
}

impl Batch {
    fn push(&mut self, op: Op, messages: Vec<Message>) {
        self.owners.resize(self.owners.len() + messages.len(), Some(self.ops.len()));
        self.messages.extend(messages);
        self.ops.push(op);
    }

    fn assist(&mut self, messages: Vec<Message>) {
        self.owners.resize(self.owners.len() + messages.len(), None);
        self.messages.extend(messages);
    }
}

impl Pass {
    fn refuse(&mut self, op: Op, reason: &dyn fmt::Display) {
        self.refused.push(Refused { op, reason: reason.to_string() });
    }

    fn refuse_unless_done(&mut self, op: Op, refusal: &Refusal) {
        if !is_done_already(&op, refusal.errno) {
            self.uncertain.extend(suspected_link(&op, refusal.errno));
            self.refuse(op, refusal);
        }
    }
}

/// Whether the kernel refused because it does not support nexthop objects, or not for tweed.
fn means_no_nexthops(op: &Op, errno: Errno) -> bool {
    matches!(op.entry(), Entry::Nexthop(_))
        && matches!(errno, Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EPERM | Errno::EACCES)
}

/// The link that may have caused the refusal. On a missing link, nexthop objects are refused as
/// invalid.
fn suspected_link(op: &Op, errno: Errno) -> Option<LinkName> {
    let may_be_link = matches!(errno, Errno::ENODEV | Errno::ENETDOWN | Errno::EINVAL);
    op.entry().link().filter(|_| may_be_link).cloned()
}

/// Whether the kernel refused only because the requested state already exists.
fn is_done_already(op: &Op, errno: Errno) -> bool {
    match op {
        Op::Remove(_) => {
            matches!(errno, Errno::ENOENT | Errno::ESRCH | Errno::ENODEV | Errno::EADDRNOTAVAIL)
        }
        Op::Create(entry) | Op::Replace(entry) => {
            matches!(**entry, Entry::Address(_)) && errno == Errno::EEXIST
        }
    }
}
