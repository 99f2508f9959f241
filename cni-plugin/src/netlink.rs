//! Questions and orders to the kernel: a blocking socket per namespace, many orders in one send.

pub(crate) mod address;
pub(crate) mod attributes;
pub(crate) mod link;
pub mod message;
pub(crate) mod route;
mod socket;

pub use socket::{Protocol, Refusal, Socket};
