//! The direct paths, of the host-gw backend and of `Mixed`: routes to peers on the same link.

use super::{Nexthops, PathPlan, Unreachable};
use crate::model::entry::Route;
use crate::model::lease::Endpoint;
use crate::model::node::Node;
use crate::model::path::Path;

pub(super) struct DirectPaths {
    pub(super) node: Node,
    pub(super) nexthops: Nexthops,
}

impl DirectPaths {
    /// The direct path to `peer`, whatever its backend.
    pub(super) fn to(&self, peer: &Endpoint) -> Result<PathPlan, Unreachable> {
        let link = self.node.interface.clone();
        if !self.node.is_adjacent(peer.public_ip) {
            return Err(Unreachable::NotOnLink { gateway: peer.public_ip, link });
        }
        let route = Route::via(peer.subnet, peer.public_ip, link);
        let entries = self.nexthops.program(route, Path::Direct);
        Ok(PathPlan { path: Path::Direct, entries, fallback: None })
    }
}
