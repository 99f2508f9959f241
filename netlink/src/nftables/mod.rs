//! nftables by netlink: a batch is carried out as a whole or not at all.

mod batch;
mod chains;
mod contents;
mod decode;
mod expression;
mod family;
mod key;
mod nfta;
mod rule;
mod set;

pub use batch::{Batch, Chain, Hook};
pub use chains::{FilterChain, filter_chains};
pub use contents::{
    Contents, ListedRule, Rules, changed_chain, changed_table, committer, generation, own_number,
};
pub use family::{Table, TableFamily};
pub use key::{Field, Key, Side};
pub use rule::{Condition, Match, Ports, Rule, Tracking, Verdict};
pub use set::{
    Change, ChangedElements, Element, ElementTimeout, ListedElement, MOST_ADDRESSES, MOST_ELEMENTS,
    changed_elements,
};
