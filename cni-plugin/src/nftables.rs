//! nftables by netlink: a batch is carried out as a whole or not at all.

mod batch;
mod expression;
mod numbers;
mod rules;

pub(crate) use batch::{Batch, Chain, Hook};
pub(crate) use expression::{Expression, Match};
pub(crate) use rules::{Rule, list};
