//! Whether the kernel can make the tunnel's device, and guard it.

use super::facts::{Host, Module, Needs};
use super::{DropIn, Finding, Level};
use crate::model::entry::LinkName;

pub(super) fn findings(needs: &Needs, host: &Host) -> Vec<Finding> {
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
        cure: "install the package of the kernel's further modules (linux-modules-extra, \
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
        cure: format!("modprobe -a {}", modules.join(" ")),
        drop_in: Some(DropIn {
            file: "modules-load.d/tweed.conf",
            lines: modules.map(str::to_owned).into(),
        }),
    }
}
