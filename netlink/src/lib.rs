//! Netlink: messages, sockets, and the protocols that daemon and CNI plugin speak.
//!
//! It knows neither leases nor pods. Messages are built and read by pure functions; only
//! [`socket`] and the conversations on top of it touch the kernel.

// What all protocols share.
mod attributes;
pub mod message;
mod socket;

// The protocols.
mod ethtool;
pub mod nftables;
pub mod rtnl;

// Values in messages, and text that others wrote.
pub mod excerpt;
pub mod mac;

pub use ethtool::{Ethtool, Switch, TX_CHECKSUM};
pub use socket::{Protocol, Refusal, Socket};
