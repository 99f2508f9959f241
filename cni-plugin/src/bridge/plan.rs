//! What an attachment needs, from its config and its addresses.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use tweed_netlink::Family;
use tweed_netlink::rtnl::route::Route;

use super::settings::{Gateway, Settings};
use crate::protocol::result::AddResult;
use crate::subnet_env;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    /// Addresses and routes of the container, before there are interfaces.
    pub(super) result: AddResult,
    /// Of the bridge, each with the length of its subnet.
    pub(super) gateways: Vec<IpNetwork>,
}

/// Place of the container's interface in the result.
const CONTAINER: usize = 2;

impl Plan {
    pub(super) fn of(settings: &Settings, allocated: AddResult) -> Self {
        let mut result = allocated;
        let has_gateway = settings.gateway != Gateway::Absent;
        for one in &mut result.addresses {
            let usual = has_gateway.then(|| subnet_env::gateway(one.address).ip());
            one.interface = Some(CONTAINER);
            one.gateway = one.gateway.or(usual);
        }
        let on_bridge = result.addresses.iter().filter(|_| has_gateway);
        let gateways: Vec<_> = on_bridge
            .filter_map(|one| IpNetwork::new(one.gateway?, one.address.prefix()).ok())
            .collect();
        if settings.gateway == Gateway::Default {
            add_defaults(&mut result.routes, &gateways);
        }
        if !settings.dns.is_empty() {
            result.dns = settings.dns.clone();
        }
        Self { result, gateways }
    }

    /// Which gateway `route` goes by, if it has none of its own.
    pub(super) fn gateway_of(&self, route: &Route) -> Option<IpAddr> {
        let is_ipv4 = route.destination.is_ipv4();
        let mut of_family = self.result.addresses.iter().filter_map(|one| one.gateway);
        route.gateway.or_else(|| of_family.find(|gateway| gateway.is_ipv4() == is_ipv4))
    }

    pub(super) fn has_ipv6(&self) -> bool {
        self.result.addresses.iter().any(|one| one.address.is_ipv6())
    }
}

/// One for each family that has none: two of one kind exclude each other.
fn add_defaults(routes: &mut Vec<Route>, gateways: &[IpNetwork]) {
    for gateway in gateways {
        let mut defaults = routes.iter().filter(|route| route.destination.prefix() == 0);
        if defaults.any(|route| route.destination.is_ipv4() == gateway.is_ipv4()) {
            continue;
        }
        let any = Family::of(gateway.ip()).unspecified();
        let everything = IpNetwork::new(any, 0).unwrap_or(*gateway);
        routes.push(Route { gateway: Some(gateway.ip()), ..Route::to(everything) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::request::Request;
    use crate::protocol::result::Address;

    fn plan(config: &str, addresses: &[(&str, Option<&str>)], routes: &[Route]) -> Plan {
        let variable = |name: &str| (name == "CNI_COMMAND").then(|| "VERSION".to_owned());
        let request = Request::parse(variable).unwrap().unwrap();
        let config = serde_json::from_str(config).unwrap();
        let allocated = |(address, gateway): &(&str, Option<&str>)| Address {
            interface: None,
            address: address.parse().unwrap(),
            gateway: gateway.map(|gateway| gateway.parse().unwrap()),
        };
        Plan::of(
            &Settings::parse(&config, &request).unwrap(),
            AddResult {
                addresses: addresses.iter().map(allocated).collect(),
                routes: routes.to_vec(),
                ..AddResult::default()
            },
        )
    }

    const DUAL: &[(&str, Option<&str>)] =
        &[("10.244.7.2/24", Some("10.244.7.1")), ("fd00::2/64", Some("fd00::1"))];

    fn route(destination: &str) -> Route {
        Route::to(destination.parse().unwrap())
    }

    #[test]
    fn without_gateway_the_bridge_gets_no_address() {
        let plan = plan(r#"{"name":"a"}"#, DUAL, &[]);
        assert_eq!(plan.gateways, []);
        assert_eq!(plan.result.routes, []);
    }

    #[test]
    fn a_default_gateway_adds_a_default_route_for_each_family() {
        let plan = plan(r#"{"name":"a","isDefaultGateway":true}"#, DUAL, &[route("10.244.0.0/16")]);
        let gateways: Vec<_> = plan.gateways.iter().map(ToString::to_string).collect();
        assert_eq!(gateways, ["10.244.7.1/24", "fd00::1/64"]);
        let routes: Vec<_> =
            plan.result.routes.iter().map(|route| route.destination.to_string()).collect();
        assert_eq!(routes, ["10.244.0.0/16", "0.0.0.0/0", "::/0"]);
        assert_eq!(plan.result.routes[1].gateway, Some("10.244.7.1".parse().unwrap()));
    }

    #[test]
    fn an_existing_default_route_is_sufficient() {
        let plan = plan(r#"{"name":"a","isDefaultGateway":true}"#, DUAL, &[route("0.0.0.0/0")]);
        assert_eq!(plan.result.routes.len(), 2);
        assert_eq!(plan.gateway_of(&plan.result.routes[0]), Some("10.244.7.1".parse().unwrap()));
    }

    #[test]
    fn the_default_gateway_is_the_first_address() {
        let plan = plan(r#"{"name":"a","isGateway":true}"#, &[("10.244.7.9/24", None)], &[]);
        assert_eq!(plan.gateways, ["10.244.7.1/24".parse().unwrap()]);
    }

    #[test]
    fn a_route_uses_its_own_gateway_or_that_of_its_family() {
        let mut by_other = route("192.168.0.0/16");
        by_other.gateway = Some("10.244.7.77".parse().unwrap());
        let plan =
            plan(r#"{"name":"a","isGateway":true}"#, DUAL, &[by_other, route("fd00:1::/32")]);
        assert_eq!(plan.gateway_of(&plan.result.routes[0]), Some("10.244.7.77".parse().unwrap()));
        assert_eq!(plan.gateway_of(&plan.result.routes[1]), Some("fd00::1".parse().unwrap()));
    }
}
