//! Neighbours, and next hops: whether the kernel knows the hardware address of one, without a packet
//! that waits for it.

use std::io;
use std::net::IpAddr;

use nix::errno::Errno;
use nix::libc::{
    AF_BRIDGE, NDA_DST, NDA_IFINDEX, NLM_F_CREATE, NTF_USE, NUD_DELAY, NUD_NOARP, NUD_PERMANENT,
    NUD_PROBE, NUD_REACHABLE, NUD_STALE, RTA_GATEWAY, RTA_OIF, RTM_GETNEIGH, RTM_NEWNEIGH,
};

use super::address::family;
use super::route::{self, RTMSG};
use crate::attributes::{ip, u16_at, u32_at};
use crate::frame::{Frame, Refusal};
use crate::message::{Message, byte};
use crate::socket::{Protocol, Socket};

/// A conversation about next hops.
pub struct NextHops {
    socket: Socket,
}

/// Whether the kernel would send a packet at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The hardware address is known, or the link needs none.
    Done,
    /// The kernel asks the link for it.
    UnderWay,
}

#[derive(Clone, Copy, Debug)]
struct NextHop {
    link: u32,
    address: IpAddr,
}

const NDMSG: usize = 12;
/// A next hop of another family than the route: behind two bytes with that family.
const RTA_VIA: u16 = 18;
/// States in which a packet is sent at once, to the hardware address that was known last.
const USABLE: u16 = NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_NOARP | NUD_PERMANENT;

impl NextHops {
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open(Protocol::Route)? })
    }

    /// Whether a packet to `address` would be sent at once. If not, the kernel resolves it now,
    /// with a source address of its own choice. Fails if there is no route to `address`.
    pub fn resolve(&mut self, address: IpAddr) -> io::Result<Resolution> {
        let next_hop = self.find(address)?;
        if self.is_usable(next_hop)? {
            return Ok(Resolution::Done);
        }
        // Changes no entry that exists: it only has the kernel ask.
        let order = message(RTM_NEWNEIGH, NLM_F_CREATE, NTF_USE, next_hop);
        self.socket.get(order, |_| Some(()))?.map_err(|refusal| refusal.errno)?;
        Ok(Resolution::UnderWay)
    }

    /// By the kernel's route to `address`.
    fn find(&mut self, address: IpAddr) -> io::Result<NextHop> {
        let found = self.socket.get(route::lookup(address), |frame| {
            let all = frame.attributes(RTMSG)?;
            let via = all.get(RTA_VIA).and_then(|via| ip(via.get(2..)?));
            let gateway = all.ip(RTA_GATEWAY).or(via);
            Some(NextHop { link: all.u32(RTA_OIF)?, address: gateway.unwrap_or(address) })
        })?;
        Ok(found.map_err(|refusal| refusal.errno)?.ok_or(Errno::ENETUNREACH)?)
    }

    fn is_usable(&mut self, next_hop: NextHop) -> io::Result<bool> {
        let question = message(RTM_GETNEIGH, 0, 0, next_hop);
        match self.socket.get(question.clone(), state)? {
            Err(Refusal { errno: Errno::ENOENT, .. }) => Ok(false),
            // Before 5.0, the kernel only lists.
            Err(Refusal { errno: Errno::EOPNOTSUPP, .. }) => {
                let is_it = |frame: &Frame<'_>| state_of(frame, next_hop);
                Ok(self.socket.list(&question, is_it)?.into_iter().any(is_usable))
            }
            answer => Ok(answer.map_err(|refusal| refusal.errno)?.is_some_and(is_usable)),
        }
    }
}

/// All on this link.
pub fn list(link: u32) -> Message {
    Message::new(RTM_GETNEIGH, 0, &[0; NDMSG]).u32(NDA_IFINDEX, link)
}

/// All FDB entries on this link.
pub fn list_fdb(link: u32) -> Message {
    Message::new(RTM_GETNEIGH, 0, &ndmsg(byte(AF_BRIDGE), link, 0))
}

const fn is_usable(state: u16) -> bool {
    state & USABLE != 0
}

fn message(kind: u16, flags: i32, neighbour_flags: u8, next_hop: NextHop) -> Message {
    let NextHop { link, address } = next_hop;
    Message::new(kind, flags, &ndmsg(family(address), link, neighbour_flags)).ip(NDA_DST, address)
}

/// Without a state.
const fn ndmsg(family: u8, link: u32, flags: u8) -> [u8; NDMSG] {
    let [a, b, c, d] = link.to_ne_bytes();
    [family, 0, 0, 0, a, b, c, d, 0, 0, flags, 0]
}

fn state(frame: &Frame<'_>) -> Option<u16> {
    u16_at(frame.payload, 8)
}

fn state_of(frame: &Frame<'_>, next_hop: NextHop) -> Option<u16> {
    let address = frame.attributes(NDMSG)?.ip(NDA_DST)?;
    let is_it = u32_at(frame.payload, 4)? == next_hop.link && address == next_hop.address;
    is_it.then(|| state(frame)).flatten()
}
