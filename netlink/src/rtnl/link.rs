//! Links: requests, and the answers of the kernel.

use std::io;
use std::os::fd::RawFd;

use nix::errno::Errno;
use nix::libc::{
    AF_BRIDGE, AF_UNSPEC, IF_OPER_UP, IFF_PROMISC, IFF_UP, IFLA_ADDRESS, IFLA_EXT_MASK, IFLA_GROUP,
    IFLA_IFALIAS, IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINK, IFLA_LINKINFO,
    IFLA_MASTER, IFLA_MTU, IFLA_NET_NS_FD, IFLA_OPERSTATE, IFLA_PROTINFO, NLM_F_CREATE, NLM_F_EXCL,
    RTEXT_FILTER_SKIP_STATS, RTM_DELLINK, RTM_GETLINK, RTM_NEWLINK, RTM_SETLINK,
};

use crate::attributes::u32_at;
use crate::frame::{Frame, Refusal};
use crate::mac::MacAddr;
use crate::message::{Message, byte, fixed};
use crate::socket::Socket;

/// What is known of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    /// `bridge`, `veth`; empty for hardware.
    pub kind: String,
    pub mac: MacAddr,
    /// Bytes.
    pub mtu: u32,
    pub is_up: bool,
    /// Whether frames pass: up, with a carrier.
    pub is_operational: bool,
    pub is_promiscuous: bool,
    /// The bridge that it is a port of.
    pub master: Option<u32>,
    /// The other end, numbered as in its own namespace.
    pub peer: Option<u32>,
    /// Text that people and programs may put at a link.
    pub alias: String,
    /// A number by which links can be changed together; 0 by default.
    pub group: u32,
}

/// A pair of ends, one here as a port, the other in a namespace of its own.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    pub name: &'a str,
    pub mac: MacAddr,
    pub master: u32,
    pub inner_name: &'a str,
    /// A descriptor that is open on it.
    pub inner_netns: RawFd,
    pub inner_mac: Option<MacAddr>,
    /// Bytes; the kernel's choice if none.
    pub mtu: Option<u32>,
}

/// What a port of a bridge may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRules {
    /// Frames may go out where they came in.
    pub hairpin: bool,
    /// Frames go only to ports that are not isolated.
    pub isolated: bool,
}

const IFINFO: usize = 16;
const VETH_INFO_PEER: u16 = 1;
const IFLA_BRPORT_MODE: u16 = 4;
const IFLA_BRPORT_ISOLATED: u16 = 33;

/// With a MAC of its own from the start, which its ports cannot change.
pub fn create_bridge(name: &str, mac: MacAddr, mtu: Option<u32>) -> Message {
    Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &up(0))
        .text(IFLA_IFNAME, name)
        .bytes(IFLA_ADDRESS, &mac.octets())
        .with(mtu, |message, mtu| message.u32(IFLA_MTU, mtu))
        .nest(IFLA_LINKINFO, |info| info.text(IFLA_INFO_KIND, "bridge"))
}

pub fn create_pair(pair: &Pair<'_>) -> Message {
    let peer = |message: Message| {
        message
            .fixed(&ifinfo(AF_UNSPEC, 0, 0, 0))
            .text(IFLA_IFNAME, pair.inner_name)
            .with(pair.mtu, |peer, mtu| peer.u32(IFLA_MTU, mtu))
            .with(pair.inner_mac, |peer, mac| peer.bytes(IFLA_ADDRESS, &mac.octets()))
            .bytes(IFLA_NET_NS_FD, &pair.inner_netns.to_ne_bytes())
    };
    Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &ifinfo(AF_UNSPEC, 0, 0, 0))
        .text(IFLA_IFNAME, pair.name)
        .bytes(IFLA_ADDRESS, &pair.mac.octets())
        .u32(IFLA_MASTER, pair.master)
        .with(pair.mtu, |message, mtu| message.u32(IFLA_MTU, mtu))
        .nest(IFLA_LINKINFO, |info| {
            info.text(IFLA_INFO_KIND, "veth")
                .nest(IFLA_INFO_DATA, |data| data.nest(VETH_INFO_PEER, peer))
        })
}

pub fn set_up(index: u32) -> Message {
    Message::new(RTM_NEWLINK, 0, &up(index))
}

pub fn set_promiscuous(index: u32) -> Message {
    let flag = flags(IFF_PROMISC);
    Message::new(RTM_NEWLINK, 0, &ifinfo(AF_UNSPEC, index, flag, flag))
}

pub fn set_mac(index: u32, mac: MacAddr) -> Message {
    let fixed = ifinfo(AF_UNSPEC, index, 0, 0);
    Message::new(RTM_NEWLINK, 0, &fixed).bytes(IFLA_ADDRESS, &mac.octets())
}

pub fn set_up_with_alias(index: u32, alias: &str) -> Message {
    Message::new(RTM_NEWLINK, 0, &up(index)).bytes(IFLA_IFALIAS, alias.as_bytes())
}

pub fn set_port(index: u32, rules: PortRules) -> Message {
    let fixed = ifinfo(AF_BRIDGE, index, 0, 0);
    Message::new(RTM_SETLINK, 0, &fixed).nest(IFLA_PROTINFO, |port| {
        port.u8(IFLA_BRPORT_MODE, rules.hairpin.into())
            .u8(IFLA_BRPORT_ISOLATED, rules.isolated.into())
    })
}

pub fn delete(name: &str) -> Message {
    Message::new(RTM_DELLINK, 0, &ifinfo(AF_UNSPEC, 0, 0, 0)).text(IFLA_IFNAME, name)
}

pub fn delete_index(index: u32) -> Message {
    Message::new(RTM_DELLINK, 0, &ifinfo(AF_UNSPEC, index, 0, 0))
}

pub fn set_group(index: u32, group: u32) -> Message {
    Message::new(RTM_SETLINK, 0, &ifinfo(AF_UNSPEC, index, 0, 0)).u32(IFLA_GROUP, group)
}

/// All links of `group` together.
pub fn delete_group(group: u32) -> Message {
    Message::new(RTM_DELLINK, 0, &ifinfo(AF_UNSPEC, 0, 0, 0)).u32(IFLA_GROUP, group)
}

/// The link called `name`; none if there is none.
pub fn find(socket: &mut Socket, name: &str) -> io::Result<Option<Link>> {
    one(socket, list().text(IFLA_IFNAME, name))
}

pub fn find_index(socket: &mut Socket, index: u32) -> io::Result<Option<Link>> {
    one(socket, question(index))
}

fn one(socket: &mut Socket, question: Message) -> io::Result<Option<Link>> {
    match socket.get(question, read)? {
        Err(Refusal { errno: Errno::ENODEV, .. }) => Ok(None),
        answer => Ok(answer?),
    }
}

pub fn list() -> Message {
    question(0)
}

fn question(index: u32) -> Message {
    let message = Message::new(RTM_GETLINK, 0, &ifinfo(AF_UNSPEC, index, 0, 0));
    message.u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS.cast_unsigned())
}

pub fn list_ports(master: u32) -> Message {
    list().u32(IFLA_MASTER, master)
}

pub fn read(frame: &Frame<'_>) -> Option<Link> {
    let flags = u32_at(frame.payload, 8)?;
    let all = frame.attributes(IFINFO)?;
    let text = |kind| all.text(kind).unwrap_or_default().to_owned();
    let info = all.nested(IFLA_LINKINFO);
    let kind = info.and_then(|info| info.text(IFLA_INFO_KIND));
    let mac = all.get(IFLA_ADDRESS).and_then(|bytes| <[u8; 6]>::try_from(bytes).ok());
    Some(Link {
        index: u32_at(frame.payload, 4)?,
        name: text(IFLA_IFNAME),
        kind: kind.unwrap_or_default().to_owned(),
        mac: mac.map(MacAddr::new).unwrap_or_default(),
        mtu: all.u32(IFLA_MTU).unwrap_or_default(),
        is_up: flags & self::flags(IFF_UP) != 0,
        is_operational: all.u8(IFLA_OPERSTATE) == Some(byte(IF_OPER_UP)),
        is_promiscuous: flags & self::flags(IFF_PROMISC) != 0,
        master: all.u32(IFLA_MASTER),
        peer: all.u32(IFLA_LINK),
        alias: text(IFLA_IFALIAS),
        group: all.u32(IFLA_GROUP).unwrap_or_default(),
    })
}

fn up(index: u32) -> [u8; IFINFO] {
    ifinfo(AF_UNSPEC, index, flags(IFF_UP), flags(IFF_UP))
}

fn flags(bits: i32) -> u32 {
    bits.cast_unsigned()
}

fn ifinfo(family: i32, index: u32, flags: u32, change: u32) -> [u8; IFINFO] {
    let family = [byte(family), 0, 0, 0];
    fixed(&[family, index.to_ne_bytes(), flags.to_ne_bytes(), change.to_ne_bytes()].concat())
}
