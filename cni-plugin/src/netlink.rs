//! Questions and orders to the kernel: a blocking socket per namespace, many orders in one send.

pub(crate) mod address;
pub(crate) mod attributes;
mod ethtool;
pub(crate) mod link;
pub mod message;
mod neighbour;
pub(crate) mod route;
mod socket;

pub use ethtool::{Ethtool, Switch, TX_CHECKSUM};
pub use neighbour::{NextHops, Resolution};
pub use socket::{Protocol, Refusal, Socket};
