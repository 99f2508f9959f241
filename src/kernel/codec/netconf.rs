//! Settings of links: the kernel tells that one has changed, and its file says to what.

use netlink_packet_route::link::LinkMessage;
use tweed_netlink::Frame;

/// In the place of an index: a setting that holds for every link.
pub(crate) const ALL_LINKS: u32 = u32::MAX;

const INDEX: u16 = 1;
const REVERSE_PATH: u16 = 3;
/// Of `struct netconfmsg` with its padding, in bytes.
const HEADER_LEN: usize = 4;

/// A link without a name, whose reverse-path filter is not what it was; none for other settings.
pub(super) fn parse(frame: &Frame<'_>) -> Option<LinkMessage> {
    let attributes = frame.attributes(HEADER_LEN)?;
    attributes.get(REVERSE_PATH)?;
    let mut message = LinkMessage::default();
    message.header.index = attributes.u32(INDEX)?;
    Some(message)
}
