//! Netlink: messages, sockets, and the protocols of daemon and CNI plugin. Pure functions build and
//! read messages; only the sockets touch the kernel.

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
pub mod conntrack;
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
pub use ethtool::{Ethtool, Switch};
pub use family::Family;
pub use frame::{Frame, Refusal};
pub use message::{Message, octets};
pub use socket::{Protocol, Socket};
