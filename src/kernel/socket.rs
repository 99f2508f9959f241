//! Conversations with the kernel over netlink: many requests at once, lists, and the stream of changes.

use std::fmt;
use std::future::Future;
use std::io;
use std::iter;
use std::time::Duration;

use netlink_packet_core::{
    ErrorMessage, NLM_F_ACK, NLM_F_CAPPED, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST,
    NetlinkBuffer, NetlinkPayload, NlasIterator, parse_string,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::time;

use super::codec::{self, Message};

/// So long may the kernel take for one answer.
const DEADLINE: Duration = Duration::from_secs(5);

/// So many requests go into one send: the kernel works them off while we wait.
const BATCH: usize = 128;

/// Room for the answers to a batch in which everything is refused, in bytes.
const ANSWERS: usize = 1 << 20;

/// The kernel never puts more than half of this into one datagram, in bytes.
const DATAGRAM: usize = 1 << 16;

/// So often a list is asked for again because it changed while it was read.
const ATTEMPTS: usize = 5;

/// Asks the kernel and waits for its answers.
pub(super) struct Requests {
    socket: TokioSocket,
    sequence: u32,
    buffer: Vec<u8>,
    /// Whether the last conversation was broken off: what is still to come of it would be taken
    /// for an answer to the next.
    is_broken: bool,
}

/// The kernel did not do what request `index` asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) index: usize,
    pub(super) errno: Errno,
    /// The kernel's own words, where it has any.
    pub(super) text: Option<String>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errno = self.errno.desc().to_lowercase();
        match &self.text {
            Some(text) => write!(f, "{text} ({errno})"),
            None => f.write_str(&errno),
        }
    }
}

/// All that the kernel answered to one send.
#[derive(Default)]
struct Answer {
    messages: Vec<Message>,
    refusals: Vec<Refusal>,
    is_complete: bool,
    is_interrupted: bool,
}

impl Requests {
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self {
            socket: open(ANSWERS)?,
            sequence: 1,
            buffer: Vec::with_capacity(DATAGRAM),
            is_broken: false,
        })
    }

    /// Has all of `messages` carried out in their order; returns those refused, which stop no other.
    ///
    /// # Errors
    /// An answer was lost or late: which messages were carried out is unknown.
    pub(super) async fn batch(&mut self, mut messages: Vec<Message>) -> io::Result<Vec<Refusal>> {
        let mut refusals = Vec::new();
        for (number, batch) in messages.chunks_mut(BATCH).enumerate() {
            // The kernel answers in order: once the last is acknowledged, silence means success.
            let answer = self.converse(batch, NLM_F_ACK).await?;
            let shift =
                |refusal: Refusal| Refusal { index: number * BATCH + refusal.index, ..refusal };
            refusals.extend(answer.refusals.into_iter().map(shift));
            tokio::task::yield_now().await;
        }
        Ok(refusals)
    }

    /// Lists objects; nothing if there is no such table, link or protocol family.
    pub(super) async fn dump(&mut self, request: RouteNetlinkMessage) -> io::Result<Vec<Message>> {
        let mut answer = Answer::default();
        for _ in 0..ATTEMPTS {
            answer = self.converse(&mut [Message::from(request.clone())], NLM_F_DUMP).await?;
            if !answer.is_interrupted {
                break;
            }
        }
        // A list that never holds still is used as it is: what it missed is told as a change.
        match answer.refusals.pop() {
            Some(refusal) if !is_nothing_there(refusal.errno) => {
                Err(io::Error::other(format!("netlink dump: {refusal}")))
            }
            Some(_) | None => Ok(answer.messages),
        }
    }

    /// The answer to a single question; none if it was refused.
    pub(super) async fn ask(
        &mut self,
        request: RouteNetlinkMessage,
    ) -> io::Result<Option<Message>> {
        let answer = self.converse(&mut [Message::from(request)], NLM_F_ACK).await?;
        Ok(answer.messages.into_iter().next())
    }

    /// Sends `messages`, the last of them with `flags`, and reads until that one is answered.
    async fn converse(&mut self, messages: &mut [Message], flags: u16) -> io::Result<Answer> {
        if self.is_broken {
            *self = Self::open()?;
        }
        let first = self.sequence;
        let datagram = self.number(messages, flags);
        self.is_broken = true;
        in_time(self.socket.send_to(&datagram, &SocketAddr::new(0, 0))).await?;
        let answer = self.receive(first, messages.len()).await?;
        self.is_broken = false;
        Ok(answer)
    }

    fn number(&mut self, messages: &mut [Message], flags: u16) -> Vec<u8> {
        let mut datagram = Vec::new();
        if let Some(last) = messages.last_mut() {
            last.header.flags |= flags;
        }
        for message in messages {
            message.header.flags |= NLM_F_REQUEST;
            message.header.sequence_number = self.sequence;
            self.sequence = self.sequence.wrapping_add(1);
            append(&mut datagram, message);
        }
        datagram
    }

    async fn receive(&mut self, first: u32, count: usize) -> io::Result<Answer> {
        let mut answer = Answer::default();
        while !answer.is_complete {
            self.buffer.clear();
            in_time(self.socket.recv(&mut self.buffer)).await?;
            for message in split(&self.buffer) {
                // Whoever waited for an earlier answer does so no more.
                let number = message.header.sequence_number.wrapping_sub(first);
                let index = usize::try_from(number).unwrap_or(usize::MAX);
                if index < count {
                    answer.take(index, index + 1 == count, message);
                }
            }
        }
        Ok(answer)
    }
}

impl Answer {
    fn take(&mut self, index: usize, is_last: bool, message: Message) {
        self.is_interrupted |= message.header.flags & NLM_F_DUMP_INTR != 0;
        let is_capped = message.header.flags & NLM_F_CAPPED != 0;
        match message.payload {
            NetlinkPayload::Error(error) => {
                self.refuse(index, error.raw_code(), text(&error).filter(|_| is_capped));
                self.is_complete |= is_last;
            }
            NetlinkPayload::Done(done) => {
                self.refuse(index, done.code, None);
                self.is_complete |= is_last;
            }
            _ => self.messages.push(message),
        }
    }

    fn refuse(&mut self, index: usize, code: i32, text: Option<String>) {
        if code != 0 {
            self.refusals.push(Refusal { index, errno: Errno::from_raw(-code), text });
        }
    }
}

/// The stream of changes: links and their settings, addresses, neighbours and routes.
pub(super) struct Monitor {
    socket: TokioSocket,
    buffer: Vec<u8>,
}

const GROUPS: [u32; 7] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_NEIGH,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV4_NETCONF,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV6_ROUTE,
];

impl Monitor {
    /// `backlog`: so many bytes of changes may wait for us before the kernel drops them.
    pub(super) fn open(backlog: usize) -> io::Result<Self> {
        let mut socket = open(backlog)?;
        for group in GROUPS {
            socket.socket_mut().add_membership(group)?;
        }
        Ok(Self { socket, buffer: Vec::with_capacity(DATAGRAM) })
    }

    /// The next changes. Cancel safe.
    ///
    /// # Errors
    /// `ENOBUFS`: changes were lost.
    pub(super) async fn receive(&mut self) -> io::Result<Vec<Message>> {
        self.buffer.clear();
        self.socket.recv(&mut self.buffer).await?;
        Ok(split(&self.buffer).collect())
    }
}

fn open(receive_buffer: usize) -> io::Result<TokioSocket> {
    let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
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

/// The messages of one datagram; those that nobody here knows are left out.
fn split(mut datagram: &[u8]) -> impl Iterator<Item = Message> {
    let frames = iter::from_fn(move || {
        let length = NetlinkBuffer::new_checked(datagram).ok()?.length();
        let length = usize::try_from(length).ok()?;
        let frame = datagram.get(..length)?;
        datagram = datagram.get(aligned(length)..).unwrap_or_default();
        Some(frame)
    });
    frames.filter_map(codec::parse)
}

const fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

/// The kernel's explanation, behind the header of the request that it refuses.
fn text(error: &ErrorMessage) -> Option<String> {
    const MESSAGE: u16 = 1;
    NlasIterator::new(error.header.get(16..)?)
        .map_while(Result::ok)
        .find(|attribute| attribute.kind() == MESSAGE)
        .and_then(|attribute| parse_string(attribute.value()).ok())
}

fn is_nothing_there(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::ENODEV | Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT)
}

async fn in_time<T>(answer: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    time::timeout(DEADLINE, answer)
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the kernel did not answer"))?
}
