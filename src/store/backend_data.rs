//! What a lease says of its backend, as flannel writes it in every store: where the tunnel ends.

use std::net::IpAddr;

use serde::Serialize;

use crate::mac::MacAddr;
use crate::model::json::{Fields, WrongType};
use crate::model::lease::{BackendType, Malformed, Vtep};
use crate::model::prefix::Family;

/// The order of the fields is flannel's.
#[derive(Serialize)]
pub(in crate::store) struct BackendData {
    #[serde(rename = "VNI", skip_serializing_if = "Option::is_none")]
    vni: Option<u32>,
    #[serde(rename = "VtepMAC")]
    mac: MacAddr,
    /// Flannel has no such field, and reads past it.
    #[serde(rename = "Source", skip_serializing_if = "Option::is_none")]
    source: Option<IpAddr>,
}

impl From<Vtep> for BackendData {
    fn from(Vtep { vni, mac, source }: Vtep) -> Self {
        Self { vni, mac, source }
    }
}

/// What `read` says of the tunnel; what other backends keep in their data is theirs.
///
/// # Errors
/// A peer on VXLAN says something that is no end of a tunnel.
pub(in crate::store) fn vtep(
    backend: &BackendType,
    family: Family,
    read: impl FnOnce() -> Result<Option<Fields>, Malformed>,
) -> Result<Option<Vtep>, Malformed> {
    match backend {
        BackendType::Vxlan => read()?.map_or(Ok(None), |data| published(&data, family)),
        // Flannel leaves the data of host-gw alone: whatever may stand there is no fault.
        BackendType::HostGw => {
            let data = read().ok().flatten();
            Ok(data.and_then(|data| published(&data, family).ok().flatten()))
        }
        BackendType::Other(_) => Ok(None),
    }
}

fn published(data: &Fields, family: Family) -> Result<Option<Vtep>, Malformed> {
    let Some(mac) = data.str("VtepMAC")? else { return Ok(None) };
    let mac = mac.parse().map_err(|error| Malformed(format!("VtepMAC: {error}")))?;
    let source = data.str("Source").ok().flatten().and_then(|text| text.parse().ok());
    let source = source.filter(|address| Family::of(*address) == family);
    Ok(Some(Vtep { vni: data.u32("VNI")?, mac, source }))
}

impl From<WrongType> for Malformed {
    fn from(error: WrongType) -> Self {
        Self(error.to_string())
    }
}
