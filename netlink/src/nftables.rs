//! nftables by netlink: a batch is carried out as a whole or not at all.

mod batch;
mod chains;
mod contents;
mod decode;
mod elements;
mod expression;
mod family;
mod nat;
mod numbers;
mod rules;
mod set;
mod tunnel;

pub use batch::{Batch, Chain, Hook};
pub use chains::{FilterChain, FilterRule, Outcome, filter_chains};
pub use contents::{
    Contents, Rules, changed_chain, changed_table, drops, generation, has_chain, read,
};
pub use elements::{Change, ChangedElements, Stay, addresses, changed_elements, udp_stay};
pub use expression::{Expression, Match};
pub use family::{IpFamily, TableFamily};
pub use nat::Ports;
pub use rules::{Rule, list};
pub use set::MOST_ADDRESSES;
