//! The sockets of a reactor: requests, and the stream of changes.

use std::io;
use std::time::Duration;

use netlink_sys::{AsyncSocket as _, AsyncSocketExt, SocketAddr, TokioSocket};
use nix::libc;
use tokio::{task, time};

use crate::conversation::{Conversation, DATAGRAM, Wire};
use crate::frame::{Frame, Refusal};
use crate::message::Message;
use crate::socket::{ANSWERS, DEADLINE, Protocol, prepare};

/// As [`crate::Socket`]. After a request that was cancelled or failed, the next one opens another
/// socket, because late answers on the old one belong to earlier requests.
pub struct AsyncSocket {
    protocol: Protocol,
    conversation: Option<Conversation<Reactor>>,
}

/// The stream of changes in the kernel.
pub struct Monitor {
    socket: TokioSocket,
    buffer: Vec<u8>,
}

struct Reactor(TokioSocket);

const ROUTING: [u32; 8] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_NEIGH,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV4_NETCONF,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV6_ROUTE,
    libc::RTNLGRP_NEXTHOP,
];

impl AsyncSocket {
    /// Must be called within a tokio runtime.
    pub fn open(protocol: Protocol) -> io::Result<Self> {
        let conversation = Some(Conversation::new(Reactor::open(protocol)?));
        Ok(Self { protocol, conversation })
    }

    /// Has all of `messages` carried out in their order; the refused ones stop no others. Fails if an
    /// answer was lost or late: which messages were carried out is unknown then.
    pub async fn execute(&mut self, messages: Vec<Message>) -> io::Result<Vec<Refusal>> {
        self.with(async |conversation| conversation.execute(messages).await).await
    }

    /// The one object that `message` asks for, as `read` understands it.
    pub async fn get<T>(
        &mut self,
        message: Message,
        read: impl Fn(&Frame<'_>) -> Option<T>,
    ) -> io::Result<Result<Option<T>, Refusal>> {
        self.with(async |conversation| conversation.get(message, read).await).await
    }

    /// As [`crate::Socket::list`]; none if there is no such table, link, family or kind of object.
    pub async fn list<T>(
        &mut self,
        message: &Message,
        read: impl Fn(&Frame<'_>) -> Option<T>,
    ) -> io::Result<Option<Vec<T>>> {
        self.with(async |conversation| conversation.list(message, read).await).await
    }

    async fn with<T>(
        &mut self,
        talk: impl AsyncFnOnce(&mut Conversation<Reactor>) -> io::Result<T>,
    ) -> io::Result<T> {
        let opened = || Reactor::open(self.protocol).map(Conversation::new);
        let mut conversation = self.conversation.take().map_or_else(opened, Ok)?;
        let answer = talk(&mut conversation).await?;
        self.conversation = Some(conversation);
        Ok(answer)
    }
}

impl Monitor {
    /// Of links, addresses, neighbours, nexthops and routes; the kernel drops more than `backlog` bytes.
    pub fn of_routing(backlog: usize) -> io::Result<Self> {
        Self::open(Protocol::Route, &ROUTING, backlog)
    }

    /// Of addresses only, likewise.
    pub fn of_addresses(backlog: usize) -> io::Result<Self> {
        let groups = [libc::RTNLGRP_IPV4_IFADDR, libc::RTNLGRP_IPV6_IFADDR];
        Self::open(Protocol::Route, &groups, backlog)
    }

    /// Of the tables of nftables, likewise; fails if the kernel has none or does not report changes.
    pub fn of_tables(backlog: usize) -> io::Result<Self> {
        Self::open(Protocol::Netfilter, &[libc::NFNLGRP_NFTABLES.cast_unsigned()], backlog)
    }

    fn open(protocol: Protocol, groups: &[u32], backlog: usize) -> io::Result<Self> {
        let mut socket = open(protocol, backlog)?;
        for group in groups {
            socket.socket_mut().add_membership(*group)?;
        }
        Ok(Self { socket, buffer: Vec::with_capacity(DATAGRAM) })
    }

    /// Hands the next changes to `read`, one by one; `ENOBUFS` if changes were lost. Cancel safe.
    pub async fn receive(&mut self, mut read: impl FnMut(&Frame<'_>)) -> io::Result<()> {
        self.buffer.clear();
        self.socket.recv(&mut self.buffer).await?;
        Frame::all(&self.buffer).for_each(|frame| read(&frame));
        Ok(())
    }
}

impl Reactor {
    fn open(protocol: Protocol) -> io::Result<Self> {
        let socket = open(protocol, ANSWERS)?;
        // An old kernel lists more than what it is asked for.
        let _ = socket.socket_ref().set_netlink_get_strict_chk(true);
        Ok(Self(socket))
    }
}

impl Wire for Reactor {
    /// Lets other tasks run first, also between two batches.
    async fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        task::yield_now().await;
        in_time(self.0.send_to(datagram, &SocketAddr::new(0, 0))).await.map(drop)
    }

    async fn receive(&mut self, buffer: &mut Vec<u8>) -> io::Result<()> {
        in_time(self.0.recv(buffer)).await
    }
}

fn open(protocol: Protocol, room: usize) -> io::Result<TokioSocket> {
    let mut socket = TokioSocket::new(protocol.number())?;
    prepare(socket.socket_mut(), room)?;
    Ok(socket)
}

async fn in_time<T>(done: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the kernel did not answer");
    time::timeout(Duration::from_secs(DEADLINE.into()), done).await.map_err(late)?
}
