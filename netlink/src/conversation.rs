//! Requests, and the answers that belong to them, over any socket.

use std::io;
use std::ops::RangeInclusive;

use nix::errno::Errno;
use nix::libc::{NLM_F_ACK, NLM_F_DUMP};

use crate::frame::{Frame, Refusal};
use crate::message::Message;

/// Sends datagrams to the kernel, and receives its datagrams.
pub(crate) trait Wire {
    async fn send(&mut self, datagram: &[u8]) -> io::Result<()>;
    /// Appends the next datagram to `buffer`.
    async fn receive(&mut self, buffer: &mut Vec<u8>) -> io::Result<()>;
}

pub(crate) struct Conversation<W> {
    pub(crate) wire: W,
    sequence: u32,
    buffer: Vec<u8>,
}

/// What the kernel answered to one send, except for the objects that were asked for.
struct Answer {
    /// The sequence numbers of the requests, after the message that opens a transaction.
    requests: RangeInclusive<u32>,
    opening: Option<u32>,
    refusals: Vec<Refusal>,
    is_complete: bool,
    is_interrupted: bool,
}

/// The kernel never puts more than half of this into one datagram, in bytes.
pub(crate) const DATAGRAM: usize = 1 << 16;

/// The most requests of one send: the refusals of all must fit into the smallest receive buffer.
const BATCH: usize = 128;

/// How often a list is requested at most, if it changes while the kernel reads it.
const ATTEMPTS: usize = 5;

impl<W: Wire> Conversation<W> {
    pub(crate) fn new(wire: W) -> Self {
        Self { wire, sequence: 0, buffer: Vec::with_capacity(DATAGRAM) }
    }

    pub(crate) async fn execute(&mut self, messages: Vec<Message>) -> io::Result<Vec<Refusal>> {
        let mut refusals = Vec::new();
        let (mut messages, mut done) = (messages.into_iter().peekable(), 0);
        while messages.peek().is_some() {
            let mut datagram = Vec::new();
            // The kernel answers in order: once it has acknowledged the last, silence means success.
            let requests = self.append(messages.by_ref().take(BATCH), NLM_F_ACK, &mut datagram);
            let answer = self.converse(&datagram, Answer::to(requests), |_| {}).await?;
            let shifted = |one: Refusal| Refusal { index: done + one.index, ..one };
            refusals.extend(answer.refusals.into_iter().map(shifted));
            done += BATCH;
        }
        Ok(refusals)
    }

    pub(crate) async fn transact(
        &mut self,
        begin: Message,
        messages: Vec<Message>,
        end: Message,
    ) -> io::Result<Vec<Refusal>> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let mut datagram = Vec::new();
        let opening = Some(*self.append([begin], 0, &mut datagram).end());
        // The kernel reports refusals in any case, and the answer to the last after all others.
        let requests = self.append(messages, NLM_F_ACK, &mut datagram);
        self.append([end], 0, &mut datagram);
        let expected = Answer { opening, ..Answer::to(requests) };
        Ok(self.converse(&datagram, expected, |_| {}).await?.refusals)
    }

    /// The first object that `read` understands.
    pub(crate) async fn get<T>(
        &mut self,
        message: Message,
        read: impl Fn(&Frame<'_>) -> Option<T>,
    ) -> io::Result<Result<Option<T>, Refusal>> {
        let mut found = None;
        let answer = self
            .ask(message, NLM_F_ACK, |frame| found = found.take().or_else(|| read(frame)))
            .await?;
        Ok(answer.outcome().map(|()| found))
    }

    /// All objects that `read` decodes; none if there is no such table, link, family or kind of object.
    pub(crate) async fn list<T>(
        &mut self,
        message: &Message,
        read: impl Fn(&Frame<'_>) -> Option<T>,
    ) -> io::Result<Option<Vec<T>>> {
        let mut objects = Vec::new();
        for _ in 0..ATTEMPTS {
            objects.clear();
            let read_object = |frame: &Frame<'_>| objects.extend(read(frame));
            let answer = self.ask(message.clone(), NLM_F_DUMP, read_object).await?;
            let is_interrupted = answer.is_interrupted;
            match answer.outcome() {
                Err(refusal) if is_nothing_there(refusal.errno) => return Ok(None),
                Err(refusal) => return Err(refusal.into()),
                Ok(()) if is_interrupted => {}
                Ok(()) => break,
            }
        }
        // A list that changes all the time is used as it is: listeners are notified of what it lacks.
        Ok(Some(objects))
    }

    async fn ask(
        &mut self,
        message: Message,
        flags: i32,
        read_object: impl FnMut(&Frame<'_>),
    ) -> io::Result<Answer> {
        let mut datagram = Vec::new();
        let request = self.append([message], flags, &mut datagram);
        self.converse(&datagram, Answer::to(request), read_object).await
    }

    /// Numbers `messages` and appends them to `datagram`, the last of them with `flags`.
    fn append(
        &mut self,
        messages: impl IntoIterator<Item = Message>,
        flags: i32,
        datagram: &mut Vec<u8>,
    ) -> RangeInclusive<u32> {
        let first = self.sequence + 1;
        let mut messages = messages.into_iter().peekable();
        while let Some(message) = messages.next() {
            self.sequence += 1;
            let flags = if messages.peek().is_none() { flags } else { 0 };
            datagram.extend(message.finish(self.sequence, flags));
        }
        first..=self.sequence
    }

    /// Sends `datagram` and receives until its last request is answered; `read_object` gets the objects.
    async fn converse(
        &mut self,
        datagram: &[u8],
        mut answer: Answer,
        mut read_object: impl FnMut(&Frame<'_>),
    ) -> io::Result<Answer> {
        self.wire.send(datagram).await?;
        while !answer.is_complete {
            self.buffer.clear();
            self.wire.receive(&mut self.buffer).await?;
            for frame in Frame::all(&self.buffer) {
                if answer.take(&frame) {
                    read_object(&frame);
                }
            }
        }
        Ok(answer)
    }
}

impl Answer {
    const fn to(requests: RangeInclusive<u32>) -> Self {
        Self {
            requests,
            opening: None,
            refusals: Vec::new(),
            is_complete: false,
            is_interrupted: false,
        }
    }

    /// Takes what `frame` reports about the requests; returns whether it is an object of theirs.
    fn take(&mut self, frame: &Frame<'_>) -> bool {
        let is_of_opening = self.opening == Some(frame.sequence);
        // An answer to an earlier send that was given up.
        if !is_of_opening && !self.requests.contains(&frame.sequence) {
            return false;
        }
        self.is_interrupted |= frame.is_interrupted();
        let Some(verdict) = frame.verdict() else { return true };
        let index = frame.sequence.saturating_sub(*self.requests.start());
        let index = index.try_into().unwrap_or_default();
        self.refusals.extend(verdict.err().map(|refusal| Refusal { index, ..refusal }));
        // Without its opening, no request of a transaction is answered.
        self.is_complete |= is_of_opening || frame.sequence == *self.requests.end();
        false
    }

    /// Of a single request.
    fn outcome(mut self) -> Result<(), Refusal> {
        self.refusals.pop().map_or(Ok(()), Err)
    }
}

const fn is_nothing_there(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::ENODEV | Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT)
}
