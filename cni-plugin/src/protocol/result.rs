//! What an ADD gives the runtime, and how each version of the protocol writes it.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::Serialize;
use serde_json::ser::{PrettyFormatter, Serializer};
use serde_json::{Value, json};

use crate::excerpt;
use crate::protocol::dns::Dns;
use crate::protocol::error::Error;
use crate::protocol::json::{self, Object};
use crate::protocol::route::Route;
use crate::protocol::version::Version;

/// Interfaces, addresses, routes and name servers of one attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub interfaces: Vec<Interface>,
    pub addresses: Vec<Address>,
    pub routes: Vec<Route>,
    pub dns: Dns,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    /// As `ip(8)` writes it, or nothing.
    pub mac: String,
    /// The network namespace that it is in; none on the host.
    pub sandbox: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Place in the list of interfaces.
    pub interface: Option<usize>,
    /// With the length of its subnet.
    pub address: IpNetwork,
    pub gateway: Option<IpAddr>,
}

impl Outcome {
    /// Reads a result of version 0.3.0 or later.
    ///
    /// # Errors
    /// A value has another type, or an address or a route is none.
    pub fn parse(result: &Object) -> Result<Self, Error> {
        let interfaces = json::objects(result, "interfaces")?.into_iter().map(Interface::parse);
        let addresses = json::objects(result, "ips")?.into_iter().map(Address::parse);
        let routes = json::objects(result, "routes")?.into_iter().map(Route::parse);
        Ok(Self {
            interfaces: interfaces.collect::<Result<_, _>>()?,
            addresses: addresses.collect::<Result<_, _>>()?,
            routes: routes.collect::<Result<_, _>>()?,
            dns: json::object(result, "dns")?.map(Dns::parse).transpose()?.unwrap_or_default(),
        })
    }

    /// # Errors
    /// A result of `version` cannot hold it.
    pub fn render(&self, version: Version) -> Result<String, Error> {
        Ok(indented(&self.to_json(version)?.into()))
    }

    fn to_json(&self, version: Version) -> Result<Object, Error> {
        if version < Version::V0_3_0 {
            return self.to_former_json(version);
        }
        let mut result = Object::new();
        result.insert("cniVersion".into(), version.as_str().into());
        put(&mut result, "interfaces", self.interfaces.iter().map(Interface::to_json).collect());
        let addresses = self.addresses.iter().map(|address| address.to_json(version)).collect();
        put(&mut result, "ips", addresses);
        put(
            &mut result,
            "routes",
            self.routes.iter().map(|route| route_to_json(route).into()).collect(),
        );
        if version < Version::V1_0_0 || !self.dns.is_empty() {
            result.insert("dns".into(), dns_to_json(&self.dns).into());
        }
        Ok(result)
    }

    /// Before 0.3.0: one address of each family at most, and no interfaces.
    fn to_former_json(&self, version: Version) -> Result<Object, Error> {
        let mut result = Object::new();
        result.insert("cniVersion".into(), version.as_str().into());
        for (key, is_ipv4) in [("ip4", true), ("ip6", false)] {
            let mut of_family =
                self.addresses.iter().filter(|one| one.address.is_ipv4() == is_ipv4);
            if let Some(address) = of_family.next() {
                result.insert(key.into(), self.former_family(address).into());
            }
        }
        if self.addresses.is_empty() {
            let refusal = format!("a result of version {version} needs an address");
            return Err(Error::incompatible_version(refusal));
        }
        result.insert("dns".into(), dns_to_json(&self.dns).into());
        Ok(result)
    }

    fn former_family(&self, address: &Address) -> Object {
        let mut entry = Object::new();
        entry.insert("ip".into(), address.address.to_string().into());
        if let Some(gateway) = address.gateway {
            entry.insert("gateway".into(), gateway.to_string().into());
        }
        let is_ipv4 = address.address.is_ipv4();
        let of_family = self.routes.iter().filter(|route| route.destination.is_ipv4() == is_ipv4);
        let routes: Vec<Value> = of_family.map(|route| former_route(route).into()).collect();
        if !routes.is_empty() {
            entry.insert("routes".into(), routes.into());
        }
        entry
    }
}

impl Interface {
    fn parse(entry: &Object) -> Result<Self, Error> {
        let text = |key| {
            Ok::<_, Error>(
                json::text(entry, key)?.filter(|text| !text.is_empty()).map(str::to_owned),
            )
        };
        Ok(Self {
            name: text("name")?.unwrap_or_default(),
            mac: text("mac")?.unwrap_or_default(),
            sandbox: text("sandbox")?,
        })
    }

    fn to_json(&self) -> Value {
        let mut interface = Object::new();
        interface.insert("name".into(), self.name.clone().into());
        if !self.mac.is_empty() {
            interface.insert("mac".into(), self.mac.clone().into());
        }
        if let Some(sandbox) = &self.sandbox {
            interface.insert("sandbox".into(), sandbox.clone().into());
        }
        interface.into()
    }
}

impl Address {
    fn parse(entry: &Object) -> Result<Self, Error> {
        let wrong = |text: &str| {
            let text = excerpt::quoted(text);
            Error::invalid_config(format!("{text} in prevResult is no address"))
        };
        let written = json::text(entry, "address")?.unwrap_or_default();
        let gateway = json::text(entry, "gateway")?.filter(|text| !text.is_empty());
        Ok(Self {
            interface: json::number(entry, "interface")?
                .and_then(|place| usize::try_from(place).ok()),
            address: written.parse().map_err(|_| wrong(written))?,
            gateway: gateway.map(|text| text.parse().map_err(|_| wrong(text))).transpose()?,
        })
    }

    fn to_json(&self, version: Version) -> Value {
        let mut entry = Object::new();
        if version < Version::V1_0_0 {
            let family = if self.address.is_ipv4() { "4" } else { "6" };
            entry.insert("version".into(), family.into());
        }
        if let Some(interface) = self.interface {
            entry.insert("interface".into(), interface.into());
        }
        entry.insert("address".into(), self.address.to_string().into());
        if let Some(gateway) = self.gateway {
            entry.insert("gateway".into(), gateway.to_string().into());
        }
        entry.into()
    }
}

/// As configs and results write a route.
pub fn route_to_json(route: &Route) -> Object {
    let numbers = [
        ("mtu", route.mtu),
        ("advmss", route.advmss),
        ("priority", route.priority),
        ("table", route.table),
        ("scope", route.scope),
    ];
    let mut entry = Object::new();
    entry.insert("dst".into(), route.destination.to_string().into());
    if let Some(gateway) = route.gateway {
        entry.insert("gw".into(), gateway.to_string().into());
    }
    let said = numbers.into_iter().filter_map(|(key, number)| Some((key, number?)));
    entry.extend(said.map(|(key, number)| (key.to_owned(), number.into())));
    entry
}

/// Only destination and gateway.
fn former_route(route: &Route) -> Object {
    let mut entry = route_to_json(route);
    entry.retain(|key, _| key == "dst" || key == "gw");
    entry
}

fn dns_to_json(dns: &Dns) -> Object {
    let domain = (!dns.domain.is_empty()).then(|| dns.domain.clone());
    let lists =
        [("nameservers", &dns.nameservers), ("search", &dns.search), ("options", &dns.options)];
    let mut entry: Object = lists
        .into_iter()
        .filter(|(_, list)| !list.is_empty())
        .map(|(key, list)| (key.to_owned(), json!(list)))
        .collect();
    entry.extend(domain.map(|domain| ("domain".to_owned(), domain.into())));
    entry
}

fn put(result: &mut Object, key: &str, list: Vec<Value>) {
    if !list.is_empty() {
        result.insert(key.into(), list.into());
    }
}

/// By four spaces, as the protocol's own library writes.
fn indented(value: &Value) -> String {
    let mut text = Vec::new();
    let formatter = PrettyFormatter::with_indent(b"    ");
    let written = value.serialize(&mut Serializer::with_formatter(&mut text, formatter));
    // A value in memory has nothing that cannot be written.
    written.map_or_else(|_| value.to_string(), |()| String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests;
