//! This node as the input of the plan.

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
pub struct NodeInputs {
    pub config: NetworkConfig,
    pub node: Node,
    /// The MAC address of the tunnel device of each family.
    pub macs: BTreeMap<Family, MacAddr>,
    /// The lease of this node, if it holds one.
    pub own: Option<Lease>,
    /// The links whose reverse-path filter was strict before `Mixed` loosened it.
    pub strict: BTreeSet<LinkName>,
    /// The families whose tunnel device this node no longer uses, but still has its address:
    /// connections of this host may have it as their source, and peers send their answers to it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub leaving: BTreeSet<Family>,
    /// Whether this node was on host-gw before or since `Mixed` was turned on. Then its lease shows
    /// `Mixed` on vxlan, too: peers on host-gw may not have read `Mixed` yet. Others need not know, and
    /// 5,000 nodes need not write their leases whenever `Mixed` changes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub was_on_host_gw: bool,
    /// The settings in addition to routing.
    #[serde(default)]
    pub policy: Policy,
}
