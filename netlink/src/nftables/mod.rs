//! nftables by netlink: a batch is carried out as a whole or not at all.

mod batch;
mod chains;
mod contents;
mod decode;
mod expression;
mod family;
mod nfta;
mod set;

pub use batch::{Batch, Chain, Hook};
pub use chains::{FilterChain, FilterRule, filter_chains};
pub use contents::{
    Contents, Rule, Rules, changed_chain, changed_table, drops, generation, has_chain, list, read,
};
pub use decode::RuleVerdict;
pub use expression::{Expression, Match, Ports};
pub use family::TableFamily;
pub use set::{
    Change, ChangedElements, ElementTimeout, MOST_ADDRESSES, addresses, changed_elements,
    udp_timeout,
};
