//! The values of leases in etcd, byte for byte as flannel writes them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::Serialize;

use super::key;
use crate::excerpt;
use crate::model::json::Fields;
use crate::model::lease::{
    BackendType, Endpoint, Lease, LeaseAttributes, LeaseId, Malformed, Record,
};
use crate::model::prefix::{Family, Prefix};
use crate::store::backend_data::{self, BackendData};

/// No lease needs more, in bytes.
pub(super) const LONGEST: usize = 64 * 1024;

/// What etcd says of a key beside its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The revision that created the key.
    pub created: u64,
    /// The etcd lease that the key hangs on.
    pub grant: Option<i64>,
}

/// The order of the fields is flannel's.
#[derive(Serialize)]
struct Value<'a> {
    #[serde(rename = "PublicIP")]
    public_ip: Ipv4Addr,
    #[serde(rename = "PublicIPv6")]
    public_ipv6: Option<Ipv6Addr>,
    #[serde(rename = "BackendType", skip_serializing_if = "str::is_empty")]
    backend_type: &'a str,
    #[serde(rename = "BackendData", skip_serializing_if = "Option::is_none")]
    backend_data: Option<BackendData>,
    #[serde(rename = "BackendV6Data", skip_serializing_if = "Option::is_none")]
    backend_v6_data: Option<BackendData>,
}

/// Where the value keeps what belongs to one address family.
struct Keys {
    public_ip: &'static str,
    backend_data: &'static str,
}

impl Keys {
    const fn of(family: Family) -> Self {
        match family {
            Family::V4 => Self { public_ip: "PublicIP", backend_data: "BackendData" },
            Family::V6 => Self { public_ip: "PublicIPv6", backend_data: "BackendV6Data" },
        }
    }
}

/// The value that publishes `attributes`.
pub fn encode(attributes: &LeaseAttributes) -> Vec<u8> {
    let mut value = Value {
        public_ip: Ipv4Addr::UNSPECIFIED,
        public_ipv6: None,
        backend_type: attributes.backend.as_str(),
        backend_data: None,
        backend_v6_data: None,
    };
    for endpoint in &attributes.endpoints {
        let data = endpoint.vtep.map(BackendData::from);
        match endpoint.public_ip {
            IpAddr::V4(ip) => (value.public_ip, value.backend_data) = (ip, data),
            IpAddr::V6(ip) => (value.public_ipv6, value.backend_v6_data) = (Some(ip), data),
        }
    }
    // Numbers, addresses and texts always have a JSON form.
    serde_json::to_vec(&value).unwrap_or_default()
}

/// The record under `id`, decoded for good.
pub fn decode(id: LeaseId, value: &[u8], origin: Origin) -> Record {
    let endpoints = key::decode(&id)
        .ok_or_else(|| Malformed("its key names no subnet like 10.5.52.0-24".to_owned()))
        .and_then(|subnets| endpoints(&subnets, value));
    let lease = endpoints.map(|endpoints| Lease {
        id: id.clone(),
        endpoints,
        created: origin.created,
        grant: origin.grant,
    });
    Record { id, lease }
}

fn endpoints(subnets: &[Prefix], value: &[u8]) -> Result<Vec<Endpoint>, Malformed> {
    if value.len() > LONGEST {
        let length = value.len();
        return Err(Malformed(format!(
            "its value has {length} bytes, but at most {LONGEST} are read"
        )));
    }
    let fields = Fields::parse(value)
        .map_err(|error| Malformed(format!("its value is no JSON object: {error}")))?;
    let backend = fields.str("BackendType")?.unwrap_or_default();
    let backend = BackendType::from(backend.to_lowercase().as_str());
    let endpoint = |subnet: &Prefix| {
        let keys = Keys::of(subnet.family());
        Ok(Endpoint {
            subnet: *subnet,
            public_ip: public_ip(&fields, &keys, subnet.family())?,
            backend: backend.clone(),
            vtep: backend_data::vtep(&backend, subnet.family(), || {
                Ok(fields.object(keys.backend_data)?)
            })?,
        })
    };
    let mut endpoints = subnets.iter().map(endpoint).collect::<Result<Vec<_>, Malformed>>()?;
    // There are thousands of these, of one endpoint each.
    endpoints.shrink_to_fit();
    Ok(endpoints)
}

fn public_ip(fields: &Fields, keys: &Keys, family: Family) -> Result<IpAddr, Malformed> {
    let text = fields.str(keys.public_ip)?.unwrap_or_default();
    let given = match family {
        Family::V4 => Ipv4Addr::from_str(text).map(IpAddr::from),
        Family::V6 => Ipv6Addr::from_str(text).map(IpAddr::from),
    };
    match given {
        Ok(address) if !address.is_unspecified() => Ok(address),
        Err(_) if !text.is_empty() => Err(Malformed(format!(
            "{} is {}, but must be an {family} address",
            keys.public_ip,
            excerpt::quoted(text)
        ))),
        Ok(_) | Err(_) => Err(Malformed(format!(
            "its key names an {family} subnet, but {} is missing",
            keys.public_ip
        ))),
    }
}

#[cfg(test)]
mod tests;
