//! The tables of nftables: read, and replaced as a whole.

use std::fmt;
use std::io;
use std::time::Duration;

use nix::errno::Errno;
use tweed_cni::netlink::{Protocol, Refusal, Socket};
use tweed_cni::nftables::{self, Batch};

use crate::kernel::Op;
use crate::kernel::codec;
use crate::kernel::state::{ChainName, Table, TableName};

/// The kernel answers before a request has returned; only a lost answer would be waited for.
const DEADLINE: Duration = Duration::from_secs(5);

/// The conversation with nftables, taken up when there is something to say.
#[derive(Default)]
pub(super) struct Tables {
    socket: Option<Socket>,
}

/// The kernel did not do what was asked of nftables.
#[derive(Debug)]
pub(super) struct Unchanged(Errno);

impl Tables {
    /// The table `name`; none if there is no such table, or nftables cannot be asked: whoever wants
    /// it hears of that when it is put, and routes have nothing to do with it.
    pub(super) fn read(&mut self, name: &TableName) -> Option<Table> {
        let family = codec::ip_family(name.family);
        let read = self.converse(|socket| nftables::read(socket, family, &name.name));
        let contents = read.unwrap_or_else(|error| {
            tracing::debug!(%error, table = %name, "the table was not read");
            None
        });
        contents.map(|contents| codec::table(name.clone(), contents))
    }

    /// Whether iptables has made this chain, by nftables.
    pub(super) fn has_chain(&mut self, name: ChainName) -> bool {
        let family = codec::ip_family(name.family);
        let (table, chain) = (name.base.table(), name.base.chain());
        self.converse(|socket| nftables::has_chain(socket, family, table, chain)).unwrap_or(false)
    }

    pub(super) fn carry_out(&mut self, op: &Op, batch: Batch) -> Result<(), Unchanged> {
        let refusals = self.converse(|socket| batch.commit(socket));
        let first = refusals.map_err(Unchanged::from)?.into_iter().next();
        match (op, first) {
            (_, None) | (Op::Remove(_), Some(Refusal { errno: Errno::ENOENT, .. })) => Ok(()),
            (_, Some(Refusal { errno, .. })) => Err(Unchanged(errno)),
        }
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
    socket.wait_no_longer_than(DEADLINE)?;
    Ok(socket)
}

impl Unchanged {
    /// Whether this kernel has no such tables, or not all that ours need.
    pub(super) const fn for_want_of_nftables(&self) -> bool {
        matches!(self.0, Errno::EPROTONOSUPPORT | Errno::EOPNOTSUPP | Errno::ENOENT)
    }
}

impl From<io::Error> for Unchanged {
    fn from(error: io::Error) -> Self {
        Self(error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw))
    }
}

impl fmt::Display for Unchanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errno = self.0.desc().to_lowercase();
        match self.0 {
            Errno::EPERM | Errno::EACCES => {
                write!(f, "{errno}: tweedd needs the capability NET_ADMIN")
            }
            _ if self.for_want_of_nftables() => write!(
                f,
                "this kernel lacks nftables or its masquerading ({errno}): load nf_tables, \
                 nft_chain_nat and nft_masq, or start tweedd without --ip-masq"
            ),
            _ => f.write_str(&errno),
        }
    }
}
