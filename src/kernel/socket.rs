//! Netlink sockets, and messages in and out of their datagrams.

mod monitor;
mod requests;

pub(super) use monitor::Monitor;
pub(super) use requests::{Refusal, Requests};

use std::io;
use std::iter;

use netlink_packet_core::NetlinkBuffer;
use netlink_sys::{AsyncSocket, TokioSocket};
use nix::sys::socket::{setsockopt, sockopt};

use super::codec::Message;

/// The kernel never puts more than half of this into one datagram, in bytes.
const DATAGRAM: usize = 1 << 16;

/// A socket of this protocol of netlink.
fn open(protocol: isize, receive_buffer: usize) -> io::Result<TokioSocket> {
    let mut socket = TokioSocket::new(protocol)?;
    let raw = socket.socket_mut();
    raw.bind_auto()?;
    raw.set_cap_ack(true)?;
    raw.set_ext_ack(true)?;
    // An old kernel lists more than it is asked for; what does not concern us is dropped later.
    let _ = raw.set_netlink_get_strict_chk(true);
    // Beyond the limit for everybody, where we may.
    if setsockopt(raw, sockopt::RcvBufForce, &receive_buffer).is_err() {
        setsockopt(raw, sockopt::RcvBuf, &receive_buffer)?;
    }
    Ok(socket)
}

fn append(datagram: &mut Vec<u8>, message: &mut Message) {
    message.finalize();
    let start = datagram.len();
    datagram.resize(start + aligned(message.buffer_len()), 0);
    if let Some(room) = datagram.get_mut(start..) {
        message.serialize(room);
    }
}

/// The messages of one datagram, as they came.
pub(super) fn split(mut datagram: &[u8]) -> impl Iterator<Item = &[u8]> {
    iter::from_fn(move || {
        let length = NetlinkBuffer::new_checked(datagram).ok()?.length();
        let length = usize::try_from(length).ok()?;
        let frame = datagram.get(..length)?;
        datagram = datagram.get(aligned(length)..).unwrap_or_default();
        Some(frame)
    })
}

const fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}
