//! Reads nftables tables, replaces whole tables, and updates single elements.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use tweed_netlink::nftables::{self, Batch};
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
    /// Whether the kernel refused a masquerading table.
    pub(super) lack_masquerading: bool,
}

impl Tables {
    /// The table `name` with its elements; none if it does not exist or nftables is unavailable. The
    /// error is reported when the table is written, and must not affect routes.
    pub(super) fn read(&mut self, name: &TableName) -> Vec<Entry> {
        let contents = self.ask(name, |socket| codec::named_table(name).read(socket));
        let Some(contents) = contents else { return Vec::new() };
        let table = codec::table(name.clone(), contents);
        let renewal = self.renewal(&table);
        let elements = self.elements(&table);
        renewal.into_iter().chain(elements).chain([Entry::Table(table)]).collect()
    }

    /// The element that keeps `table` dropping packets.
    fn renewal(&mut self, table: &Table) -> Option<Entry> {
        let (name, set) = (&table.name, table.is_renewed().then_some(RENEWED)?);
        let stay = |socket: &mut _| codec::named_table(name).udp_timeout(socket, set);
        let stay = self.ask(name, stay)?;
        Some(Entry::Renewal(codec::renewal(Arc::clone(name), stay)))
    }

    fn elements(&mut self, table: &Table) -> Vec<Entry> {
        if !table.has_peers() {
            return Vec::new();
        }
        let name = &table.name;
        let read = |socket: &mut _| codec::named_table(name).addresses(socket, PEERS);
        let element = |address| Entry::Element(Element { table: Arc::clone(name), address });
        self.ask(name, read).into_iter().map(element).collect()
    }

    /// None if nftables is unavailable.
    pub(super) fn generation(&mut self) -> Option<Generation> {
        self.exchange(nftables::generation).ok().map(Generation)
    }

    pub(super) fn has_chain(&mut self, name: ChainName) -> bool {
        let chain = name.base.chain();
        self.exchange(|socket| codec::table_of(name).has_chain(socket, chain)).unwrap_or(false)
    }

    /// The kernel state of this iptables-nft chain.
    pub(super) fn host_chain(&mut self, name: ChainName) -> io::Result<HostChain> {
        let (table, host, own) = (codec::table_of(name), name.base.as_str(), name.base.chain());
        self.exchange(|socket| {
            let (host_rules, inside) = (table.rules(socket, host)?, table.rules(socket, own)?);
            let is_there = table.has_chain(socket, own)?;
            let drops = table.drops(socket, host)?;
            let base_policy = if drops { BasePolicy::Drop } else { BasePolicy::Accept };
            Ok(HostChain { inside: is_there.then_some(inside), host: host_rules, base_policy })
        })
    }

    /// Applies `op` to a chain of iptables-nft without external programs.
    pub(super) fn carry_out_on_chain(&mut self, op: &Op, chain: &Chain) -> Result<(), String> {
        let host = self.host_chain(chain.name).map_err(|error| error.to_string())?;
        let batch = host.batch(op, chain);
        if batch.is_empty() {
            return Ok(());
        }
        self.refusal(batch).map_or(Ok(()), |errno| Err(reason(errno, op.entry())))
    }

    /// Commits `batch`; returns the first error.
    fn refusal(&mut self, batch: Batch) -> Option<Errno> {
        match self.exchange(|socket| batch.commit(socket)) {
            Ok(refusals) => refusals.first().map(|refusal| refusal.errno),
            Err(error) => Some(error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw)),
        }
    }

    /// Applies `ops` in one transaction. If the kernel refuses some, applies the others in a second
    /// one; if that fails too, applies them one by one.
    pub(super) fn carry_out(&mut self, ops: Vec<Op>) -> Vec<Refused> {
        let refused = self.refused_of(&ops);
        let (mut suspects, mut others) = (Vec::new(), Vec::new());
        for (index, op) in ops.into_iter().enumerate() {
            if refused.contains(&index) { suspects.push(op) } else { others.push(op) }
        }
        if !suspects.is_empty() && !self.refused_of(&others).is_empty() {
            suspects.append(&mut others);
        }
        suspects.into_iter().filter_map(|op| self.carry_out_alone(op)).collect()
    }

    /// The ops that made the kernel refuse the transaction; empty if it was applied.
    fn refused_of(&mut self, ops: &[Op]) -> BTreeSet<usize> {
        let Some(Transaction { batch, owners }) = codec::transaction(ops) else {
            return BTreeSet::new();
        };
        let Ok(refusals) = self.exchange(|socket| batch.commit(socket)) else {
            return (0..ops.len()).collect();
        };
        refusals.iter().filter_map(|it| owners.get(it.index)).cloned().flatten().collect()
    }

    fn carry_out_alone(&mut self, op: Op) -> Option<Refused> {
        let Transaction { batch, .. } = codec::transaction(std::slice::from_ref(&op))?;
        let errno = self.refusal(batch)?;
        if matches!((&op, errno), (Op::Remove(_), Errno::ENOENT)) {
            return None;
        }
        self.lack_masquerading |= lacks_nftables(errno) && op.entry().is_rules();
        Some(Refused { reason: reason(errno, op.entry()), op })
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

/// Whether the kernel lacks nftables, or a feature that tweed's tables need.
const fn lacks_nftables(errno: Errno) -> bool {
    matches!(errno, Errno::EPROTONOSUPPORT | Errno::EOPNOTSUPP | Errno::ENOENT)
}

/// Describes why the kernel refused a change of `entry`, and the fix if it is known.
fn reason(errno: Errno, entry: &Entry) -> String {
    let text = errno.desc().to_lowercase();
    match errno {
        Errno::EPERM | Errno::EACCES => format!("{text}: tweedd needs the capability NET_ADMIN"),
        _ if lacks_nftables(errno) && !matches!(entry, Entry::Chain(_)) => {
            let (what, modules) = if entry.is_rules() {
                (
                    "masquerading",
                    "nf_tables, nft_chain_nat, nft_masq and nft_nat, or start tweedd without --ip-masq",
                )
            } else {
                ("expressions that guard the tunnel", "nf_tables, nft_fib_ipv4 and nft_fib_ipv6")
            };
            format!("this kernel lacks nftables or {what} ({text}): load {modules}")
        }
        _ => text,
    }
}
