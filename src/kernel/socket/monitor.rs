//! The stream of changes in the kernel.

use std::io;

use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use netlink_sys::{AsyncSocket, AsyncSocketExt, TokioSocket};
use nix::libc;

use super::{DATAGRAM, open, split};

/// A stream of changes.
pub(crate) struct Monitor {
    socket: TokioSocket,
    buffer: Vec<u8>,
}

/// `RTNLGRP_NEXTHOP` of `linux/rtnetlink.h`.
const NEXTHOP: u32 = 32;

/// `NFNLGRP_NFTABLES` of `linux/netfilter/nfnetlink.h`.
const NFNLGRP_NFTABLES: u32 = 7;

const ROUTING: [u32; 8] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_NEIGH,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV4_NETCONF,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV6_ROUTE,
    NEXTHOP,
];

impl Monitor {
    /// Of links and their settings, addresses, neighbours, nexthops and routes.
    ///
    /// `backlog`: so many bytes of changes may wait for us before the kernel drops them.
    pub(crate) fn of_routing(backlog: usize) -> io::Result<Self> {
        Self::open(NETLINK_ROUTE, &ROUTING, backlog)
    }

    /// Of the tables of nftables, likewise.
    ///
    /// # Errors
    /// The kernel has none, or does not tell us of them.
    pub(crate) fn of_tables(backlog: usize) -> io::Result<Self> {
        Self::open(NETLINK_NETFILTER, &[NFNLGRP_NFTABLES], backlog)
    }

    fn open(protocol: isize, groups: &[u32], backlog: usize) -> io::Result<Self> {
        let mut socket = open(protocol, backlog)?;
        for group in groups.iter().copied() {
            socket.socket_mut().add_membership(group)?;
        }
        Ok(Self { socket, buffer: Vec::with_capacity(DATAGRAM) })
    }

    /// What `read` makes of the next changes, message by message. Cancel safe.
    ///
    /// # Errors
    /// `ENOBUFS`: changes were lost.
    pub(crate) async fn receive(&mut self, read: impl FnMut(&[u8])) -> io::Result<()> {
        self.buffer.clear();
        self.socket.recv(&mut self.buffer).await?;
        split(&self.buffer).for_each(read);
        Ok(())
    }
}
