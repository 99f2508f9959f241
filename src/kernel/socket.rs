//! A netlink socket that never hangs: many requests in one send, every answer awaited with a deadline.

use std::io;
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket as RawSocket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

pub(super) type Message = NetlinkMessage<RouteNetlinkMessage>;

/// A request and the flags that go with it (`NLM_F_CREATE` and the like).
pub(super) type Request = (RouteNetlinkMessage, u16);

/// A request that the kernel refused: its place in the batch, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) index: usize,
    pub(super) errno: i32,
    /// The kernel's own words, where it has some.
    pub(super) message: Option<String>,
}

/// A socket on the kernel's routing tables.
#[derive(Debug)]
pub(super) struct Socket {
    raw: AsyncFd<RawSocket>,
    sequence: u32,
    buffer: Vec<u8>,
}

/// Acknowledgements take room in the receive buffer: so many always fit, even in the smallest one.
const BATCH: usize = 128;
/// The kernel answers in microseconds; whoever waits so long has lost the answer.
const DEADLINE: Duration = Duration::from_secs(5);
/// A dump may be disturbed by changes so often before we give up.
const ATTEMPTS: usize = 8;
/// The kernel fills its answers up to 32 KiB.
const LARGEST_DATAGRAM: usize = 64 << 10;
const NLM_F_DUMP_INTR: u16 = 0x10;

impl Socket {
    /// Opens a socket with room for `receive_buffer` bytes of unread messages, told of `groups`.
    pub(super) fn open(receive_buffer: usize, groups: &[u32]) -> io::Result<Self> {
        let mut raw = RawSocket::new(NETLINK_ROUTE)?;
        raw.set_non_blocking(true)?;
        // Only the administrator of the network may exceed the system's limit.
        if setsockopt(&raw, sockopt::RcvBufForce, &receive_buffer).is_err() {
            setsockopt(&raw, sockopt::RcvBuf, &receive_buffer)?;
        }
        raw.set_cap_ack(true)?;
        raw.set_ext_ack(true)?;
        raw.set_netlink_get_strict_chk(true)?;
        raw.bind_auto()?;
        for group in groups {
            raw.add_membership(*group)?;
        }
        let buffer = Vec::with_capacity(LARGEST_DATAGRAM);
        #[allow(deprecated, reason = "tmp")]
        Ok(Self { raw: AsyncFd::new(raw)?, sequence: 0, buffer })
    }

    /// Sends all of `requests` in their order; returns those refused. One refusal stops no other.
    ///
    /// # Errors
    /// Answers were lost: whatever was sent may have been carried out or not.
    pub(super) async fn batch(&mut self, requests: Vec<Request>) -> io::Result<Vec<Refusal>> {
        let mut refused = Vec::new();
        let mut offset = 0;
        let mut requests = requests.into_iter().peekable();
        while requests.peek().is_some() {
            let chunk: Vec<Request> = requests.by_ref().take(BATCH).collect();
            let size = chunk.len();
            let first = self.send(chunk, NLM_F_REQUEST | NLM_F_ACK).await?;
            let answers = self.acknowledgements(first, size);
            let answers = timeout(DEADLINE, answers).await.map_err(|_| io::ErrorKind::TimedOut)??;
            refused.extend(answers.into_iter().map(|refusal| Refusal { index: refusal.index + offset, ..refusal }));
            offset += size;
            tokio::task::yield_now().await;
        }
        Ok(refused)
    }

    /// All objects that `request` asks for.
    pub(super) async fn dump(&mut self, request: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        for _ in 0..ATTEMPTS {
            let sequence = self.send(vec![(request.clone(), 0)], NLM_F_REQUEST | NLM_F_DUMP).await?;
            let parts = self.parts(sequence);
            let whole = timeout(DEADLINE, parts).await.map_err(|_| io::ErrorKind::TimedOut)??;
            if let Some(objects) = whole {
                return Ok(objects);
            }
        }
        Err(io::Error::other("the kernel's state changed whenever it was read"))
    }

    /// The answer to a question about one object.
    pub(super) async fn get(&mut self, request: RouteNetlinkMessage) -> io::Result<RouteNetlinkMessage> {
        let sequence = self.send(vec![(request, 0)], NLM_F_REQUEST).await?;
        let answer = async {
            loop {
                for message in self.receive().await? {
                    match message.payload {
                        _ if message.header.sequence_number != sequence => {}
                        NetlinkPayload::InnerMessage(object) => return Ok(object),
                        NetlinkPayload::Error(error) => return Err(error.to_io()),
                        _ => {}
                    }
                }
            }
        };
        timeout(DEADLINE, answer).await.map_err(|_| io::ErrorKind::TimedOut)?
    }

    /// The messages of the next datagram; what we do not understand is left out. Cancel safe.
    pub(super) async fn receive(&mut self) -> io::Result<Vec<Message>> {
        loop {
            let mut ready = self.raw.readable().await?;
            self.buffer.clear();
            let buffer = &mut self.buffer;
            match ready.try_io(|raw| raw.get_ref().recv(buffer, 0)) {
                Ok(received) => {
                    received?;
                    return Ok(messages(&self.buffer));
                }
                Err(_would_block) => {}
            }
        }
    }

    /// Sends `requests` as one datagram; returns the first sequence number.
    async fn send(&mut self, requests: Vec<Request>, flags: u16) -> io::Result<u32> {
        let first = self.sequence.wrapping_add(1);
        let mut datagram = Vec::new();
        for (request, own_flags) in requests {
            self.sequence = self.sequence.wrapping_add(1);
            let mut message = NetlinkMessage::from(request);
            message.header.flags = flags | own_flags;
            message.header.sequence_number = self.sequence;
            message.finalize();
            let start = datagram.len();
            datagram.resize(start + message.buffer_len(), 0);
            if let Some(place) = datagram.get_mut(start..) {
                message.serialize(place);
            }
        }
        let kernel = SocketAddr::new(0, 0);
        loop {
            let mut ready = self.raw.writable().await?;
            match ready.try_io(|raw| raw.get_ref().send_to(&datagram, &kernel, 0)) {
                Ok(sent) => return sent.map(|_| first),
                Err(_would_block) => {}
            }
        }
    }

    async fn acknowledgements(&mut self, first: u32, size: usize) -> io::Result<Vec<Refusal>> {
        let mut refused = Vec::new();
        let mut open = size;
        while open > 0 {
            for message in self.receive().await? {
                let index = message.header.sequence_number.wrapping_sub(first) as usize;
                let NetlinkPayload::Error(error) = message.payload else { continue };
                if index >= size {
                    continue;
                }
                open -= 1;
                if let Some(code) = error.code {
                    let message = kernels_words(&error.header);
                    refused.push(Refusal { index, errno: code.get().abs(), message });
                }
            }
        }
        Ok(refused)
    }

    /// None if a change in the middle made the answer inconsistent.
    async fn parts(&mut self, sequence: u32) -> io::Result<Option<Vec<RouteNetlinkMessage>>> {
        let (mut objects, mut whole) = (Vec::new(), true);
        loop {
            for message in self.receive().await? {
                if message.header.sequence_number != sequence {
                    continue;
                }
                whole &= message.header.flags & NLM_F_DUMP_INTR == 0;
                match message.payload {
                    NetlinkPayload::InnerMessage(object) => objects.push(object),
                    NetlinkPayload::Done(_) => return Ok(whole.then_some(objects)),
                    NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                    _ => {}
                }
            }
        }
    }
}

fn messages(mut datagram: &[u8]) -> Vec<Message> {
    let mut messages = Vec::new();
    while let Ok(header) = NetlinkBuffer::new_checked(datagram) {
        let length = header.length() as usize;
        let Some((message, rest)) = datagram.split_at_checked(length) else { break };
        messages.extend(Message::deserialize(message));
        let padding = length.next_multiple_of(4) - length;
        datagram = rest.get(padding..).unwrap_or_default();
    }
    messages
}

/// The text among the attributes behind the header that an error quotes.
fn kernels_words(quoted: &[u8]) -> Option<String> {
    const HEADER: usize = 16;
    const MESSAGE: u16 = 1;
    let mut attributes = quoted.get(HEADER..)?;
    loop {
        let (&length, &kind) = (attributes.first_chunk::<2>()?, attributes.get(2..)?.first_chunk::<2>()?);
        let length = usize::from(u16::from_ne_bytes(length));
        if u16::from_ne_bytes(kind) == MESSAGE {
            let text = attributes.get(4..length)?;
            return Some(String::from_utf8_lossy(text).trim_end_matches('\0').to_owned());
        }
        attributes = attributes.get(length.max(4).next_multiple_of(4)..)?;
    }
}
