//! Changes of networkd and udev to links and routes that they did not create.

use super::facts::{Host, Needs};
use super::unit::{Device, Unit};
use super::{DropIn, Finding, Level};
use crate::model::entry::POD_BRIDGE;

const FOREIGN: [&str; 2] = ["ManageForeignRoutes", "ManageForeignNextHops"];
/// The version of systemd that introduced `ManageForeignNextHops`. Older ones ignore it.
const KEEPS_NEXTHOPS: u32 = 256;

pub(super) fn findings(needs: &Needs, host: &Host) -> Vec<Finding> {
    let systemd = &host.systemd;
    let networkd = systemd.networkd.as_ref();
    let foreign = networkd.and_then(|networkd| foreign(networkd, systemd.version));
    let nexthops = networkd.filter(|_| needs.nexthops);
    let nexthops = nexthops.and_then(|networkd| foreign_nexthops(networkd, systemd.version));
    let devices = tunnels(needs).chain([Device { name: POD_BRIDGE, kind: "bridge" }]);
    let managed = devices.filter_map(|device| managed(device, &systemd.networks));
    let renamed = tunnels(needs).filter_map(|device| readdressed(device, &systemd.links));
    foreign.into_iter().chain(nexthops).chain(managed).chain(renamed).collect()
}

fn tunnels(needs: &Needs) -> impl Iterator<Item = Device<'_>> {
    needs.tunnels.iter().map(|link| Device { name: link.as_str(), kind: "vxlan" })
}

fn foreign(networkd: &Unit, systemd: Option<u32>) -> Option<Finding> {
    let [routes, nexthops] = FOREIGN;
    let is_too_old = systemd.is_some_and(|version| version < KEEPS_NEXTHOPS);
    let keys = if is_too_old { vec![routes] } else { vec![routes, nexthops] };
    let on: Vec<&str> = keys.into_iter().filter(|key| !networkd.is_off("Network", key)).collect();
    let verb = if on.len() == 1 { "is" } else { "are" };
    let named = on.join(" and ");
    (!on.is_empty()).then(|| Finding {
        what: format!("networkd removes entries that it did not create: {named} {verb} not off"),
        why: "whenever it starts or brings a link up, it removes routes to peers; tweedd restores \
              them, but packets are lost"
            .to_owned(),
        fix: "install the file below and restart systemd-networkd".to_owned(),
        drop_in: Some(DropIn::new(
            "systemd/networkd.conf.d/tweed.conf",
            FOREIGN.map(|key| format!("{key}=no")),
        )),
        ..Finding::of(Level::Warning, "networkd-foreign-routes", networkd.path.clone())
    })
}

/// No setting of a networkd that is too old prevents this.
fn foreign_nexthops(networkd: &Unit, systemd: Option<u32>) -> Option<Finding> {
    let (level, what) = match systemd {
        Some(KEEPS_NEXTHOPS..) => return None,
        Some(version) => (
            Level::Warning,
            format!("networkd of systemd {version} removes nexthop objects that it did not create"),
        ),
        None => (
            Level::Unknown,
            "networkd may remove nexthop objects that it did not create: \
             the version of systemd is not known"
                .to_owned(),
        ),
    };
    Some(Finding {
        what,
        why: format!(
            "before systemd {KEEPS_NEXTHOPS}, it ignores ManageForeignNextHops=no: whenever it \
             starts or brings a link up, it removes these objects, and the kernel removes their \
             routes with them; tweedd restores them, but packets are lost"
        ),
        fix: "start tweedd with FLANNELD_NEXTHOP_OBJECTS=false (--nexthop-objects=false), so that \
              it uses plain routes"
            .to_owned(),
        ..Finding::of(level, "networkd-foreign-nexthops", networkd.path.clone())
    })
}

/// networkd uses only the first file that matches a link.
fn managed(device: Device<'_>, networks: &[Unit]) -> Option<Finding> {
    let first = networks.iter().find(|unit| unit.fits(device))?;
    (!first.is_on("Link", "Unmanaged")).then(|| Finding {
        what: format!("networkd {} {}", action(first), device.name),
        why: "it removes addresses and routes there that it did not create".to_owned(),
        fix: format!(
            "install the file below, then networkctl reload; or narrow [Match] in {}",
            first.path
        ),
        drop_in: Some(DropIn::new(
            "systemd/network/10-tweed.network",
            ["Name=flannel.* flannel-v6.* cni0", "Unmanaged=yes"],
        )),
        ..Finding::of(Level::Warning, "networkd-manages-link", first.path.clone())
    })
}

fn action(unit: &Unit) -> &'static str {
    let requests = unit.get("Network", "DHCP").is_some() && !unit.is_off("Network", "DHCP");
    if requests { "requests an address by DHCP on" } else { "manages" }
}

fn readdressed(device: Device<'_>, links: &[Unit]) -> Option<Finding> {
    let first = links.iter().find(|unit| unit.fits(device))?;
    let policy = first.get("Link", "MACAddressPolicy").filter(|policy| *policy != "none")?;
    Some(Finding {
        what: format!("udev gives {} another MAC address (MACAddressPolicy={policy})", device.name),
        why: "a device that tweedd created keeps its address, which was set at creation; one that \
              flanneld created loses the address that peers know"
            .to_owned(),
        fix: "install the file below and restart systemd-udevd".to_owned(),
        drop_in: Some(DropIn::new(
            "systemd/network/10-tweed.link",
            ["OriginalName=flannel.* flannel-v6.*", "MACAddressPolicy=none"],
        )),
        ..Finding::of(Level::Note, "udev-mac-policy", first.path.clone())
    })
}
