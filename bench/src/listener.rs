//! Hears of every new and removed route and new nexthop object of a namespace, and notes when.

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, setsockopt,
    socket, sockopt,
};
use nix::sys::time::TimeVal;
use tweed_lab::Namespace;

use super::change::{Change, changes};
use super::peer::Peer;

/// Holds the changes of tens of thousands of peers while nobody reads.
const BUFFER: usize = 64 << 20;
/// Of IPv4 routes, the seventh, and of nexthop objects, the last.
const GROUPS: u32 = 1 << 6 | 1 << 31;
const DATAGRAM: usize = 1 << 16;
/// So often, in microseconds, the thread looks whether it is still wanted.
const LOOK_UP: i64 = 100_000;

type Told = nix::Result<(Instant, Change)>;

/// Listens from the moment it exists.
pub(super) struct Listener {
    told: Receiver<Told>,
    /// Ends the thread when it goes.
    _wanted: Arc<()>,
}

/// When the first and the last of the changes waited for came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) first: Instant,
    pub(super) last: Instant,
}

impl Span {
    pub(super) fn length(self) -> Duration {
        self.last - self.first
    }
}

impl Listener {
    pub(super) fn start(namespace: &Namespace) -> Result<Self> {
        let socket = namespace.within(open)?.context("listening to the kernel")?;
        let (tell, told) = channel();
        let wanted = Arc::new(());
        let is_wanted = Arc::downgrade(&wanted);
        std::thread::spawn(move || listen(&socket, &tell, &is_wanted));
        Ok(Self { told, _wanted: wanted })
    }

    /// Waits until a route to each of `peers` has been made or replaced.
    pub(super) fn wait_for(
        &self,
        peers: impl IntoIterator<Item = Peer>,
        patience: Duration,
    ) -> Result<Span> {
        let mut missing: HashSet<Ipv4Addr> = peers.into_iter().map(Peer::base).collect();
        let deadline = Instant::now() + patience;
        let mut first = None;
        loop {
            let heard = self.next(deadline);
            let (at, change) =
                heard.with_context(|| format!("{} routes missing", missing.len()))?;
            let is_news = match change {
                Change::Route(base) => missing.remove(&base),
                Change::Nexthop => true,
                Change::Removed(_) => false,
            };
            if is_news {
                let first = *first.get_or_insert(at);
                if missing.is_empty() {
                    return Ok(Span { first, last: at });
                }
            }
        }
    }

    /// Waits until the route to `peer` has been removed, and says when that was.
    pub(super) fn wait_until_removed(&self, peer: Peer, patience: Duration) -> Result<Instant> {
        let deadline = Instant::now() + patience;
        loop {
            let (at, change) = self.next(deadline).context("the route is still there")?;
            if change == Change::Removed(peer.base()) {
                return Ok(at);
            }
        }
    }

    fn next(&self, deadline: Instant) -> Result<(Instant, Change)> {
        match self.told.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(told) => told.context("changes of the kernel were missed"),
            Err(RecvTimeoutError::Timeout) => bail!("the kernel told nothing in time"),
            Err(RecvTimeoutError::Disconnected) => bail!("nobody listens to the kernel"),
        }
    }
}

fn open() -> nix::Result<OwnedFd> {
    let route = SockProtocol::NetlinkRoute;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, route)?;
    // Without the rights of the host's root, the limit of the host is all there is.
    setsockopt(&socket, sockopt::RcvBufForce, &BUFFER)
        .or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &BUFFER))?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(0, LOOK_UP))?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
    Ok(socket)
}

fn listen(socket: &OwnedFd, tell: &Sender<Told>, is_wanted: &Weak<()>) {
    let mut datagram = vec![0; DATAGRAM];
    while is_wanted.strong_count() > 0 {
        let length = match recv(socket.as_raw_fd(), &mut datagram, MsgFlags::empty()) {
            Ok(length) => length,
            Err(Errno::EAGAIN | Errno::EINTR) => continue,
            Err(error) => {
                let _ = tell.send(Err(error));
                return;
            }
        };
        let now = Instant::now();
        for change in changes(datagram.get(..length).unwrap_or_default()) {
            // Who asked may have gone.
            let _ = tell.send(Ok((now, change)));
        }
    }
}
