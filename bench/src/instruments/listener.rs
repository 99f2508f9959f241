//! Records the times when routes are added or removed in a namespace, and nexthop objects added.

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::libc::{AF_INET, RTA_DST, RTM_DELROUTE, RTM_NEWROUTE};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, setsockopt,
    socket, sockopt,
};
use nix::sys::time::TimeVal;
use tweed_lab::Namespace;
use tweed_netlink::Frame;

use crate::instruments::peer::Peer;

/// Holds the changes of tens of thousands of peers until they are read.
const BUFFER: usize = 64 << 20;
/// The multicast groups of IPv4 routes (7) and of nexthop objects (32).
const GROUPS: u32 = 1 << 6 | 1 << 31;
const DATAGRAM: usize = 1 << 16;
/// The interval, in microseconds, at which the thread checks whether it must end.
const LOOK_UP: i64 = 100_000;

/// `RTM_NEWNEXTHOP` of `linux/rtnetlink.h`.
const NEW_NEXTHOP: u16 = 104;

type Notification = nix::Result<(Instant, Change)>;

/// Something that the kernel has created, replaced or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// An IPv4 route to this `/24` was created or replaced.
    Route(Ipv4Addr),
    /// An IPv4 route to this `/24` was removed.
    Removed(Ipv4Addr),
    Nexthop,
}

/// Listens from its creation on.
pub(crate) struct Listener {
    received: Receiver<Notification>,
    /// Ends the thread when it is dropped.
    _wanted: Arc<()>,
}

/// The times of the first and the last of the expected changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) first: Instant,
    pub(crate) last: Instant,
}

impl Span {
    pub(crate) fn length(self) -> Duration {
        self.last - self.first
    }
}

impl Listener {
    pub(crate) fn start(namespace: &Namespace) -> Result<Self> {
        let socket = namespace.within(open)?.context("listening to the kernel")?;
        let (sender, received) = channel();
        let wanted = Arc::new(());
        let is_wanted = Arc::downgrade(&wanted);
        std::thread::spawn(move || listen(&socket, &sender, &is_wanted));
        Ok(Self { received, _wanted: wanted })
    }

    /// Waits until a route to each of `peers` has been created or replaced.
    pub(crate) fn wait_for(
        &self,
        peers: impl IntoIterator<Item = Peer>,
        limit: Duration,
    ) -> Result<Span> {
        let mut missing: HashSet<Ipv4Addr> = peers.into_iter().map(Peer::base).collect();
        let deadline = Instant::now() + limit;
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

    /// Waits until the route to `peer` has been removed, and returns the time.
    pub(crate) fn wait_until_removed(&self, peer: Peer, limit: Duration) -> Result<Instant> {
        let deadline = Instant::now() + limit;
        loop {
            let (at, change) = self.next(deadline).context("the route is still there")?;
            if change == Change::Removed(peer.base()) {
                return Ok(at);
            }
        }
    }

    fn next(&self, deadline: Instant) -> Result<(Instant, Change)> {
        match self.received.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(received) => received.context("changes of the kernel were missed"),
            Err(RecvTimeoutError::Timeout) => bail!("the kernel notified of nothing in time"),
            Err(RecvTimeoutError::Disconnected) => bail!("the listener has ended"),
        }
    }
}

fn open() -> nix::Result<OwnedFd> {
    let route = SockProtocol::NetlinkRoute;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, route)?;
    // Without root rights on the host, the limit of the host applies.
    setsockopt(&socket, sockopt::RcvBufForce, &BUFFER)
        .or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &BUFFER))?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(0, LOOK_UP))?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
    Ok(socket)
}

fn listen(socket: &OwnedFd, sender: &Sender<Notification>, is_wanted: &Weak<()>) {
    let mut datagram = vec![0; DATAGRAM];
    while is_wanted.strong_count() > 0 {
        let length = match recv(socket.as_raw_fd(), &mut datagram, MsgFlags::empty()) {
            Ok(length) => length,
            Err(Errno::EAGAIN | Errno::EINTR) => continue,
            Err(error) => {
                let _ = sender.send(Err(error));
                return;
            }
        };
        let now = Instant::now();
        for change in changes(datagram.get(..length).unwrap_or_default()) {
            // The receiver may be gone.
            let _ = sender.send(Ok((now, change)));
        }
    }
}

/// All changes that a datagram of netlink reports.
fn changes(datagram: &[u8]) -> impl Iterator<Item = Change> {
    Frame::all(datagram).filter_map(|frame| match frame.kind {
        RTM_NEWROUTE => base(&frame).map(Change::Route),
        RTM_DELROUTE => base(&frame).map(Change::Removed),
        NEW_NEXTHOP => Some(Change::Nexthop),
        _ => None,
    })
}

/// The first address of the `/24` that an IPv4 route leads to.
fn base(frame: &Frame<'_>) -> Option<Ipv4Addr> {
    const HEADER: usize = 12;
    let [family, 24, ..] = *frame.payload else { return None };
    let destination = frame.attributes(HEADER)?.get(RTA_DST)?;
    let octets = <[u8; 4]>::try_from(destination).ok()?;
    (i32::from(family) == AF_INET).then(|| octets.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(4 + value.len()).unwrap();
        let padding = vec![0; value.len().next_multiple_of(4) - value.len()];
        [&length.to_ne_bytes(), &kind.to_ne_bytes(), value, &padding].concat()
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(16 + body.len()).unwrap();
        [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], body].concat()
    }

    fn route_to(family: u8, length: u8, base: [u8; 4]) -> Vec<u8> {
        let head = [family, length, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0];
        let body = [&head[..], &attribute(15, &[9]), &attribute(RTA_DST, &base)].concat();
        message(RTM_NEWROUTE, &body)
    }

    #[test]
    fn routes_and_new_nexthops_are_reported_and_nothing_else() {
        let datagram = [
            route_to(2, 24, [10, 129, 0, 0]),
            message(RTM_DELROUTE, &route_to(2, 24, [10, 129, 7, 0])[16..]),
            route_to(2, 9, [10, 128, 0, 0]),
            route_to(10, 24, [10, 129, 8, 0]),
            message(NEW_NEXTHOP, &[0; 8]),
            route_to(2, 24, [10, 129, 1, 0]),
        ];
        let route = |third| Change::Route(Ipv4Addr::new(10, 129, third, 0));
        let found: Vec<_> = changes(&datagram.concat()).collect();
        let removed = Change::Removed(Ipv4Addr::new(10, 129, 7, 0));
        assert_eq!(found, [route(0), removed, Change::Nexthop, route(1)]);
    }

    #[test]
    fn a_message_that_is_cut_off_is_skipped() {
        let whole = route_to(2, 24, [10, 129, 0, 0]);
        for length in 0..whole.len() {
            assert_eq!(changes(&whole[..length]).count(), 0, "{length}");
        }
        // A message with length zero must not cause an endless loop.
        assert_eq!(changes(&[0; 64]).count(), 0);
    }
}
