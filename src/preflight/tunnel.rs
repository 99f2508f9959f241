//! Whether the kernel can make the tunnel's device.

use super::facts::{Host, Module, Needs};
use super::{DropIn, Finding, Level};

pub(super) fn findings(needs: &Needs, host: &Host) -> Vec<Finding> {
    let wanted = needs.tunnels.first().filter(|_| host.vxlan == Module::Missing);
    let finding = wanted.map(|(device, _)| Finding {
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
    });
    finding.into_iter().collect()
}
