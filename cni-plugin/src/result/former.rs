//! Results before 0.3.0: one address of each family at most, and no interfaces.

use serde_json::Value;

use super::{Address, Outcome, dns_to_json};
use crate::error::Error;
use crate::json::Object;
use crate::version::Version;

pub(super) fn render(outcome: &Outcome, version: Version) -> Result<Object, Error> {
    let mut result = Object::new();
    result.insert("cniVersion".into(), version.as_str().into());
    for (key, is_ipv4) in [("ip4", true), ("ip6", false)] {
        let mut of_family = outcome.addresses.iter().filter(|one| one.address.is_ipv4() == is_ipv4);
        if let Some(address) = of_family.next() {
            result.insert(key.into(), family(outcome, address).into());
        }
    }
    if outcome.addresses.is_empty() {
        let refusal = format!("a result of version {version} needs an address");
        return Err(Error::incompatible_version(refusal));
    }
    result.insert("dns".into(), dns_to_json(&outcome.dns).into());
    Ok(result)
}

fn family(outcome: &Outcome, address: &Address) -> Object {
    let mut entry = Object::new();
    entry.insert("ip".into(), address.address.to_string().into());
    if let Some(gateway) = address.gateway {
        entry.insert("gateway".into(), gateway.to_string().into());
    }
    let is_ipv4 = address.address.is_ipv4();
    let of_family = outcome.routes.iter().filter(|route| route.destination.is_ipv4() == is_ipv4);
    let routes: Vec<Value> = of_family.map(|route| former_route(route).into()).collect();
    if !routes.is_empty() {
        entry.insert("routes".into(), routes.into());
    }
    entry
}

/// Only where to and by which gateway could be said.
fn former_route(route: &crate::route::Route) -> Object {
    let mut entry = super::route_to_json(route);
    entry.retain(|key, _| key == "dst" || key == "gw");
    entry
}
