//! Routes with nexthop objects, where the kernel supports them.

use std::sync::Arc;

use crate::model::entry::{Entry, Nexthop, NexthopId, Route};
use crate::model::node_inputs::NodeInputs;
use crate::model::path::Path;
use crate::model::prefix::{Family, Prefix};

/// The network from which nexthop ids are derived; none if routes have their gateways inline.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nexthops(Option<Prefix>);

impl Nexthops {
    pub(super) fn new(local: &NodeInputs, family: Family) -> Self {
        let pool = local.config.pool(family).filter(|_| local.node.nexthops);
        Self(pool.map(|pool| pool.network))
    }

    /// `route`, and the nexthop object that holds its gateway.
    pub(super) fn program(self, route: Route, path: Path) -> Vec<Arc<Entry>> {
        let id = self.0.and_then(|network| NexthopId::of(network, route.destination, path));
        let nexthop = id.map(|id| Nexthop {
            id,
            gateway: route.gateway,
            link: route.link.clone(),
            onlink: route.onlink,
            protocol: route.protocol,
        });
        let route = Route { nexthop: id, ..route };
        let entries = nexthop.map(Entry::Nexthop).into_iter().chain([Entry::Route(route)]);
        entries.map(Arc::new).collect()
    }
}
