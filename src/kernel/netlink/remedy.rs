//! Workarounds for routes that the kernel refuses although they are valid. Pure.

use std::net::IpAddr;
use std::sync::Arc;

use nix::errno::Errno;

use crate::model::entry::{Entry, LinkName, Route};
use crate::model::prefix::Prefix;
use crate::plan::diff::Op;

/// Ops before and after the second attempt; their results are ignored.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Remedy {
    pub(super) before: Option<Op>,
    pub(super) after: Option<Op>,
}

/// The workaround for `op` after `errno`; none if there is none.
pub(super) fn remedy(op: &Op, errno: Errno) -> Option<Remedy> {
    let (Op::Create(put) | Op::Replace(put)) = op else { return None };
    match (put.as_ref(), errno) {
        (Entry::Route(route), Errno::EEXIST) => Some(without_hidden(route)),
        // The nexthop object may have been refused first, and applied by its own workaround since.
        (Entry::Route(Route { nexthop: Some(_), .. }), Errno::EINVAL) => Some(Remedy::default()),
        (Entry::Route(route), Errno::EINVAL) => {
            let host_route = gateway_route(route.gateway, route.link.as_ref(), route.onlink)?;
            (host_route.destination != route.destination).then(|| with_gateway_route(host_route))
        }
        (Entry::Nexthop(nexthop), Errno::EINVAL) => {
            gateway_route(nexthop.gateway, nexthop.link.as_ref(), nexthop.onlink)
                .map(with_gateway_route)
        }
        _ => None,
    }
}

/// The kernel already has this route, inactive behind another one with the same key, and rejects a
/// duplicate. Removing it first affects no packets, because the other route is active.
fn without_hidden(route: &Route) -> Remedy {
    Remedy { before: Some(Op::Remove(Arc::new(Entry::Route(route.clone())))), after: None }
}

/// For IPv6 the kernel refuses an on-link gateway that is currently routed through another device,
/// possibly by the route to be replaced. A temporary host route to the gateway avoids this.
fn gateway_route(gateway: Option<IpAddr>, link: Option<&LinkName>, onlink: bool) -> Option<Route> {
    let gateway = gateway.filter(IpAddr::is_ipv6).filter(|_| onlink)?;
    let route = Route::via(Prefix::host(gateway), gateway, link?.clone());
    Some(Route { gateway: None, ..route })
}

fn with_gateway_route(route: Route) -> Remedy {
    let route = Arc::new(Entry::Route(route));
    Remedy { before: Some(Op::Create(Arc::clone(&route))), after: Some(Op::Remove(route)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::entry::{Nexthop, NexthopId};

    fn route(destination: &str) -> Route {
        let destination: Prefix = destination.parse().unwrap();
        Route::via(destination, destination.base(), LinkName::new("flannel-v6.1")).onlink()
    }

    fn texts(op: &Op, errno: Errno) -> Option<[String; 2]> {
        let remedy = remedy(op, errno)?;
        let texts = |op: Option<Op>| op.map(|op| op.to_string()).unwrap_or_default();
        Some([texts(remedy.before), texts(remedy.after)])
    }

    #[test]
    fn a_hidden_route_is_removed_first() {
        let op = Op::Replace(Entry::Route(route("10.244.2.0/24")).into());
        let removal = "- route 10.244.2.0/24 via 10.244.2.0 dev flannel-v6.1 onlink";
        assert_eq!(texts(&op, Errno::EEXIST), Some([removal.to_owned(), String::new()]));
    }

    #[test]
    fn a_gateway_behind_another_device_gets_a_temporary_route() {
        let op = Op::Replace(Entry::Route(route("fd00:2::/64")).into());
        let host = "route fd00:2::/128 dev flannel-v6.1";
        assert_eq!(texts(&op, Errno::EINVAL), Some([format!("+ {host}"), format!("- {host}")]));
    }

    #[test]
    fn a_nexthop_behind_another_device_gets_a_temporary_route() {
        let Route { gateway, link, onlink, protocol, .. } = route("fd00:2::/64");
        let id = NexthopId(1);
        let op = Op::Create(Entry::Nexthop(Nexthop { id, gateway, link, onlink, protocol }).into());
        let host = "route fd00:2::/128 dev flannel-v6.1";
        assert_eq!(texts(&op, Errno::EINVAL), Some([format!("+ {host}"), format!("- {host}")]));
        assert_eq!(remedy(&op, Errno::EEXIST), None);
        let op =
            Op::Create(Entry::Route(Route { nexthop: Some(id), ..route("fd00:2::/64") }).into());
        assert_eq!(remedy(&op, Errno::EINVAL), Some(Remedy::default()));
    }

    #[test]
    fn other_refusals_have_no_remedy() {
        let v4 = Op::Create(Entry::Route(route("10.244.2.0/24")).into());
        let host = Op::Create(Entry::Route(route("fd00:2::/128")).into());
        let direct =
            Op::Create(Entry::Route(Route { onlink: false, ..route("fd00:2::/64") }).into());
        for op in [v4, host, direct] {
            assert_eq!(remedy(&op, Errno::EINVAL), None);
            assert_eq!(remedy(&op, Errno::ENETUNREACH), None);
        }
        let removal = Op::Remove(Entry::Route(route("fd00:2::/64")).into());
        assert_eq!(remedy(&removal, Errno::EEXIST), None);
    }
}
