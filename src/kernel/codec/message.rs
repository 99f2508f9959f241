//! What travels on the socket: the messages of the netlink crate, and those that it does not know.

use netlink_packet_core::{
    DecodeError, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable,
};
use netlink_packet_route::RouteNetlinkMessage;

use super::nexthop::{NexthopMessage, RTM_DELNEXTHOP, RTM_GETNEXTHOP, RTM_NEWNEXTHOP};

pub(crate) type Message = NetlinkMessage<Body>;

/// What one message says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "nearly every message is of the largest variant")]
pub(crate) enum Body {
    Rtnl(RouteNetlinkMessage),
    NewNexthop(NexthopMessage),
    DelNexthop(NexthopMessage),
    GetNexthop(NexthopMessage),
}

impl From<RouteNetlinkMessage> for Body {
    fn from(message: RouteNetlinkMessage) -> Self {
        Self::Rtnl(message)
    }
}

impl From<Body> for NetlinkPayload<Body> {
    fn from(body: Body) -> Self {
        Self::InnerMessage(body)
    }
}

impl NetlinkSerializable for Body {
    fn message_type(&self) -> u16 {
        match self {
            Self::Rtnl(message) => message.message_type(),
            Self::NewNexthop(_) => RTM_NEWNEXTHOP,
            Self::DelNexthop(_) => RTM_DELNEXTHOP,
            Self::GetNexthop(_) => RTM_GETNEXTHOP,
        }
    }

    fn buffer_len(&self) -> usize {
        match self {
            Self::Rtnl(message) => NetlinkSerializable::buffer_len(message),
            Self::NewNexthop(nexthop) | Self::DelNexthop(nexthop) | Self::GetNexthop(nexthop) => {
                nexthop.length()
            }
        }
    }

    fn serialize(&self, buffer: &mut [u8]) {
        match self {
            Self::Rtnl(message) => message.serialize(buffer),
            Self::NewNexthop(nexthop) | Self::DelNexthop(nexthop) | Self::GetNexthop(nexthop) => {
                buffer.copy_from_slice(&nexthop.bytes());
            }
        }
    }
}

impl NetlinkDeserializable for Body {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        let nexthop = || {
            NexthopMessage::parse(payload).ok_or_else(|| DecodeError::from("a nexthop cut short"))
        };
        match header.message_type {
            RTM_NEWNEXTHOP => nexthop().map(Self::NewNexthop),
            RTM_DELNEXTHOP => nexthop().map(Self::DelNexthop),
            RTM_GETNEXTHOP => nexthop().map(Self::GetNexthop),
            _ => RouteNetlinkMessage::deserialize(header, payload).map(Self::Rtnl),
        }
    }
}
