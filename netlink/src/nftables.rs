//! nftables by netlink: a batch is carried out as a whole or not at all.

mod batch;
mod chains;
mod contents;
mod decode;
mod expression;
mod family;
mod numbers;
mod rules;
mod set;

pub use batch::{Batch, Chain, Hook};
pub use chains::{FilterChain, FilterRule, Outcome, filter_chains};
pub use contents::{
    Contents, Rules, changed_chain, changed_table, drops, generation, has_chain, read,
};
pub use expression::{Expression, Match, Ports};
pub use family::{IpFamily, TableFamily};
pub use rules::{Rule, list};
pub use set::{
    Change, ChangedElements, MOST_ADDRESSES, Stay, addresses, changed_elements, udp_stay,
};
