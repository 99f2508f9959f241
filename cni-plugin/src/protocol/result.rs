//! What the runtime gets: the result of an ADD, as each version of the protocol writes it, or an error.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::ser::{Serialize, Serializer};
use serde_json::ser::PrettyFormatter;
use serde_json::{Value, json};

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

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Address {
    /// Place in the list of interfaces.
    pub interface: Option<usize>,
    /// With the length of its subnet.
    #[serde(serialize_with = "as_text")]
    pub address: IpNetwork,
    pub gateway: Option<IpAddr>,
}

/// A route as configs and results hold it; what is `None` was not set.
#[derive(Clone, Debug, Eq, PartialEq, serde::Serialize)]
pub struct Route {
    #[serde(rename = "dst", serialize_with = "as_text")]
    pub destination: IpNetwork,
    #[serde(rename = "gw")]
    pub gateway: Option<IpAddr>,
    /// In bytes.
    pub mtu: Option<u32>,
    /// In bytes.
    pub advmss: Option<u32>,
    pub priority: Option<u32>,
    pub table: Option<u32>,
    pub scope: Option<u32>,
}

/// Name resolution as configs and results hold it.
#[derive(Clone, Debug, Default, Eq, PartialEq, serde::Serialize)]
pub struct Dns {
    pub nameservers: Vec<String>,
    pub domain: String,
    pub search: Vec<String>,
    pub options: Vec<String>,
}

/// An error as it is printed for the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorReport {
    /// Of the config; the latest where no config was read.
    pub version: Version,
    pub error: Error,
}

impl AddResult {
    /// Reads a result of version 0.3.0 or later.
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

    /// Fails if a result of `version` cannot hold it.
    pub fn render(&self, version: Version) -> Result<String, Error> {
        Ok(indented(&self.to_json(version)?.into()))
    }

    fn to_json(&self, version: Version) -> Result<Object, Error> {
        let mut result = Object::from_iter([("cniVersion".to_owned(), version.as_str().into())]);
        if version < Version::V0_3_0 {
            self.put_by_family(&mut result, version)?;
        } else {
            let addresses = self.addresses.iter().map(|address| address.to_json(version));
            let lists = json!({
                "interfaces": self.interfaces.iter().map(to_object).collect::<Vec<_>>(),
                "ips": addresses.collect::<Vec<_>>(),
                "routes": self.routes.iter().map(to_object).collect::<Vec<_>>(),
            });
            result.extend(to_object(&lists));
        }
        if version < Version::V1_0_0 || !self.dns.is_empty() {
            result.insert("dns".into(), to_object(&self.dns).into());
        }
        Ok(result)
    }

    /// Before 0.3.0: one address of each family at most, and no interfaces.
    fn put_by_family(&self, result: &mut Object, version: Version) -> Result<(), Error> {
        if self.addresses.is_empty() {
            let refusal = format!("a result of version {version} needs an address");
            return Err(Error::incompatible_version(refusal));
        }
        for (key, is_ipv4) in [("ip4", true), ("ip6", false)] {
            let mut all = self.addresses.iter();
            if let Some(first) = all.find(|one| one.address.is_ipv4() == is_ipv4) {
                let routes =
                    self.routes.iter().filter(|route| route.destination.is_ipv4() == is_ipv4);
                // Only destination and gateway.
                let routes = routes
                    .map(|route| Route { gateway: route.gateway, ..Route::to(route.destination) });
                let of_family = json!({
                    "ip": first.address.to_string(),
                    "gateway": first.gateway,
                    "routes": routes.map(|route| to_object(&route)).collect::<Vec<_>>(),
                });
                result.insert(key.into(), to_object(&of_family).into());
            }
        }
        Ok(())
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

    fn to_json(&self, version: Version) -> Object {
        let mut entry = to_object(self);
        if version < Version::V1_0_0 {
            let family = if self.address.is_ipv4() { "4" } else { "6" };
            entry.insert("version".into(), family.into());
        }
        entry
    }
}

impl Route {
    pub fn to(destination: IpNetwork) -> Self {
        let (mtu, advmss, priority, table, scope) = (None, None, None, None, None);
        Self { destination, gateway: None, mtu, advmss, priority, table, scope }
    }

    /// Reads an entry of `routes`; `dst` must be there, with a prefix length.
    pub fn parse(route: &Object) -> Result<Self, Error> {
        let wrong = |what: &str, text: &str, wanted: &str| {
            let text = excerpt::quoted(text);
            Error::invalid_config(format!("the {what} {text} of a route is not {wanted}"))
        };
        let written = json::text(route, "dst")?.unwrap_or_default();
        let destination = written.contains('/').then(|| written.parse().ok()).flatten();
        let destination = destination.ok_or_else(|| wrong("dst", written, "a network"))?;
        let gateway = json::filled_text(route, "gw")?;
        let gateway = gateway.map(|text| text.parse().map_err(|_| wrong("gw", text, "an address")));
        Ok(Self {
            gateway: gateway.transpose()?,
            mtu: json::number(route, "mtu")?,
            advmss: json::number(route, "advmss")?,
            priority: json::number(route, "priority")?,
            table: json::number(route, "table")?,
            scope: json::number(route, "scope")?,
            ..Self::to(destination)
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

impl ErrorReport {
    pub fn to_json(&self) -> String {
        let Error { code, msg, details } = &self.error;
        let (msg, details) = (excerpt::answer(msg), excerpt::answer(details));
        let mut report = json!({ "cniVersion": self.version.as_str(), "code": code, "msg": msg });
        if let (Some(object), false) = (report.as_object_mut(), details.is_empty()) {
            object.insert("details".to_owned(), details.into());
        }
        format!("{report}\n")
    }
}

impl From<Error> for ErrorReport {
    fn from(error: Error) -> Self {
        Self { version: Version::V1_1_0, error }
    }
}

/// As configs and results write it: a field that is empty or not set is absent.
pub(crate) fn to_object(value: &impl Serialize) -> Object {
    let is_set = |value: &Value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => true,
    };
    match serde_json::to_value(value) {
        Ok(Value::Object(object)) => {
            object.into_iter().filter(|(_, value)| is_set(value)).collect()
        }
        // Structs alone are given, which become objects.
        _ => Object::new(),
    }
}

fn as_text<S: Serializer>(network: &IpNetwork, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(network)
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
