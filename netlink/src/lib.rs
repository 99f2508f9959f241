//! Netlink: messages, sockets, and the protocols that daemon and CNI plugin speak.
//!
//! It knows neither leases nor pods. Messages are built and read by pure functions; only the
//! sockets, and what is given one, touch the kernel.

// Messages.
mod attributes;
mod frame;
mod message;

// What sends them, and matches the answers to them.
#[cfg(feature = "async")]
mod asynchronous;
mod conversation;
mod socket;

// The protocols.
mod ethtool;
pub mod nftables;
pub mod rtnl;

// Values in messages, and text that others wrote.
pub mod excerpt;
mod family;
pub mod mac;

#[cfg(feature = "async")]
pub use asynchronous::{AsyncSocket, Monitor};
pub use attributes::{Attributes, ip};
pub use ethtool::{Ethtool, Switch, TX_CHECKSUM};
pub use family::Family;
pub use frame::{Frame, Refusal};
pub use message::Message;
pub use socket::{Protocol, Socket};
