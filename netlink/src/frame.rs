//! The messages in a datagram of the kernel.

use std::fmt;
use std::io;
use std::iter;

use nix::errno::Errno;
use nix::libc::{NLM_F_CAPPED, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR};

use crate::attributes::{Attributes, u16_at, u32_at};
use crate::message::HEADER;

/// One message of the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    pub kind: u16,
    pub flags: u16,
    pub(crate) sequence: u32,
    /// What follows the netlink header.
    pub payload: &'a [u8],
}

/// The kernel refused request `index`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Refusal {
    pub index: usize,
    pub errno: Errno,
    /// The kernel's explanation, where it has one.
    pub text: Option<String>,
}

impl<'a> Frame<'a> {
    /// The messages of `datagram`; what is cut off is skipped.
    pub fn all(datagram: &'a [u8]) -> impl Iterator<Item = Self> {
        let mut rest = datagram;
        iter::from_fn(move || {
            let (frame, next) = Self::split(rest)?;
            rest = next;
            Some(frame)
        })
    }

    /// The attributes behind a fixed part of `fixed` bytes.
    pub fn attributes(&self, fixed: usize) -> Option<Attributes<'a>> {
        self.payload.get(fixed..).map(Attributes::of)
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

    /// Whether the list that this is a part of changed while the kernel read it.
    pub(crate) fn is_interrupted(&self) -> bool {
        i32::from(self.flags) & NLM_F_DUMP_INTR != 0
    }

    /// Whether the kernel carried the request out; none for an object or a change.
    pub(crate) fn verdict(&self) -> Option<Result<(), Refusal>> {
        let kind = i32::from(self.kind);
        if kind != NLMSG_ERROR && kind != NLMSG_DONE {
            return None;
        }
        let code = u32_at(self.payload, 0).map_or(0, u32::cast_signed);
        if code == 0 {
            return Some(Ok(()));
        }
        let text = self.text().map(str::to_owned);
        Some(Err(Refusal { index: 0, errno: Errno::from_raw(-code), text }))
    }

    /// The kernel's explanation, behind the header of the request that it refuses.
    fn text(&self) -> Option<&'a str> {
        const MESSAGE: u16 = 1;
        let is_capped =
            i32::from(self.kind) == NLMSG_ERROR && i32::from(self.flags) & NLM_F_CAPPED != 0;
        self.attributes(4 + HEADER).filter(|_| is_capped)?.text(MESSAGE)
    }
}

/// With the kernel's explanation, and the kind of error that the number is.
impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        Self::new(Self::from(refusal.errno).kind(), refusal)
    }
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
