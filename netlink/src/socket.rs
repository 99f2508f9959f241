//! The blocking socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use netlink_sys::SocketAddr;
use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_NETFILTER, NETLINK_ROUTE};
use nix::errno::Errno;
use nix::libc::{MSG_DONTWAIT, RTNLGRP_IPV6_IFADDR, RTNLGRP_LINK};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::conversation::{Conversation, DATAGRAM, Wire};
use crate::frame::{Frame, Refusal};
use crate::message::Message;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Links, addresses, routes.
    Route,
    /// nftables.
    Netfilter,
    /// Everything without a protocol of its own, such as features of links.
    Generic,
}

/// A conversation with the kernel, about the namespace in which it was opened.
pub struct Socket {
    conversation: Conversation<Blocking>,
}

struct Blocking(netlink_sys::Socket);

/// Room for answers, in bytes: the kernel drops those that do not fit.
pub(crate) const ANSWERS: usize = 1 << 20;

/// How long a lost answer is waited for, in seconds: the kernel answers before a send returns.
pub(crate) const DEADLINE: u8 = 5;

impl Socket {
    pub fn open(protocol: Protocol) -> io::Result<Self> {
        let mut socket = netlink_sys::Socket::new(protocol.number())?;
        prepare(&mut socket, ANSWERS)?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(DEADLINE.into()))?;
        Ok(Self { conversation: Conversation::new(Blocking(socket)) })
    }

    /// Listens for changes of links.
    pub fn listen() -> io::Result<Self> {
        Self::listen_to(RTNLGRP_LINK)
    }

    /// Listens for changes of IPv6 addresses.
    pub fn listen_for_ipv6() -> io::Result<Self> {
        Self::listen_to(RTNLGRP_IPV6_IFADDR)
    }

    fn listen_to(group: u32) -> io::Result<Self> {
        let mut listener = Self::open(Protocol::Route)?;
        let socket = &mut listener.conversation.wire.0;
        socket.add_membership(group)?;
        // Listeners ask again anyway: a lost change is no loss.
        let _ = setsockopt(&*socket, sockopt::RcvBuf, &DATAGRAM);
        Ok(listener)
    }

    /// Has all of `messages` carried out in their order; the refused ones stop no others.
    pub fn execute(&mut self, messages: Vec<Message>) -> io::Result<Vec<Refusal>> {
        now(self.conversation.execute(messages))
    }

    /// As [`execute`](Self::execute), where any refusal is an error.
    pub fn apply(&mut self, messages: Vec<Message>) -> io::Result<()> {
        self.execute(messages)?.into_iter().next().map_or(Ok(()), |refusal| Err(refusal.into()))
    }

    /// Has all of `messages` carried out together or not at all, between `begin` and `end`.
    pub fn transact(
        &mut self,
        begin: Message,
        messages: Vec<Message>,
        end: Message,
    ) -> io::Result<Vec<Refusal>> {
        now(self.conversation.transact(begin, messages, end))
    }

    /// The one object that `message` asks for, as `read` understands it.
    pub fn get<T>(
        &mut self,
        message: Message,
        read: impl Fn(&Frame<'_>) -> Option<T>,
    ) -> io::Result<Result<Option<T>, Refusal>> {
        now(self.conversation.get(message, read))
    }

    /// All objects that `read` decodes; empty if there is no such table or kind of object.
    pub fn list<T>(
        &mut self,
        message: &Message,
        read: impl Fn(&Frame<'_>) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        now(self.conversation.list(message, read)).map(Option::unwrap_or_default)
    }

    /// The changes that have come in, as `read` understands them; none if some are lost.
    pub fn receive_changes<T>(
        &mut self,
        read: impl Fn(&Frame<'_>) -> Option<T>,
    ) -> io::Result<Option<Vec<T>>> {
        let mut datagram = Vec::with_capacity(DATAGRAM);
        match self.conversation.wire.0.recv(&mut datagram, MSG_DONTWAIT) {
            Ok(_) => Ok(Some(Frame::all(&datagram).filter_map(|frame| read(&frame)).collect())),
            Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::ENOBUFS) => Ok(None),
                Some(Errno::EAGAIN | Errno::EINTR) => Ok(Some(Vec::new())),
                _ => Err(error),
            },
        }
    }

    /// Discards the changes that have come in.
    pub fn drain(&mut self) -> io::Result<()> {
        self.receive_changes(|_| None::<()>).map(drop)
    }
}

impl Protocol {
    pub(crate) const fn number(self) -> isize {
        match self {
            Self::Route => NETLINK_ROUTE,
            Self::Netfilter => NETLINK_NETFILTER,
            Self::Generic => NETLINK_GENERIC,
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.conversation.wire.0.as_fd()
    }
}

impl Wire for Blocking {
    async fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        self.0.send_to(datagram, &SocketAddr::new(0, 0), 0).map(drop)
    }

    async fn receive(&mut self, buffer: &mut Vec<u8>) -> io::Result<()> {
        loop {
            match self.0.recv(buffer, 0) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                received => return received.map(drop),
            }
        }
    }
}

/// Gives `socket` an address and this many bytes of room for what the kernel sends.
pub(crate) fn prepare(socket: &mut netlink_sys::Socket, room: usize) -> io::Result<()> {
    socket.bind_auto()?;
    // Old kernels explain nothing, and repeat the whole request.
    let _ = (socket.set_cap_ack(true), socket.set_ext_ack(true));
    // More than the system's limit needs a capability.
    let _ = setsockopt(&*socket, sockopt::RcvBufForce, &room)
        .or_else(|_| setsockopt(&*socket, sockopt::RcvBuf, &room));
    Ok(())
}

/// The result of a conversation over a blocking socket: such a future is ready when it is polled.
fn now<T>(conversation: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match pin!(conversation).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use nix::libc::{NLM_F_ACK, NLMSG_DONE, NLMSG_ERROR};

    use super::*;

    /// Answers each request with the next of some datagrams, and then no more.
    struct Script(VecDeque<Vec<u8>>);

    impl Wire for Script {
        async fn send(&mut self, _: &[u8]) -> io::Result<()> {
            Ok(())
        }

        async fn receive(&mut self, buffer: &mut Vec<u8>) -> io::Result<()> {
            buffer.extend(self.0.pop_front().ok_or(io::ErrorKind::TimedOut)?);
            Ok(())
        }
    }

    const OBJECT: u16 = 24;
    const CAPPED: i32 = 0x100;
    const INTERRUPTED: i32 = 0x10;

    fn conversation<const N: usize>(answers: [Vec<u8>; N]) -> Conversation<Script> {
        Conversation::new(Script(answers.into()))
    }

    fn frame(kind: u16, flags: i32, sequence: u32, payload: &[u8]) -> Vec<u8> {
        Message::new(kind, flags, payload).finish(sequence, 0)
    }

    fn verdict(sequence: u32, errno: i32) -> Vec<u8> {
        let request = [0; 16];
        let payload = [&(-errno).to_ne_bytes()[..], &request].concat();
        frame(NLMSG_ERROR.try_into().unwrap(), NLM_F_ACK, sequence, &payload)
    }

    fn list(answers: Vec<Vec<u8>>) -> io::Result<Option<Vec<u8>>> {
        let question = Message::new(OBJECT, 0, &[]);
        let read = |frame: &Frame<'_>| frame.payload.first().copied();
        now(Conversation::new(Script(answers.into())).list(&question, read))
    }

    fn part(flags: i32, sequence: u32, byte: u8) -> Vec<u8> {
        let end = frame(NLMSG_DONE.try_into().unwrap(), 0, sequence, &[0; 4]);
        [frame(OBJECT, flags, sequence, &[byte]), end].concat()
    }

    #[test]
    fn a_refusal_belongs_to_its_request_and_has_the_kernels_text() {
        let payload = [&(-17_i32).to_ne_bytes()[..], &[0; 16]].concat();
        let refused = Message::new(NLMSG_ERROR.try_into().unwrap(), CAPPED, &payload);
        let answer = [refused.text(1, "taken").finish(2, 0), verdict(3, 0)].concat();
        let messages = vec![Message::new(OBJECT, 0, &[]); 3];
        let refusals = now(conversation([answer]).execute(messages)).unwrap();
        let [refusal] = refusals.as_slice() else { panic!("{refusals:?}") };
        assert_eq!((refusal.index, refusal.errno), (1, Errno::EEXIST));
        assert_eq!(refusal.to_string(), "taken (file exists)");
    }

    #[test]
    fn an_answer_to_an_earlier_request_is_ignored() {
        let mut conversation = conversation([verdict(1, 0), verdict(1, 1), verdict(2, 0)]);
        let message = || vec![Message::new(OBJECT, 0, &[])];
        assert_eq!(now(conversation.execute(message())).unwrap(), []);
        assert_eq!(now(conversation.execute(message())).unwrap(), []);
    }

    #[test]
    fn a_transaction_that_is_not_opened_has_ended() {
        let message = || Message::new(OBJECT, 0, &[]);
        let mut conversation = conversation([verdict(1, 1)]);
        let refusals = now(conversation.transact(message(), vec![message()], message())).unwrap();
        assert_eq!(refusals.len(), 1);
    }

    #[test]
    fn a_list_that_changed_during_the_read_is_read_again() {
        let answers = vec![part(INTERRUPTED, 1, 7), part(0, 2, 8)];
        assert_eq!(list(answers).unwrap(), Some(vec![8]));
        assert_eq!(list(vec![verdict(1, Errno::EOPNOTSUPP as i32)]).unwrap(), None);
        assert!(list(vec![verdict(1, Errno::EPERM as i32)]).is_err());
        assert_eq!(list(Vec::new()).unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
