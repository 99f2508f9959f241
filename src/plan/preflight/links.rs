//! Link checks: kernel support for the tunnel device and its table, and MTUs.

use super::facts::{Host, Module, Needs};
use super::{DropIn, Finding, Level};
use crate::model::entry::{LinkName, POD_BRIDGE};
use crate::model::prefix::Family;

/// The minimum MTU of IPv6, in bytes.
const MIN_IPV6_MTU: u32 = 1280;

/// Reports missing kernel modules for the tunnel device and the table that protects it.
pub(super) fn modules(needs: &Needs, host: &Host) -> Vec<Finding> {
    let device = needs.tunnels.first().map(|(device, _)| device);
    let missing = device.filter(|_| host.vxlan == Module::Missing).map(missing);
    let unguarded = device.filter(|_| host.nftables == Module::Missing).map(unguarded);
    missing.into_iter().chain(unguarded).collect()
}

fn missing(device: &LinkName) -> Finding {
    Finding {
        id: "vxlan-missing",
        level: Level::Warning,
        what: "this kernel has no VXLAN".to_owned(),
        place: "module vxlan".to_owned(),
        why: format!("{device} cannot be made: peers behind the tunnel are not reached"),
        fix: "install the package of the kernel's further modules (linux-modules-extra, \
               kernel-modules), then modprobe vxlan; or use host-gw"
            .to_owned(),
        drop_in: Some(DropIn {
            file: "modules-load.d/tweed.conf",
            lines: vec!["vxlan".to_owned()],
        }),
    }
}

fn unguarded(device: &LinkName) -> Finding {
    let modules = ["nf_tables", "nft_fib_ipv4", "nft_fib_ipv6"];
    Finding {
        id: "tunnel-unguarded",
        level: Level::Warning,
        what: "this kernel has no nftables".to_owned(),
        place: "module nf_tables".to_owned(),
        why: format!(
            "whoever reaches the port of {device} can send to pods; nor can the node masquerade \
             by nftables"
        ),
        fix: format!("modprobe -a {}", modules.join(" ")),
        drop_in: Some(DropIn {
            file: "modules-load.d/tweed.conf",
            lines: modules.map(str::to_owned).into(),
        }),
    }
}

/// Reports links whose MTU is too small for the packets that they carry, and bridges with another
/// MTU.
pub(super) fn mtus(needs: &Needs, host: &Host) -> Vec<Finding> {
    let Some(mtu) = needs.pod_mtu else { return Vec::new() };
    let below = needs.underlay.iter().filter_map(|link| underlay(link, mtu, needs, host));
    let tunnels = needs.tunnels.iter().filter_map(|(link, _)| tunnel(link, mtu, host));
    let pods = [least(mtu, needs), bridge(mtu, host)].into_iter().flatten();
    below.chain(tunnels).chain(pods).collect()
}

/// With several tunnels, the largest header counts.
fn underlay(link: &LinkName, mtu: u32, needs: &Needs, host: &Host) -> Option<Finding> {
    let headers = needs.tunnels.iter().map(|(_, headers)| *headers).max().unwrap_or(0);
    let carries = host.link(link)?.mtu;
    let wanted = mtu + headers;
    (carries < wanted).then(|| Finding {
        id: "mtu-too-large",
        level: Level::Warning,
        what: format!("{link} carries {carries} bytes, and packets of pods take up to {wanted}"),
        place: format!("link {link}"),
        why: "large packets are lost or cut into pieces: connections hang".to_owned(),
        fix: format!(
            "remove Backend.MTU or set it to {carries}, or ip link set {link} mtu {wanted}"
        ),
        drop_in: None,
    })
}

fn tunnel(link: &LinkName, mtu: u32, host: &Host) -> Option<Finding> {
    let carries = host.link(link)?.mtu;
    (carries < mtu).then(|| Finding {
        id: "mtu-too-large",
        level: Level::Warning,
        what: format!("{link} carries {carries} bytes, and pods send up to {mtu}"),
        place: format!("link {link}"),
        why: "large packets are lost: connections hang".to_owned(),
        fix: format!("look who changes it; tweedd sets it, or ip link set {link} mtu {mtu}"),
        drop_in: None,
    })
}

fn least(mtu: u32, needs: &Needs) -> Option<Finding> {
    let speaks_v6 = needs.families.contains(&Family::V6);
    (speaks_v6 && mtu < MIN_IPV6_MTU).then(|| Finding {
        id: "mtu-too-small",
        level: Level::Warning,
        what: format!("pods may send {mtu} bytes, less than the {MIN_IPV6_MTU} that IPv6 needs"),
        place: needs.underlay.as_ref().map_or_else(String::new, |link| format!("link {link}")),
        why: "the kernel takes IPv6 away from links that are so narrow".to_owned(),
        fix: "give the link between the nodes a larger MTU, or use host-gw".to_owned(),
        drop_in: None,
    })
}

fn bridge(mtu: u32, host: &Host) -> Option<Finding> {
    let carries = host.link(&LinkName::new(POD_BRIDGE))?.mtu;
    (carries > mtu).then(|| Finding {
        id: "pods-of-another-mtu",
        level: Level::Note,
        what: format!("{POD_BRIDGE} carries {carries} bytes, and new pods send up to {mtu}"),
        place: format!("link {POD_BRIDGE}"),
        why:
            "it is older than the MTU, and so may pods be: their large packets depend on path MTU \
              discovery"
                .to_owned(),
        fix: "make pods anew that tweedctl migrate status names".to_owned(),
        drop_in: None,
    })
}
