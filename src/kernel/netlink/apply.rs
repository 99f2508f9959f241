//! Carrying ops out: in their order, many at a time.

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

/// So many messages wait to be sent, at most: encoded they take more room than anything else.
const BATCH: usize = 512;

/// One pass over a list of ops.
#[derive(Default)]
struct Pass {
    batch: Batch,
    /// Of tables: not carried out yet, after all that is in the batch.
    tables: Vec<Op>,
    refused: Vec<Refused>,
    links: Knowledge,
    /// Those that may be gone, or down, since we last heard of them: something on them was refused.
    doubted: BTreeSet<LinkName>,
}

/// Encoded and not yet sent.
#[derive(Default)]
struct Batch {
    ops: Vec<Op>,
    messages: Vec<Message>,
    /// Which of the ops each message carries out; none if it only smooths the way.
    owners: Vec<Option<usize>>,
}

/// How well the indices of links are known.
#[derive(Default, PartialEq, Eq)]
enum Knowledge {
    /// As of the last dump and the changes observed since.
    #[default]
    Good,
    /// Read in this pass.
    Fresh,
    /// A link in the batch is about to be made, or made anew.
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
        self.check_links(pass.doubted).await?;
        Ok(pass.refused)
    }

    /// Reports those of `doubted` that are not as we know them. When a link goes, the kernel first
    /// reports each entry that it takes along: of thousands, each would be tried again in vain.
    async fn check_links(&mut self, doubted: BTreeSet<LinkName>) -> io::Result<()> {
        if doubted.is_empty() {
            return Ok(());
        }
        let known: Vec<_> =
            doubted.into_iter().map(|link| (self.links.get(&link).cloned(), link)).collect();
        self.read_links().await?;
        let changed =
            known.into_iter().filter(|(known, link)| self.links.get(link) != known.as_ref());
        self.observed.extend(changed.map(|(_, link)| Observation::LinkChanged(link)));
        Ok(())
    }

    async fn step(&mut self, op: Op, pass: &mut Pass) -> io::Result<()> {
        let is_link = matches!(op.entry(), Entry::Link(_));
        // What sits on a link needs the index that the kernel gives it when it is made.
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
            // What sat on the link went with it.
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
            self.lacks_nexthops |= says_no_nexthops(&op, refusal.errno);
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
            self.doubted.extend(doubted_link(&op, refusal.errno));
            self.refuse(op, refusal);
        }
    }
}

/// Whether the kernel refused because it has no nexthop objects, or none for us.
fn says_no_nexthops(op: &Op, errno: Errno) -> bool {
    matches!(op.entry(), Entry::Nexthop(_))
        && matches!(errno, Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EPERM | Errno::EACCES)
}

/// The link that is perhaps why: nexthop objects are refused as invalid on one that is gone.
fn doubted_link(op: &Op, errno: Errno) -> Option<LinkName> {
    let is_doubted = matches!(errno, Errno::ENODEV | Errno::ENETDOWN | Errno::EINVAL);
    op.entry().link().filter(|_| is_doubted).cloned()
}

/// Whether the kernel refused only because things are as `op` would have them.
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
