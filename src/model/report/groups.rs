//! All peers of a node in few words: how many have the same path and state, and their names in a
//! small cluster.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::config::BackendType;
use crate::model::lease::LeaseId;
use crate::model::path::{Path, ReachabilityState};
use crate::model::prefix::Family;
use crate::model::status::PeerStatus;

/// The peers of one address family with the same backend, path and reachability.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerGroup {
    pub family: Option<Family>,
    /// None if tweed does not know it.
    pub backend: Option<BackendType>,
    pub path: Option<Path>,
    /// None without a path.
    pub state: Option<ReachabilityState>,
    pub count: usize,
    /// All of them, or none in a large cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<LeaseId>,
}

/// Of more peers, a report names only the failing ones.
const MOST_NAMED: usize = 200;

/// `peers` by backend, path and reachability.
pub fn groups(peers: &[PeerStatus]) -> Vec<PeerGroup> {
    let mut groups: BTreeMap<_, Vec<&LeaseId>> = BTreeMap::new();
    for peer in peers {
        let (backend, state) =
            (BackendType::named(&peer.backend), peer.reachability.map(|it| it.state()));
        groups.entry((peer.family, backend, peer.path, state)).or_default().push(&peer.lease);
    }
    let is_named = peers.len() <= MOST_NAMED;
    let group = |((family, backend, path, state), peers): (_, Vec<&LeaseId>)| PeerGroup {
        family,
        backend,
        path,
        state,
        count: peers.len(),
        peers: peers.into_iter().filter(|_| is_named).cloned().collect(),
    };
    groups.into_iter().map(group).collect()
}
