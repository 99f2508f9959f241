//! Questions and orders to the kernel, and its answers: many in one send, refusals told apart.

use std::fmt;
use std::future::Future;
use std::io;
use std::time::Duration;

use netlink_packet_core::{
    ErrorMessage, NLM_F_ACK, NLM_F_CAPPED, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE,
    NLMSG_ERROR, NetlinkBuffer, NetlinkPayload, NlasIterator, parse_string,
};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{AsyncSocketExt, SocketAddr, TokioSocket};
use nix::errno::Errno;
use tokio::time;

use super::{DATAGRAM, append, open, split};
use crate::kernel::codec::{self, Body, Message};

/// So long may the kernel take for one answer.
const DEADLINE: Duration = Duration::from_secs(5);

/// So many requests go into one send: the kernel works them off while we wait.
const BATCH: usize = 128;

/// Hardly any request is longer, in bytes.
const USUAL: usize = 64;

/// Room for the answers to a batch in which everything is refused, in bytes.
const ANSWERS: usize = 1 << 20;

/// So often a list is asked for again because it changed while it was read.
const ATTEMPTS: usize = 5;

/// Asks the kernel and waits for its answers.
pub(crate) struct Requests {
    socket: TokioSocket,
    buffer: Vec<u8>,
    /// Whether the last conversation was broken off: what is still to come of it would be taken
    /// for an answer to the next.
    is_broken: bool,
}

/// The kernel did not do what request `index` asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) index: usize,
    pub(crate) errno: Errno,
    /// The kernel's own words, where it has any.
    pub(crate) text: Option<String>,
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

/// What the kernel answered to one send, but for the objects that were asked for.
#[derive(Default)]
struct Answer {
    refusals: Vec<Refusal>,
    is_complete: bool,
    is_interrupted: bool,
}

impl Requests {
    pub(crate) fn open() -> io::Result<Self> {
        let socket = open(NETLINK_ROUTE, ANSWERS)?;
        Ok(Self { socket, buffer: Vec::with_capacity(DATAGRAM), is_broken: false })
    }

    /// Has all of `messages` carried out in their order; returns those refused. They stop no other.
    ///
    /// # Errors
    /// An answer was lost or late: which messages were carried out is unknown.
    pub(crate) async fn batch(&mut self, mut messages: Vec<Message>) -> io::Result<Vec<Refusal>> {
        let mut refusals = Vec::new();
        for (number, batch) in messages.chunks_mut(BATCH).enumerate() {
            // The kernel answers in order: once the last is acknowledged, silence means success.
            let answer = self.converse(batch, NLM_F_ACK, |_| {}).await?;
            let shift =
                |refusal: Refusal| Refusal { index: number * BATCH + refusal.index, ..refusal };
            refusals.extend(answer.refusals.into_iter().map(shift));
            tokio::task::yield_now().await;
        }
        Ok(refusals)
    }

    /// Lists objects, each as `read` understands it; those of which it makes nothing cost no more
    /// than the look at their bytes. None if there is no such table, link, protocol family or kind
    /// of object.
    pub(crate) async fn list<T>(
        &mut self,
        request: Body,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> io::Result<Option<Vec<T>>> {
        let mut objects = Vec::new();
        let mut answer = Answer::default();
        for _ in 0..ATTEMPTS {
            objects.clear();
            let question = Message::from(request.clone());
            let hear = |frame: &[u8]| objects.extend(read(frame));
            answer = self.converse(&mut [question], NLM_F_DUMP, hear).await?;
            if !answer.is_interrupted {
                break;
            }
        }
        // A list that never holds still is used as it is: what it missed is told as a change.
        match answer.refusals.pop() {
            Some(refusal) if !is_nothing_there(refusal.errno) => {
                Err(io::Error::other(format!("netlink dump: {refusal}")))
            }
            Some(_) => Ok(None),
            None => Ok(Some(objects)),
        }
    }

    /// As [`Self::list`], where nothing of a kind is as good as none.
    pub(crate) async fn dump<T>(
        &mut self,
        request: Body,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        self.list(request, read).await.map(Option::unwrap_or_default)
    }

    /// The answer to a single question; none if it was refused.
    pub(crate) async fn ask(&mut self, request: Body) -> io::Result<Option<Message>> {
        let mut told = None;
        let hear = |frame: &[u8]| told = told.take().or_else(|| codec::parse(frame));
        self.converse(&mut [Message::from(request)], NLM_F_ACK, hear).await?;
        Ok(told)
    }

    /// Sends `messages`, the last of them with `flags`, and reads until that one is answered;
    /// `hear` gets what the answers are about.
    async fn converse(
        &mut self,
        messages: &mut [Message],
        flags: u16,
        hear: impl FnMut(&[u8]),
    ) -> io::Result<Answer> {
        if self.is_broken {
            *self = Self::open()?;
        }
        let mut datagram = Vec::with_capacity(messages.len() * USUAL);
        let last = messages.len().saturating_sub(1);
        for (index, message) in messages.iter_mut().enumerate() {
            message.header.flags |= NLM_F_REQUEST | if index == last { flags } else { 0 };
            message.header.sequence_number = u32::try_from(index).unwrap_or(u32::MAX);
            append(&mut datagram, message);
        }
        self.is_broken = true;
        in_time(self.socket.send_to(&datagram, &SocketAddr::new(0, 0))).await?;
        let answer = self.receive(last, hear).await?;
        self.is_broken = false;
        Ok(answer)
    }

    async fn receive(&mut self, last: usize, mut hear: impl FnMut(&[u8])) -> io::Result<Answer> {
        let mut answer = Answer::default();
        while !answer.is_complete {
            self.buffer.clear();
            in_time(self.socket.recv(&mut self.buffer)).await?;
            for frame in split(&self.buffer) {
                if !answer.take(frame, last) {
                    hear(frame);
                }
            }
        }
        Ok(answer)
    }
}

impl Answer {
    /// Takes in a word about the requests themselves; returns whether it was one.
    fn take(&mut self, frame: &[u8], last: usize) -> bool {
        let Ok(header) = NetlinkBuffer::new_checked(frame) else { return false };
        self.is_interrupted |= header.flags() & NLM_F_DUMP_INTR != 0;
        if !matches!(header.message_type(), NLMSG_ERROR | NLMSG_DONE) {
            return false;
        }
        let Some(message) = codec::parse(frame) else { return false };
        let index = usize::try_from(message.header.sequence_number).unwrap_or(usize::MAX);
        let is_capped = message.header.flags & NLM_F_CAPPED != 0;
        match message.payload {
            NetlinkPayload::Error(error) => {
                self.refuse(index, error.raw_code(), text(&error).filter(|_| is_capped));
            }
            NetlinkPayload::Done(done) => self.refuse(index, done.code, None),
            _ => return false,
        }
        self.is_complete |= index == last;
        true
    }

    fn refuse(&mut self, index: usize, code: i32, text: Option<String>) {
        if code != 0 {
            self.refusals.push(Refusal { index, errno: Errno::from_raw(-code), text });
        }
    }
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
