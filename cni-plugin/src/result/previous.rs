//! The result of an earlier ADD, as the runtime gives it back.

use super::{Address, Interface, Outcome};
use crate::dns::Dns;
use crate::error::Error;
use crate::excerpt;
use crate::json::{self, Object};
use crate::route::Route;

impl Outcome {
    /// Reads a result of version 0.3.0 or later.
    ///
    /// # Errors
    /// A value has another type, or an address or a route is none.
    pub fn parse(result: &Object) -> Result<Self, Error> {
        let interfaces = json::objects(result, "interfaces")?.into_iter().map(interface);
        let addresses = json::objects(result, "ips")?.into_iter().map(address);
        let routes = json::objects(result, "routes")?.into_iter().map(Route::parse);
        Ok(Self {
            interfaces: interfaces.collect::<Result<_, _>>()?,
            addresses: addresses.collect::<Result<_, _>>()?,
            routes: routes.collect::<Result<_, _>>()?,
            dns: json::object(result, "dns")?.map(Dns::parse).transpose()?.unwrap_or_default(),
        })
    }
}

fn interface(entry: &Object) -> Result<Interface, Error> {
    let text = |key| {
        Ok::<_, Error>(json::text(entry, key)?.filter(|text| !text.is_empty()).map(str::to_owned))
    };
    Ok(Interface {
        name: text("name")?.unwrap_or_default(),
        mac: text("mac")?.unwrap_or_default(),
        sandbox: text("sandbox")?,
    })
}

fn address(entry: &Object) -> Result<Address, Error> {
    let wrong = |text: &str| {
        let text = excerpt::quoted(text);
        Error::invalid_config(format!("{text} in prevResult is no address"))
    };
    let written = json::text(entry, "address")?.unwrap_or_default();
    let gateway = json::text(entry, "gateway")?.filter(|text| !text.is_empty());
    Ok(Address {
        interface: json::number(entry, "interface")?.and_then(|place| usize::try_from(place).ok()),
        address: written.parse().map_err(|_| wrong(written))?,
        gateway: gateway.map(|text| text.parse().map_err(|_| wrong(text))).transpose()?,
    })
}
