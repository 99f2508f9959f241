//! Features of links, as `ethtool -k` shows and `ethtool -K` sets them.

use std::io;

use nix::errno::Errno;
use nix::libc::{CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME, CTRL_CMD_GETFAMILY, GENL_ID_CTRL};

use crate::attributes::Attributes;
use crate::frame::{Frame, Refusal};
use crate::message::{Message, byte, word};
use crate::socket::{Protocol, Socket};

/// A conversation about features.
pub struct Ethtool {
    socket: Socket,
    /// What the kernel calls it today.
    family: u16,
}

/// Of generic netlink, in bytes.
const HEADER: usize = 4;

// Of `linux/ethtool_netlink.h`.
const FEATURES_GET: u8 = 11;
const FEATURES_SET: u8 = 12;
const FEATURES_HEADER: u16 = 1;
const HEADER_DEV_NAME: u16 = 2;
const FEATURES_WANTED: u16 = 3;
const FEATURES_ACTIVE: u16 = 4;
const BITSET_BITS: u16 = 3;
const BITSET_BIT: u16 = 1;
const BIT_NAME: u16 = 2;
const BIT_VALUE: u16 = 3;

impl Ethtool {
    /// Fails on kernels before 5.6, which have no netlink interface of ethtool; 5.7 is the first that
    /// can set features.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::open(Protocol::Generic)?;
        let question = request(word(GENL_ID_CTRL), byte(CTRL_CMD_GETFAMILY))
            .text(word(CTRL_ATTR_FAMILY_NAME), "ethtool");
        let answer = socket.get(question, |frame| {
            let id = frame.attributes(HEADER)?.get(word(CTRL_ATTR_FAMILY_ID))?;
            Some(u16::from_ne_bytes(id.try_into().ok()?))
        })?;
        let family = answer.map_err(|refusal| refusal.errno)?.ok_or(Errno::ENOENT)?;
        Ok(Self { socket, family })
    }

    /// Whether `feature` is active on `link`; none if there is no such link.
    pub fn is_active(&mut self, link: &str, feature: &str) -> io::Result<Option<bool>> {
        let question = about(self.family, FEATURES_GET, link);
        let read = |frame: &Frame<'_>| Some(is_listed(frame.attributes(HEADER)?, feature));
        match self.socket.get(question, read)? {
            Err(Refusal { errno: Errno::ENODEV, .. }) => Ok(None),
            answer => Ok(answer.map_err(|refusal| refusal.errno)?),
        }
    }

    /// Has `feature` switched on, or off.
    pub fn switch(&mut self, link: &str, feature: &str, switch: Switch) -> io::Result<()> {
        let order = about(self.family, FEATURES_SET, link).nest(FEATURES_WANTED, |set| {
            set.nest(BITSET_BITS, |bits| {
                bits.nest(BITSET_BIT, |bit| {
                    let value = matches!(switch, Switch::On).then_some(&[][..]);
                    bit.text(BIT_NAME, feature).with(value, |bit, flag| bit.bytes(BIT_VALUE, flag))
                })
            })
        });
        let answer = self.socket.get(order, |_| Some(()))?;
        answer.map(drop).map_err(|refusal| refusal.errno.into())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    On,
    Off,
}

fn request(family: u16, command: u8) -> Message {
    const VERSION: u8 = 1;
    Message::new(family, 0, &[command, VERSION, 0, 0])
}

fn about(family: u16, command: u8, link: &str) -> Message {
    request(family, command).nest(FEATURES_HEADER, |header| header.text(HEADER_DEV_NAME, link))
}

/// Only those that are active are listed.
fn is_listed(features: Attributes<'_>, feature: &str) -> bool {
    let active = features.nested(FEATURES_ACTIVE).and_then(|set| set.nested(BITSET_BITS));
    let bits = active.unwrap_or_default();
    let mut names = bits.iter().filter_map(|(_, bit)| Attributes::of(bit).text(BIT_NAME));
    names.any(|name| name == feature)
}
