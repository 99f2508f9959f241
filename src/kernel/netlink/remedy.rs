//! What helps where the kernel refuses a route that it could very well take. Pure.

use std::net::IpAddr;
use std::sync::Arc;

use nix::errno::Errno;

use crate::model::entry::{Entry, LinkName, Route};
use crate::model::prefix::Prefix;
use crate::plan::diff::Op;

/// Ops around the second attempt; whether they succeed is of no interest.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Remedy {
    pub(super) before: Option<Op>,
    pub(super) after: Option<Op>,
}

/// How to have `op` accepted that was refused with `errno`; none if there is no way.
pub(super) fn remedy(op: &Op, errno: Errno) -> Option<Remedy> {
    let (Op::Create(put) | Op::Replace(put)) = op else { return None };
    match (put.as_ref(), errno) {
        (Entry::Route(route), Errno::EEXIST) => Some(uncovered(route)),
        // Its nexthop object may have been refused before it, and helped by now.
        (Entry::Route(Route { nexthop: Some(_), .. }), Errno::EINVAL) => Some(Remedy::default()),
        (Entry::Route(route), Errno::EINVAL) => {
            let stone = stepping_stone(route.gateway, route.link.as_ref(), route.onlink)?;
            (stone.destination != route.destination).then(|| stepped(stone))
        }
        (Entry::Nexthop(nexthop), Errno::EINVAL) => {
            stepping_stone(nexthop.gateway, nexthop.link.as_ref(), nexthop.onlink).map(stepped)
        }
        _ => None,
    }
}

/// The kernel has this very route, behind another of its key, and will not have it twice. It
/// makes way, which no packet feels, for the other is in force.
fn uncovered(route: &Route) -> Remedy {
    Remedy { before: Some(Op::Remove(Arc::new(Entry::Route(route.clone())))), after: None }
}

/// In IPv6 the kernel refuses an on-link gateway that, as yet, is routed through another device:
/// by the very route, say, that is to be replaced. A route to the gateway alone convinces it.
fn stepping_stone(gateway: Option<IpAddr>, link: Option<&LinkName>, onlink: bool) -> Option<Route> {
    let gateway = gateway.filter(IpAddr::is_ipv6).filter(|_| onlink)?;
    let route = Route::via(Prefix::host(gateway), gateway, link?.clone());
    Some(Route { gateway: None, ..route })
}

fn stepped(stone: Route) -> Remedy {
    let stone = Arc::new(Entry::Route(stone));
    Remedy { before: Some(Op::Create(Arc::clone(&stone))), after: Some(Op::Remove(stone)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::entry::{Nexthop, NexthopId};

    fn route(destination: &str) -> Route {
        let destination: Prefix = destination.parse().unwrap();
        Route::via(destination, destination.base(), LinkName::new("flannel-v6.1")).onlink()
    }

    fn words(op: &Op, errno: Errno) -> Option<[String; 2]> {
        let remedy = remedy(op, errno)?;
        let words = |op: Option<Op>| op.map(|op| op.to_string()).unwrap_or_default();
        Some([words(remedy.before), words(remedy.after)])
    }

    #[test]
    fn a_route_that_hides_behind_another_makes_way_first() {
        let op = Op::Replace(Entry::Route(route("10.244.2.0/24")).into());
        let removal = "- route 10.244.2.0/24 via 10.244.2.0 dev flannel-v6.1 onlink";
        assert_eq!(words(&op, Errno::EEXIST), Some([removal.to_owned(), String::new()]));
    }

    #[test]
    fn a_gateway_behind_another_device_gets_a_route_of_its_own_meanwhile() {
        let op = Op::Replace(Entry::Route(route("fd00:2::/64")).into());
        let stone = "route fd00:2::/128 dev flannel-v6.1";
        assert_eq!(words(&op, Errno::EINVAL), Some([format!("+ {stone}"), format!("- {stone}")]));
    }

    #[test]
    fn a_nexthop_behind_another_device_gets_a_route_of_its_own_meanwhile() {
        let Route { gateway, link, onlink, protocol, .. } = route("fd00:2::/64");
        let id = NexthopId::new(1);
        let op = Op::Create(Entry::Nexthop(Nexthop { id, gateway, link, onlink, protocol }).into());
        let stone = "route fd00:2::/128 dev flannel-v6.1";
        assert_eq!(words(&op, Errno::EINVAL), Some([format!("+ {stone}"), format!("- {stone}")]));
        assert_eq!(remedy(&op, Errno::EEXIST), None);
        let op =
            Op::Create(Entry::Route(Route { nexthop: Some(id), ..route("fd00:2::/64") }).into());
        assert_eq!(remedy(&op, Errno::EINVAL), Some(Remedy::default()));
    }

    #[test]
    fn nothing_helps_against_any_other_refusal() {
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
