//! nftables by netlink: a batch is carried out as a whole or not at all.

mod batch;
mod expression;
mod numbers;
mod rules;
mod set;

pub use batch::{Batch, Chain, Hook};
pub use expression::{Expression, IpFamily, Match};
pub use rules::{Rule, list};
