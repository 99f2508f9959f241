//! A route as CNI configs and results hold it.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::excerpt;
use crate::protocol::error::Error;
use crate::protocol::json::{self, Object};

/// What is `None` was not said.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Route {
    pub destination: IpNetwork,
    pub gateway: Option<IpAddr>,
    /// Bytes.
    pub mtu: Option<u32>,
    /// Bytes.
    pub advmss: Option<u32>,
    pub priority: Option<u32>,
    pub table: Option<u32>,
    pub scope: Option<u32>,
}

impl Route {
    pub fn to(destination: IpNetwork) -> Self {
        let (mtu, advmss, priority, table, scope) = (None, None, None, None, None);
        Self { destination, gateway: None, mtu, advmss, priority, table, scope }
    }

    /// Reads an entry of `routes`; `dst` must be there.
    pub fn parse(route: &Object) -> Result<Self, Error> {
        let destination = json::text(route, "dst")?.unwrap_or_default();
        let destination = network(destination).ok_or_else(|| {
            let destination = excerpt::quoted(destination);
            Error::invalid_config(format!("the dst {destination} of a route is not a network"))
        })?;
        Ok(Self {
            gateway: json::text(route, "gw")?
                .filter(|gw| !gw.is_empty())
                .map(gateway)
                .transpose()?,
            mtu: json::number(route, "mtu")?,
            advmss: json::number(route, "advmss")?,
            priority: json::number(route, "priority")?,
            table: json::number(route, "table")?,
            scope: json::number(route, "scope")?,
            ..Self::to(destination)
        })
    }
}

/// With a prefix length, which a bare address lacks.
fn network(text: &str) -> Option<IpNetwork> {
    text.contains('/').then(|| text.parse().ok()).flatten()
}

fn gateway(text: &str) -> Result<IpAddr, Error> {
    let wrong = |_| {
        let text = excerpt::quoted(text);
        Error::invalid_config(format!("the gw {text} of a route is not an address"))
    };
    text.parse().map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Route, Error> {
        Route::parse(&serde_json::from_str(json).unwrap())
    }

    #[test]
    fn what_is_not_said_is_none() {
        let route = parse(r#"{"dst": "10.244.0.0/16"}"#).unwrap();
        assert_eq!(route, Route::to("10.244.0.0/16".parse().unwrap()));
        let route = parse(r#"{"Dst": "fd00::/48", "GW": "fd00::1", "priority": 7}"#).unwrap();
        assert_eq!(route.gateway, Some("fd00::1".parse().unwrap()));
        assert_eq!(route.priority, Some(7));
    }

    #[test]
    fn a_route_without_a_network_is_refused() {
        for json in ["{}", r#"{"dst": "10.0.0.1"}"#, r#"{"dst": "here/24"}"#] {
            assert!(parse(json).is_err(), "{json}");
        }
        assert!(parse(r#"{"dst": "10.0.0.0/8", "gw": "there"}"#).is_err());
    }
}
