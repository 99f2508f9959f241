//! Addresses of links.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use nix::libc::{
    AF_INET, AF_INET6, IFA_ADDRESS, IFA_BROADCAST, IFA_F_DADFAILED, IFA_F_NODAD, IFA_F_TENTATIVE,
    IFA_FLAGS, IFA_LOCAL, NLM_F_CREATE, NLM_F_EXCL, RTM_DELADDR, RTM_GETADDR, RTM_NEWADDR,
};

use crate::attributes::u32_at;
use crate::frame::Frame;
use crate::message::{Message, byte};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    pub link: u32,
    /// The address itself, with the length of its subnet.
    pub network: IpNetwork,
    /// Reachable from elsewhere.
    pub is_global: bool,
    pub detection: Detection,
}

/// Duplicate address detection of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detection {
    /// It is off, or found no duplicate: the address works.
    Done,
    /// Not used before the kernel has listened.
    Running,
    /// Another station has it.
    Duplicate,
}

const IFADDR: usize = 8;
const GLOBAL: u8 = 0;

/// Works at once: the caller knows that no other station has it.
pub fn add(link: u32, address: IpNetwork) -> Message {
    insert(link, address, IFA_F_NODAD)
}

/// Works once the kernel has found no duplicate.
pub fn add_detecting(link: u32, address: IpNetwork) -> Message {
    insert(link, address, 0)
}

fn insert(link: u32, address: IpNetwork, flags: u32) -> Message {
    let message = message(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, link, address);
    match address {
        IpNetwork::V4(v4) if v4.prefix() < 31 => {
            message.bytes(IFA_BROADCAST, &v4.broadcast().octets())
        }
        IpNetwork::V4(_) => message,
        IpNetwork::V6(_) => message.u32(IFA_FLAGS, flags),
    }
}

pub fn remove(link: u32, address: IpNetwork) -> Message {
    message(RTM_DELADDR, 0, link, address)
}

/// Of all links: older kernels know no narrower question.
pub fn list() -> Message {
    Message::new(RTM_GETADDR, 0, &[0; IFADDR])
}

pub fn read(frame: &Frame<'_>) -> Option<Address> {
    let [_, length, short, scope, ..] = *frame.payload else { return None };
    let all = frame.attributes(IFADDR)?;
    // Between two ends, the first is this one and the second the other.
    let address = all.ip(IFA_LOCAL).or_else(|| all.ip(IFA_ADDRESS))?;
    let flags = all.u32(IFA_FLAGS).unwrap_or(short.into());
    Some(Address {
        link: u32_at(frame.payload, 4)?,
        network: IpNetwork::new(address, length).ok()?,
        is_global: scope == GLOBAL,
        detection: Detection::of(flags),
    })
}

/// An address that was added or has changed.
pub fn read_new(frame: &Frame<'_>) -> Option<Address> {
    (frame.kind == RTM_NEWADDR).then(|| read(frame)).flatten()
}

impl Detection {
    const fn of(flags: u32) -> Self {
        if flags & IFA_F_DADFAILED != 0 {
            Self::Duplicate
        } else if flags & IFA_F_TENTATIVE != 0 {
            Self::Running
        } else {
            Self::Done
        }
    }
}

fn message(kind: u16, flags: i32, link: u32, address: IpNetwork) -> Message {
    let (ip, length) = (address.ip(), address.prefix());
    let fixed = [[family(ip), length, 0, GLOBAL], link.to_ne_bytes()].concat();
    Message::new(kind, flags, &fixed).ip(IFA_LOCAL, ip).ip(IFA_ADDRESS, ip)
}

pub(super) fn family(address: IpAddr) -> u8 {
    byte(if address.is_ipv4() { AF_INET } else { AF_INET6 })
}
