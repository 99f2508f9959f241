//! What the runtime gets: the result of an ADD, as each version of the protocol writes it, or an error.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::ser::Serialize;
use serde_json::ser::PrettyFormatter;
use serde_json::{Value, json};
use tweed_netlink::Family;
use tweed_netlink::rtnl::route::Route;

use crate::excerpt;
use crate::protocol::error::Error;
use crate::protocol::json::{self, Object};
use crate::protocol::version::Version;

/// Interfaces, addresses, routes and name servers of one attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddResult {
    pub interfaces: Vec<Interface>,
    pub addresses: Vec<Address>,
    pub routes: Vec<Route>,
    pub dns: Dns,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Interface {
    pub name: String,
    /// As `ip(8)` writes it, or empty.
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

/// Name resolution as configs and results hold it.
#[derive(Clone, Debug, Default, Eq, PartialEq, serde::Serialize)]
pub struct Dns {
    pub nameservers: Vec<String>,
    pub domain: String,
    pub search: Vec<String>,
    pub options: Vec<String>,
}

impl AddResult {
    /// Reads a result of version 0.3.0 or later.
    pub fn parse(result: &Object) -> Result<Self, Error> {
        let interfaces = json::objects(result, "interfaces")?.into_iter().map(Interface::parse);
        let addresses = json::objects(result, "ips")?.into_iter().map(Address::parse);
        let routes = json::objects(result, "routes")?.into_iter().map(parse_route);
        Ok(Self {
            interfaces: interfaces.collect::<Result<_, _>>()?,
            addresses: addresses.collect::<Result<_, _>>()?,
            routes: routes.collect::<Result<_, _>>()?,
            dns: json::object(result, "dns")?.map(Dns::parse).transpose()?.unwrap_or_default(),
        })
    }

    /// Fails if a result of `version` cannot hold it.
    pub fn render(&self, version: Version) -> Result<String, Error> {
        Ok(indented(&self.to_json(version)?))
    }

    fn to_json(&self, version: Version) -> Result<Value, Error> {
        let has_dns = version < Version::V1_0_0 || !self.dns.is_empty();
        let dns = has_dns.then_some(&self.dns);
        if version >= Version::V0_3_0 {
            let ips = self.addresses.iter().map(|address| address.to_json(version));
            return Ok(without_unset(json!({
                "cniVersion": version.as_str(),
                "interfaces": self.interfaces,
                "ips": ips.collect::<Vec<_>>(),
                "routes": list_routes(&self.routes),
                "dns": dns,
            })));
        }
        if self.addresses.is_empty() {
            let refusal = format!("a result of version {} needs an address", version.as_str());
            return Err(Error::incompatible_version(refusal));
        }
        let [ip4, ip6] = Family::ALL.map(|family| self.of_family(family));
        let result = json!({"cniVersion": version.as_str(), "ip4": ip4, "ip6": ip6, "dns": dns});
        Ok(without_unset(result))
    }

    /// Before 0.3.0: one address of each family at most, and no interfaces.
    fn of_family(&self, family: Family) -> Option<Value> {
        let is_its = |network: IpNetwork| Family::of(network.ip()) == family;
        let first = self.addresses.iter().find(|one| is_its(one.address))?;
        let routes = self.routes.iter().filter(|route| is_its(route.destination));
        // Only destination and gateway.
        let routes = routes.map(|it| json!({"dst": it.destination.to_string(), "gw": it.gateway}));
        Some(json!({
            "ip": first.address.to_string(),
            "gateway": first.gateway,
            "routes": routes.collect::<Vec<_>>(),
        }))
    }
}

impl Interface {
    fn parse(entry: &Object) -> Result<Self, Error> {
        let text = |key| json::filled_text(entry, key).map(|text| text.map(str::to_owned));
        Ok(Self {
            name: text("name")?.unwrap_or_default(),
            mac: text("mac")?.unwrap_or_default(),
            sandbox: text("sandbox")?,
        })
    }
}

impl Address {
    fn parse(entry: &Object) -> Result<Self, Error> {
        let wrong = |text: &str| {
            let text = excerpt::quoted(text);
            Error::invalid_config(format!("{text} in prevResult is not an address"))
        };
        let written = json::text(entry, "address")?.unwrap_or_default();
        let gateway = json::filled_text(entry, "gateway")?;
        Ok(Self {
            interface: json::number(entry, "interface")?
                .and_then(|place| usize::try_from(place).ok()),
            address: written.parse().map_err(|_| wrong(written))?,
            gateway: gateway.map(|text| text.parse().map_err(|_| wrong(text))).transpose()?,
        })
    }

    fn to_json(&self, version: Version) -> Value {
        let family = if self.address.is_ipv4() { "4" } else { "6" };
        json!({
            "interface": self.interface,
            "address": self.address.to_string(),
            "gateway": self.gateway,
            "version": (version < Version::V1_0_0).then_some(family),
        })
    }
}

impl Dns {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub fn parse(dns: &Object) -> Result<Self, Error> {
        let texts =
            |key| json::texts(dns, key).map(|texts| texts.into_iter().map(str::to_owned).collect());
        Ok(Self {
            nameservers: texts("nameservers")?,
            domain: json::text(dns, "domain")?.unwrap_or_default().to_owned(),
            search: texts("search")?,
            options: texts("options")?,
        })
    }

    /// Reads the keywords of resolv.conf(5) that a result can hold.
    pub fn parse_resolv_conf(text: &str) -> Self {
        let mut dns = Self::default();
        for line in text.lines().filter(|line| !line.starts_with(['#', ';'])) {
            let mut words = line.split_whitespace().map(str::to_owned);
            let (Some(keyword), Some(first)) = (words.next(), words.next()) else { continue };
            match keyword.as_str() {
                "nameserver" => dns.nameservers.push(first),
                "domain" => dns.domain = first,
                "search" => dns.search.extend([first].into_iter().chain(words)),
                "options" => dns.options.extend([first].into_iter().chain(words)),
                _ => {}
            }
        }
        dns
    }
}

/// An error as it is printed for the runtime. `version` is that of the config; the latest where no
/// config was read.
pub fn render_error(error: &Error, version: Version) -> String {
    let (msg, details) = (excerpt::answer(&error.msg), excerpt::answer(&error.details));
    let mut report = json!({ "cniVersion": version.as_str(), "code": error.code, "msg": msg });
    if let (Some(object), false) = (report.as_object_mut(), details.is_empty()) {
        object.insert("details".to_owned(), details.into());
    }
    format!("{report}\n")
}

/// As configs and results write it: a field that is empty or not set is absent.
pub(crate) fn without_unset(value: Value) -> Value {
    let is_set = |value: &Value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => true,
    };
    match value {
        Value::Object(fields) => {
            let set = fields.into_iter().filter(|(_, value)| is_set(value));
            set.map(|(key, value)| (key, without_unset(value))).collect()
        }
        Value::Array(list) => list.into_iter().map(without_unset).collect(),
        other => other,
    }
}

/// Reads an entry of `routes`; `dst` must be there, with a prefix length.
pub(crate) fn parse_route(route: &Object) -> Result<Route, Error> {
    let wrong = |what: &str, text: &str, wanted: &str| {
        let text = excerpt::quoted(text);
        Error::invalid_config(format!("the {what} {text} of a route is not {wanted}"))
    };
    let written = json::text(route, "dst")?.unwrap_or_default();
    let destination = written.contains('/').then(|| written.parse().ok()).flatten();
    let destination = destination.ok_or_else(|| wrong("dst", written, "a network"))?;
    let gateway = json::filled_text(route, "gw")?;
    let gateway = gateway.map(|text| text.parse().map_err(|_| wrong("gw", text, "an address")));
    Ok(Route {
        destination,
        gateway: gateway.transpose()?,
        mtu: json::number(route, "mtu")?,
        advmss: json::number(route, "advmss")?,
        priority: json::number(route, "priority")?,
        table: json::number(route, "table")?,
        scope: json::number(route, "scope")?,
    })
}

/// Entries of `routes`; what is not set is `null`.
pub(crate) fn list_routes(routes: &[Route]) -> Value {
    let entry = |route: &Route| {
        json!({
            "dst": route.destination.to_string(),
            "gw": route.gateway,
            "mtu": route.mtu,
            "advmss": route.advmss,
            "priority": route.priority,
            "table": route.table,
            "scope": route.scope,
        })
    };
    routes.iter().map(entry).collect()
}

/// By four spaces, as the protocol's own library writes.
fn indented(value: &Value) -> String {
    let mut text = Vec::new();
    let formatter = PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, formatter);
    // A value in memory has nothing that cannot be written.
    let written = value.serialize(&mut serializer);
    written.map_or_else(|_| value.to_string(), |()| String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests;
