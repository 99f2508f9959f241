//! Everything about this node that its plan depends on.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::config::NetworkConfig;
use super::entry::LinkName;
use super::lease::Lease;
use super::node::Node;
use super::policy::Policy;
use super::prefix::Family;
use crate::mac::MacAddr;

/// Everything about this node that the plan depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Local {
    pub config: NetworkConfig,
    pub node: Node,
    /// Of the tunnel device of each family.
    pub macs: BTreeMap<Family, MacAddr>,
    /// Our lease, once we hold one.
    pub own: Option<Lease>,
    /// The links whose reverse-path filter was strict before `Mixed` loosened it.
    pub strict: BTreeSet<LinkName>,
    /// The families whose tunnel device is out of use and still has the address that connections of
    /// this host may have as their source.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub leaving: BTreeSet<Family>,
    /// What it does beside routing.
    #[serde(default)]
    pub policy: Policy,
}
