//! What helps where the kernel refuses a route that it could very well take. Pure.

use std::net::IpAddr;

use nix::errno::Errno;

use crate::kernel::Op;
use crate::kernel::state::{Entry, Route};
use crate::prefix::Prefix;

/// Ops around the second attempt; whether they succeed is of no interest.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Remedy {
    pub(super) before: Op,
    pub(super) after: Option<Op>,
}

/// How to have `op` accepted that was refused with `errno`; none if there is no way.
pub(super) fn remedy(op: &Op, errno: Errno) -> Option<Remedy> {
    let (Op::Create(Entry::Route(route)) | Op::Replace(Entry::Route(route))) = op else {
        return None;
    };
    match errno {
        Errno::EEXIST => Some(uncovered(route)),
        Errno::EINVAL => stepping_stone(route).map(stepped),
        _ => None,
    }
}

/// The kernel has this very route, behind another of its key, and will not have it twice. It
/// makes way, which no packet feels, for the other is in force.
fn uncovered(route: &Route) -> Remedy {
    Remedy { before: Op::Remove(Entry::Route(route.clone())), after: None }
}

/// In IPv6 the kernel refuses an on-link gateway that, as yet, is routed through another device:
/// by the very route, say, that is to be replaced. A route to the gateway alone convinces it.
fn stepping_stone(route: &Route) -> Option<Route> {
    let gateway = route.gateway.filter(IpAddr::is_ipv6).filter(|_| route.onlink)?;
    let destination = Prefix::host(gateway);
    let stone = Route { destination, gateway: None, onlink: false, ..route.clone() };
    (destination != route.destination).then_some(stone)
}

fn stepped(stone: Route) -> Remedy {
    let stone = Entry::Route(stone);
    Remedy { before: Op::Create(stone.clone()), after: Some(Op::Remove(stone)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::state::LinkName;

    fn route(destination: &str) -> Route {
        let destination: Prefix = destination.parse().unwrap();
        Route::via(destination, destination.base(), LinkName::new("flannel-v6.1")).onlink()
    }

    fn words(op: &Op, errno: Errno) -> Option<[String; 2]> {
        let remedy = remedy(op, errno)?;
        let after = remedy.after.map(|after| after.to_string());
        Some([remedy.before.to_string(), after.unwrap_or_default()])
    }

    #[test]
    fn a_route_that_hides_behind_another_makes_way_first() {
        let op = Op::Replace(Entry::Route(route("10.244.2.0/24")));
        let removal = "- route 10.244.2.0/24 via 10.244.2.0 dev flannel-v6.1 onlink";
        assert_eq!(words(&op, Errno::EEXIST), Some([removal.to_owned(), String::new()]));
    }

    #[test]
    fn a_gateway_behind_another_device_gets_a_route_of_its_own_meanwhile() {
        let op = Op::Replace(Entry::Route(route("fd00:2::/64")));
        let stone = "route fd00:2::/128 dev flannel-v6.1";
        assert_eq!(words(&op, Errno::EINVAL), Some([format!("+ {stone}"), format!("- {stone}")]));
    }

    #[test]
    fn nothing_helps_against_any_other_refusal() {
        let v4 = Op::Create(Entry::Route(route("10.244.2.0/24")));
        let host = Op::Create(Entry::Route(route("fd00:2::/128")));
        let direct = Op::Create(Entry::Route(Route { onlink: false, ..route("fd00:2::/64") }));
        for op in [v4, host, direct] {
            assert_eq!(remedy(&op, Errno::EINVAL), None);
            assert_eq!(remedy(&op, Errno::ENETUNREACH), None);
        }
        let removal = Op::Remove(Entry::Route(route("fd00:2::/64")));
        assert_eq!(remedy(&removal, Errno::EEXIST), None);
    }
}
