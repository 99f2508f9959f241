//! The tables of nftables: read, and replaced as a whole; of their elements, each by itself.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use tweed_netlink::nftables::{self, TableFamily};
use tweed_netlink::{Protocol, Socket};

use super::codec::{self, HostChain, Transaction};
use super::{Generation, Refused};
use crate::model::entry::{
    Chain, ChainName, Element, Entry, Otherwise, PEERS, RENEWED, Table, TableName,
};
use crate::plan::diff::Op;

/// Room for the elements of more peers than there can be, in bytes: they are sent at once.
const ROOM: usize = 16 << 20;

/// The conversation with nftables, taken up when there is something to say.
#[derive(Default)]
pub(super) struct Tables {
    socket: Option<Socket>,
    lack_masquerading: bool,
}

/// The kernel did not do what was asked of nftables.
struct Unchanged<'a>(Errno, &'a Op);

impl Tables {
    /// The table `name`; none if there is no such table, or nftables cannot be asked: whoever wants
    /// it hears of that when it is put, and routes have nothing to do with it.
    pub(super) fn read(&mut self, name: &TableName) -> Option<Table> {
        let contents = self.ask(name, |socket| nftables::read(socket, name.family, &name.name));
        contents.map(|contents| codec::table(name.clone(), contents))
    }

    /// What keeps `table` dropping packets.
    pub(super) fn renewal(&mut self, table: &Table) -> Option<Entry> {
        let (name, set) = (&table.name, table.is_renewed().then_some(RENEWED)?);
        let stay = |socket: &mut _| nftables::udp_stay(socket, name.family, &name.name, set);
        let stay = self.ask(name, stay)?;
        Some(Entry::Renewal(codec::renewal(Arc::clone(name), stay)))
    }

    /// The elements of `table`.
    pub(super) fn elements(&mut self, table: &Table) -> Vec<Entry> {
        if !table.has_peers() {
            return Vec::new();
        }
        let name = &table.name;
        let read = |socket: &mut _| nftables::addresses(socket, name.family, &name.name, PEERS);
        let element = |address| Entry::Element(Element { table: Arc::clone(name), address });
        self.ask(name, read).into_iter().map(element).collect()
    }

    /// Whether the kernel would not have a table by which packets are masqueraded.
    pub(super) const fn lack_masquerading(&self) -> bool {
        self.lack_masquerading
    }

    /// None where nftables cannot be asked.
    pub(super) fn generation(&mut self) -> Option<Generation> {
        self.converse(nftables::generation).ok().map(Generation)
    }

    /// Whether iptables has made this chain, by nftables.
    pub(super) fn has_chain(&mut self, name: ChainName) -> bool {
        let (table, chain) = (name.base.table(), name.base.chain());
        self.converse(|socket| nftables::has_chain(socket, name.family, table, chain))
            .unwrap_or(false)
    }

    /// What the kernel has of this chain of iptables-nft; nothing where nftables cannot be asked.
    pub(super) fn host_chain(&mut self, name: ChainName) -> HostChain {
        let (table, host, own) = (name.base.table(), name.base.as_str(), name.base.chain());
        self.ask(&name, |socket| {
            let mut rules =
                |chain| nftables::list(socket, TableFamily::Only(name.family), table, chain);
            let (host_rules, inside) = (rules(host)?, rules(own)?);
            let is_there = nftables::has_chain(socket, name.family, table, own)?;
            let drops = nftables::drops(socket, name.family, table, host)?;
            let otherwise = if drops { Otherwise::Dropped } else { Otherwise::Accepted };
            Ok(HostChain { inside: is_there.then_some(inside), host: host_rules, otherwise })
        })
    }

    /// Carries `op` out on a chain of iptables-nft, without its programs.
    pub(super) fn carry_out_on_chain(&mut self, op: &Op, chain: &Chain) -> Result<(), String> {
        let batch = self.host_chain(chain.name).batch(op, chain);
        if batch.is_empty() {
            return Ok(());
        }
        let errno = match self.converse(|socket| batch.commit(socket)) {
            Ok(refusals) => refusals.first().map(|refusal| refusal.errno),
            Err(error) => Some(error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw)),
        };
        errno.map_or(Ok(()), |errno| Err(Unchanged(errno, op).to_string()))
    }

    /// Carries `ops` out together. If the kernel does not take them all, then without those that it
    /// refused; if that does not help, one by one.
    pub(super) fn carry_out(&mut self, ops: Vec<Op>) -> Vec<Refused> {
        let suspects = self.refused_of(&ops);
        if suspects.is_empty() {
            return Vec::new();
        }
        let (suspects, others): (Vec<_>, Vec<_>) =
            ops.into_iter().enumerate().partition(|(index, _)| suspects.contains(index));
        let [suspects, others] =
            [suspects, others].map(|ops| ops.into_iter().map(|(_, op)| op).collect::<Vec<_>>());
        let others = if self.refused_of(&others).is_empty() { Vec::new() } else { others };
        suspects.into_iter().chain(others).filter_map(|op| self.carry_out_alone(op)).collect()
    }

    /// Those of `ops` for which the kernel carried none of them out; empty if it did.
    fn refused_of(&mut self, ops: &[Op]) -> BTreeSet<usize> {
        let Some(Transaction { batch, owners }) = codec::transaction(ops) else {
            return BTreeSet::new();
        };
        match self.converse(|socket| batch.commit(socket)) {
            Ok(refusals) => {
                let refused = refusals.iter().filter_map(|refusal| owners.get(refusal.index));
                refused.cloned().flatten().collect()
            }
            Err(_) => (0..ops.len()).collect(),
        }
    }

    fn carry_out_alone(&mut self, op: Op) -> Option<Refused> {
        let Transaction { batch, .. } = codec::transaction(std::slice::from_ref(&op))?;
        let errno = match self.converse(|socket| batch.commit(socket)) {
            Ok(refusals) => refusals.first()?.errno,
            Err(error) => error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw),
        };
        if matches!((&op, errno), (Op::Remove(_), Errno::ENOENT)) {
            return None;
        }
        let unchanged = Unchanged(errno, &op);
        self.lack_masquerading |= unchanged.is_for_want_of_nftables() && op.entry().is_rules();
        Some(Refused { reason: unchanged.to_string(), op })
    }

    /// What is known of `subject`; as good as nothing where nftables cannot be asked.
    fn ask<T: Default>(
        &mut self,
        subject: &impl fmt::Display,
        talk: impl FnOnce(&mut Socket) -> io::Result<T>,
    ) -> T {
        self.converse(talk).unwrap_or_else(|error| {
            tracing::debug!(%error, %subject, "nftables was not read");
            T::default()
        })
    }

    /// A broken conversation is not gone on with: what is still to come would be taken for an answer.
    fn converse<T>(&mut self, talk: impl FnOnce(&mut Socket) -> io::Result<T>) -> io::Result<T> {
        let mut socket = self.socket.take().map_or_else(open, Ok)?;
        let said = talk(&mut socket)?;
        self.socket = Some(socket);
        Ok(said)
    }
}

fn open() -> io::Result<Socket> {
    let socket = Socket::open(Protocol::Netfilter)?;
    // Without the right to this, as much as everybody gets must do.
    let _ = setsockopt(&socket, sockopt::SndBufForce, &ROOM);
    Ok(socket)
}

impl Unchanged<'_> {
    /// What of nftables it takes, and what to do without.
    fn needs(&self) -> [&'static str; 2] {
        if self.1.entry().is_rules() {
            [
                "its masquerading",
                "nf_tables, nft_chain_nat, nft_masq and nft_nat, or start tweedd without --ip-masq",
            ]
        } else {
            ["what guards the tunnel", "nf_tables, nft_fib_ipv4 and nft_fib_ipv6"]
        }
    }

    /// Whether this kernel has no such tables, or not all that ours need.
    const fn is_for_want_of_nftables(&self) -> bool {
        matches!(self.0, Errno::EPROTONOSUPPORT | Errno::EOPNOTSUPP | Errno::ENOENT)
    }
}

impl fmt::Display for Unchanged<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errno = self.0.desc().to_lowercase();
        match self.0 {
            Errno::EPERM | Errno::EACCES => {
                write!(f, "{errno}: tweedd needs the capability NET_ADMIN")
            }
            _ if self.is_for_want_of_nftables() && !matches!(self.1.entry(), Entry::Chain(_)) => {
                let [what, cure] = self.needs();
                write!(f, "this kernel lacks nftables or {what} ({errno}): load {cure}")
            }
            _ => f.write_str(&errno),
        }
    }
}
