//! The socket: sends, and ties the kernel's answers to what was sent.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc::{NLM_F_ACK, NLM_F_DUMP, NLMSG_DONE, NLMSG_ERROR};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, sendto,
    setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::attributes::{u16_at, u32_at};
use crate::message::{HEADER, Message};

/// The kernel puts no more into one datagram, in bytes.
const DATAGRAM: usize = 1 << 15;

/// For the kernel's answers, in bytes: it drops those that do not fit, and they are long.
const ANSWERS: usize = 1 << 20;

/// So many orders are sent before their verdicts are read: all of these must fit into the buffer,
/// also where it could not be enlarged.
const AT_ONCE: usize = 64;

/// A list that changes while it is read is read again so often.
const ATTEMPTS: usize = 5;

/// Set in answers of a list that changed while it was read.
const INTERRUPTED: u16 = 0x10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Links, addresses, routes.
    Route,
    /// nftables.
    Netfilter,
    /// Whatever has no protocol of its own, such as features of links.
    Generic,
}

/// A conversation with the kernel, about the namespace in which it was opened.
pub struct Socket {
    descriptor: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

/// The kernel did not do what message `index` asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub index: usize,
    pub errno: Errno,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.errno.desc().to_lowercase())
    }
}

impl Socket {
    pub fn open(protocol: Protocol) -> io::Result<Self> {
        let protocol = match protocol {
            Protocol::Route => SockProtocol::NetlinkRoute,
            Protocol::Netfilter => SockProtocol::NetlinkNetFilter,
            Protocol::Generic => SockProtocol::NetlinkGeneric,
        };
        let flags = SockFlag::SOCK_CLOEXEC;
        let descriptor = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        let _ = setsockopt(&descriptor, sockopt::RcvBufForce, &ANSWERS)
            .or_else(|_| setsockopt(&descriptor, sockopt::RcvBuf, &ANSWERS));
        Ok(Self { descriptor, sequence: 0, buffer: vec![0; DATAGRAM] })
    }

    /// An answer that takes longer than `patience` is an error from now on; it is not taken for
    /// an answer to the next question.
    pub fn wait_no_longer_than(&self, patience: Duration) -> io::Result<()> {
        let patience = TimeVal::microseconds(patience.as_micros().try_into().unwrap_or(i64::MAX));
        Ok(setsockopt(&self.descriptor, sockopt::ReceiveTimeout, &patience)?)
    }

    /// One that is told of changes of links.
    pub fn listen() -> io::Result<Self> {
        const LINKS: u32 = 1 << 0;
        Self::listen_to(LINKS)
    }

    /// One that is told of changes of IPv6 addresses.
    pub fn listen_for_ipv6() -> io::Result<Self> {
        const IPV6_ADDRESSES: u32 = 1 << 8;
        Self::listen_to(IPV6_ADDRESSES)
    }

    fn listen_to(groups: u32) -> io::Result<Self> {
        let listener = Self::open(Protocol::Route)?;
        bind(listener.descriptor.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
        // Whoever listens asks again: that something was missed is no news.
        let _ = setsockopt(&listener.descriptor, sockopt::RcvBuf, &(1 << 16));
        Ok(listener)
    }

    /// Has all of `messages` carried out in their order; the refusals stop none of the others.
    pub fn execute(&mut self, messages: Vec<Message>) -> io::Result<Vec<Refusal>> {
        let mut refusals = Vec::new();
        let mut done = 0;
        let mut messages = messages.into_iter().peekable();
        while messages.peek().is_some() {
            let first = self.sequence + 1;
            let mut datagram = Vec::new();
            for message in messages.by_ref().take(AT_ONCE) {
                self.sequence += 1;
                datagram.extend(message.finish(self.sequence, NLM_F_ACK));
            }
            self.send(&datagram)?;
            let refused = self.hear_verdicts(first, self.sequence)?.into_iter();
            refusals.extend(refused.map(|one| Refusal { index: done + one.index, ..one }));
            done += AT_ONCE;
        }
        Ok(refusals)
    }

    /// Has all of `messages` carried out together or not at all, between `begin` and `end`.
    pub fn transact(
        &mut self,
        begin: Message,
        messages: Vec<Message>,
        end: Message,
    ) -> io::Result<Vec<Refusal>> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        self.sequence += 1;
        let mut datagram = begin.finish(self.sequence, 0);
        let first = self.sequence + 1;
        let last = messages.len() - 1;
        for (index, message) in messages.into_iter().enumerate() {
            self.sequence += 1;
            // A refusal is told in any case, and the last verdict comes behind all of them.
            let flags = if index == last { NLM_F_ACK } else { 0 };
            datagram.extend(message.finish(self.sequence, flags));
        }
        let last = self.sequence;
        self.sequence += 1;
        datagram.extend(end.finish(self.sequence, 0));
        self.send(&datagram)?;
        self.hear_verdicts(first, last)
    }

    /// The one object that `message` asks for, as `read` understands its payload.
    pub fn get<T>(
        &mut self,
        message: Message,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> io::Result<Result<Option<T>, Refusal>> {
        let mut found = None;
        let verdict = self.converse(message, NLM_F_ACK, |frame| found = read(frame.payload))?;
        Ok(verdict.outcome.map(|()| found))
    }

    /// All objects that `message` asks for, as `read` understands their payloads; none if there is
    /// no such table or kind of object.
    pub fn list<T>(
        &mut self,
        message: &Message,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let mut objects = Vec::new();
        for _ in 0..ATTEMPTS {
            objects.clear();
            let hear = |frame: &Frame<'_>| objects.extend(read(frame.payload));
            let answer = self.converse(message.clone(), NLM_F_DUMP, hear)?;
            match answer.outcome {
                Err(refusal) if is_nothing_there(refusal.errno) => return Ok(Vec::new()),
                Err(refusal) => {
                    let kind = io::Error::from(refusal.errno).kind();
                    return Err(io::Error::new(kind, refusal.to_string()));
                }
                Ok(()) if !answer.is_interrupted => break,
                Ok(()) => {}
            }
        }
        Ok(objects)
    }

    /// What has come in, as `read` understands the kind and the payload of each message; none if
    /// some of it is lost.
    pub fn hear<T>(
        &mut self,
        read: impl Fn(u16, &[u8]) -> Option<T>,
    ) -> io::Result<Option<Vec<T>>> {
        match recv(self.descriptor.as_raw_fd(), &mut self.buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(length) => {
                let frames = Frame::all(self.buffer.get(..length).unwrap_or_default());
                Ok(Some(frames.filter_map(|frame| read(frame.kind, frame.payload)).collect()))
            }
            Err(Errno::ENOBUFS) => Ok(None),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(Some(Vec::new())),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Takes what has come in, whatever it is.
    pub fn drain(&mut self) -> io::Result<()> {
        match recv(self.descriptor.as_raw_fd(), &mut self.buffer, MsgFlags::MSG_DONTWAIT) {
            // What was missed is asked for.
            Ok(_) | Err(Errno::ENOBUFS | Errno::EAGAIN | Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Waits for the verdict on message `last`, which is behind those on all others from `first` on;
    /// one on what came before them is one on all.
    fn hear_verdicts(&mut self, first: u32, last: u32) -> io::Result<Vec<Refusal>> {
        let mut refusals = Vec::new();
        let mut is_over = false;
        while !is_over {
            self.receive(|frame| {
                let Some(verdict) = frame.verdict().filter(|_| frame.sequence + 1 >= first) else {
                    return;
                };
                is_over |= frame.sequence < first || frame.sequence == last;
                let index = frame.sequence.saturating_sub(first).try_into().unwrap_or_default();
                refusals.extend(verdict.err().map(|refusal| Refusal { index, ..refusal }));
            })?;
        }
        Ok(refusals)
    }

    fn converse(
        &mut self,
        message: Message,
        flags: i32,
        mut hear: impl FnMut(&Frame<'_>),
    ) -> io::Result<Answer> {
        self.sequence += 1;
        let sequence = self.sequence;
        self.send(&message.finish(sequence, flags))?;
        let mut outcome = None;
        let mut is_interrupted = false;
        while outcome.is_none() {
            self.receive(|frame| {
                if frame.sequence != sequence {
                    return;
                }
                is_interrupted |= frame.flags & INTERRUPTED != 0;
                match frame.verdict() {
                    Some(verdict) => outcome = Some(verdict),
                    None => hear(frame),
                }
            })?;
        }
        Ok(Answer { outcome: outcome.unwrap_or(Ok(())), is_interrupted })
    }

    fn send(&self, datagram: &[u8]) -> io::Result<()> {
        let kernel = NetlinkAddr::new(0, 0);
        sendto(self.descriptor.as_raw_fd(), datagram, &kernel, MsgFlags::empty())?;
        Ok(())
    }

    /// Hands the frames of the next datagram to `hear`.
    fn receive(&mut self, mut hear: impl FnMut(&Frame<'_>)) -> io::Result<()> {
        let length = loop {
            match recv(self.descriptor.as_raw_fd(), &mut self.buffer, MsgFlags::empty()) {
                Err(Errno::EINTR) => {}
                length => break length?,
            }
        };
        for frame in Frame::all(self.buffer.get(..length).unwrap_or_default()) {
            hear(&frame);
        }
        Ok(())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

struct Answer {
    outcome: Result<(), Refusal>,
    is_interrupted: bool,
}

/// One message of the kernel.
struct Frame<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    payload: &'a [u8],
}

impl<'a> Frame<'a> {
    fn all(bytes: &'a [u8]) -> impl Iterator<Item = Self> {
        let mut rest = bytes;
        std::iter::from_fn(move || {
            let (frame, next) = Self::split(rest)?;
            rest = next;
            Some(frame)
        })
    }

    fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let length = usize::try_from(u32_at(bytes, 0)?).ok()?;
        let frame = Self {
            kind: u16_at(bytes, 4)?,
            flags: u16_at(bytes, 6)?,
            sequence: u32_at(bytes, 8)?,
            payload: bytes.get(HEADER..length)?,
        };
        Some((frame, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
    }

    /// Whether the request was carried out, if this says so.
    fn verdict(&self) -> Option<Result<(), Refusal>> {
        let says = |kind: i32| i32::from(self.kind) == kind;
        if !says(NLMSG_ERROR) && !says(NLMSG_DONE) {
            return None;
        }
        let code = self.payload.get(..4).and_then(|code| code.try_into().ok());
        let code = code.map_or(0, i32::from_ne_bytes);
        if code == 0 {
            return Some(Ok(()));
        }
        Some(Err(Refusal { index: 0, errno: Errno::from_raw(-code) }))
    }
}

fn is_nothing_there(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::ENODEV | Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT)
}
