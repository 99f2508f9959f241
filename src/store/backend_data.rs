//! Backend data in flannel's format, the same in all stores: public IPs and VTEPs.

use std::net::IpAddr;

use serde::Serialize;

use crate::excerpt;
use crate::mac::MacAddr;
use crate::model::config::BackendType;
use crate::model::json::{Fields, WrongType};
use crate::model::lease::{Malformed, PublishedBackend, Vtep};
use crate::model::prefix::Family;

/// The order of the fields is flannel's.
#[derive(Serialize)]
pub(super) struct BackendData {
    #[serde(rename = "VNI", skip_serializing_if = "Option::is_none")]
    vni: Option<u32>,
    #[serde(rename = "VtepMAC")]
    mac: MacAddr,
    /// Flannel ignores this field.
    #[serde(rename = "Source", skip_serializing_if = "Option::is_none")]
    source: Option<IpAddr>,
    /// Flannel ignores this field, too.
    #[serde(rename = "Mixed", skip_serializing_if = "std::ops::Not::not")]
    mixed: bool,
}

impl From<Vtep> for BackendData {
    fn from(Vtep { vni, mac, source, mixed }: Vtep) -> Self {
        Self { vni, mac, source, mixed }
    }
}

/// The VTEP in the data that `read` returns; the data of other backends is not read.
///
/// # Errors
/// A VXLAN peer publishes an invalid VTEP.
pub(super) fn vtep(
    backend: &PublishedBackend,
    family: Family,
    read: impl FnOnce() -> Result<Option<Fields>, Malformed>,
) -> Result<Option<Vtep>, Malformed> {
    match backend.supported() {
        Some(BackendType::Vxlan) => read()?.map_or(Ok(None), |data| published(&data, family)),
        // Flannel does not read the data of host-gw, so that invalid data is no error.
        Some(BackendType::HostGw) => {
            let data = read().ok().flatten();
            Ok(data.and_then(|data| published(&data, family).ok().flatten()))
        }
        None => Ok(None),
    }
}

fn published(data: &Fields, family: Family) -> Result<Option<Vtep>, Malformed> {
    let Some(mac) = data.str("VtepMAC")? else { return Ok(None) };
    let mac = mac.parse().map_err(|error| Malformed(format!("VtepMAC: {error}")))?;
    let source = data.str("Source").ok().flatten().and_then(|text| text.parse().ok());
    let source = source.filter(|address| Family::of(*address) == family);
    let mixed = data.bool("Mixed").ok().flatten().unwrap_or_default();
    Ok(Some(Vtep { vni: data.u32("VNI")?, mac, source, mixed }))
}

/// The address of `family` in `text`, the value of the field `name`.
pub(super) fn address(name: &str, text: &str, family: Family) -> Result<IpAddr, Malformed> {
    let address = text.parse().ok().filter(|address| Family::of(*address) == family);
    address.ok_or_else(|| {
        let text = excerpt::quoted(text);
        Malformed(format!("{name} is {text}, but must be an {family} address"))
    })
}

impl From<WrongType> for Malformed {
    fn from(error: WrongType) -> Self {
        Self(error.to_string())
    }
}
