//! Questions and orders to the kernel: a blocking socket per namespace, many orders in one send.

pub(crate) mod address;
pub(crate) mod attributes;
pub(crate) mod link;
pub(crate) mod message;
pub(crate) mod route;
mod socket;

pub(crate) use socket::{Protocol, Refusal, Socket};
