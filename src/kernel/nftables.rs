//! Reads nftables tables, replaces whole tables, and updates single elements.

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
    BasePolicy, Chain, ChainName, Element, Entry, PEERS, RENEWED, Table, TableName,
};
use crate::plan::diff::Op;

/// The size of the send buffer, in bytes. Fits the elements of all peers, which are sent at once.
const SEND_BUFFER: usize = 16 << 20;

/// The connection to nftables, opened on first use.
#[derive(Default)]
pub(super) struct Tables {
    socket: Option<Socket>,
    lack_masquerading: bool,
}

/// The kernel refused a change of nftables.
struct Unchanged<'a>(Errno, &'a Op);

impl Tables {
    /// The table `name`; none if it does not exist or nftables is unavailable. The error is
    /// reported when the table is written, and must not affect routes.
    pub(super) fn read(&mut self, name: &TableName) -> Option<Table> {
        let contents = self.ask(name, |socket| nftables::read(socket, name.family, &name.name));
        contents.map(|contents| codec::table(name.clone(), contents))
    }

    /// The element that keeps `table` dropping packets.
    pub(super) fn renewal(&mut self, table: &Table) -> Option<Entry> {
        let (name, set) = (&table.name, table.is_renewed().then_some(RENEWED)?);
        let stay = |socket: &mut _| nftables::udp_timeout(socket, name.family, &name.name, set);
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

    /// Whether the kernel refused a masquerading table.
    pub(super) const fn lack_masquerading(&self) -> bool {
        self.lack_masquerading
    }

    /// None if nftables is unavailable.
    pub(super) fn generation(&mut self) -> Option<Generation> {
        self.exchange(nftables::generation).ok().map(Generation)
    }

    /// Whether iptables-nft has this chain.
    pub(super) fn has_chain(&mut self, name: ChainName) -> bool {
        let (table, chain) = (name.base.table(), name.base.chain());
        self.exchange(|socket| nftables::has_chain(socket, name.family, table, chain))
            .unwrap_or(false)
    }

    /// The kernel state of this iptables-nft chain; empty if nftables is unavailable.
    pub(super) fn host_chain(&mut self, name: ChainName) -> HostChain {
        let (table, host, own) = (name.base.table(), name.base.as_str(), name.base.chain());
        self.ask(&name, |socket| {
            let mut rules =
                |chain| nftables::list(socket, TableFamily::Only(name.family), table, chain);
            let (host_rules, inside) = (rules(host)?, rules(own)?);
            let is_there = nftables::has_chain(socket, name.family, table, own)?;
            let drops = nftables::drops(socket, name.family, table, host)?;
            let base_policy = if drops { BasePolicy::Drop } else { BasePolicy::Accept };
            Ok(HostChain { inside: is_there.then_some(inside), host: host_rules, base_policy })
        })
    }

    /// Applies `op` to a chain of iptables-nft without external programs.
    pub(super) fn carry_out_on_chain(&mut self, op: &Op, chain: &Chain) -> Result<(), String> {
        let batch = self.host_chain(chain.name).batch(op, chain);
        if batch.is_empty() {
            return Ok(());
        }
        let errno = match self.exchange(|socket| batch.commit(socket)) {
            Ok(refusals) => refusals.first().map(|refusal| refusal.errno),
            Err(error) => Some(error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw)),
        };
        errno.map_or(Ok(()), |errno| Err(Unchanged(errno, op).to_string()))
    }

    /// Applies `ops` in one transaction. If the kernel refuses some, applies the others in a second
    /// one; if that fails too, applies them one by one.
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

    /// The ops that made the kernel refuse the transaction; empty if it was applied.
    fn refused_of(&mut self, ops: &[Op]) -> BTreeSet<usize> {
        let Some(Transaction { batch, owners }) = codec::transaction(ops) else {
            return BTreeSet::new();
        };
        match self.exchange(|socket| batch.commit(socket)) {
            Ok(refusals) => {
                let refused = refusals.iter().filter_map(|refusal| owners.get(refusal.index));
                refused.cloned().flatten().collect()
            }
            Err(_) => (0..ops.len()).collect(),
        }
    }

    fn carry_out_alone(&mut self, op: Op) -> Option<Refused> {
        let Transaction { batch, .. } = codec::transaction(std::slice::from_ref(&op))?;
        let errno = match self.exchange(|socket| batch.commit(socket)) {
            Ok(refusals) => refusals.first()?.errno,
            Err(error) => error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw),
        };
        if matches!((&op, errno), (Op::Remove(_), Errno::ENOENT)) {
            return None;
        }
        let unchanged = Unchanged(errno, &op);
        self.lack_masquerading |= unchanged.lacks_nftables() && op.entry().is_rules();
        Some(Refused { reason: unchanged.to_string(), op })
    }

    /// Reads `subject`; returns the default value if nftables is unavailable.
    fn ask<T: Default>(
        &mut self,
        subject: &impl fmt::Display,
        query: impl FnOnce(&mut Socket) -> io::Result<T>,
    ) -> T {
        self.exchange(query).unwrap_or_else(|error| {
            tracing::debug!(%error, %subject, "nftables was not read");
            T::default()
        })
    }

    /// After an error the socket is closed, because late messages would be taken for the next
    /// response.
    fn exchange<T>(&mut self, query: impl FnOnce(&mut Socket) -> io::Result<T>) -> io::Result<T> {
        let mut socket = self.socket.take().map_or_else(open, Ok)?;
        let reply = query(&mut socket)?;
        self.socket = Some(socket);
        Ok(reply)
    }
}

fn open() -> io::Result<Socket> {
    let socket = Socket::open(Protocol::Netfilter)?;
    // Without the required capability, the default buffer size is used.
    let _ = setsockopt(&socket, sockopt::SndBufForce, &SEND_BUFFER);
    Ok(socket)
}

impl Unchanged<'_> {
    /// The kernel features that the entry requires, and the alternative.
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

    /// Whether the kernel lacks nftables, or a feature that tweed's tables need.
    const fn lacks_nftables(&self) -> bool {
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
            _ if self.lacks_nftables() && !matches!(self.1.entry(), Entry::Chain(_)) => {
                let [what, cure] = self.needs();
                write!(f, "this kernel lacks nftables or {what} ({errno}): load {cure}")
            }
            _ => f.write_str(&errno),
        }
    }
}
