//! Link checks: the link towards the peers, kernel support for the tunnel device and its table, and
//! MTUs.

use super::facts::{Host, Needs};
use super::{DropIn, Finding, Level};
use crate::model::entry::{LinkName, POD_BRIDGE};
use crate::model::prefix::Family;
use crate::plan::backend;

pub(super) const MODULES: &str = "modules-load.d/tweed.conf";
const MIN_IPV6_MTU: u32 = 1280;

/// Reports that no packet reaches a peer, because the link towards the peers carries none.
pub(super) fn underlay_down(needs: &Needs, host: &Host) -> Vec<Finding> {
    let down = needs.underlay.iter().filter_map(|name| match host.link(name) {
        Some(link) if link.up => None,
        Some(_) => Some((name, format!("{name}, the link towards the peers, is down"))),
        // Without any link, the links could not be read.
        None if host.links.is_empty() => None,
        None => Some((name, format!("there is no link {name}, which leads to the peers"))),
    });
    let finding = |(link, what): (&LinkName, String)| Finding {
        what,
        why:
            "it is turned off or has no carrier: no packet reaches a peer, nor does any of a peer \
              reach this node"
                .to_owned(),
        fix: format!(
            "ip link set {link} up; if ip link show {link} contains NO-CARRIER, check the cable and \
             the port of the switch"
        ),
        ..Finding::of(Level::Warning, "underlay-down", format!("link {link}"))
    };
    down.map(finding).collect()
}

/// Reports missing kernel modules for the tunnel device and the table that protects it.
pub(super) fn modules(needs: &Needs, host: &Host) -> Vec<Finding> {
    let device = needs.tunnels.first();
    let missing = device.filter(|_| host.lacks_vxlan).map(missing);
    let unguarded = device.filter(|_| host.lacks_nftables).map(unguarded);
    missing.into_iter().chain(unguarded).collect()
}

fn missing(device: &LinkName) -> Finding {
    Finding {
        what: "this kernel does not support VXLAN".to_owned(),
        why: format!("{device} cannot be created: peers behind the tunnel are unreachable"),
        fix: "install the kernel's extra modules (linux-modules-extra, kernel-modules), then \
               modprobe vxlan; or use host-gw"
            .to_owned(),
        drop_in: Some(DropIn::new(MODULES, ["vxlan"])),
        ..Finding::of(Level::Warning, "vxlan-missing", "module vxlan")
    }
}

fn unguarded(device: &LinkName) -> Finding {
    let modules = ["nf_tables", "nft_fib_ipv4", "nft_fib_ipv6"];
    Finding {
        what: "this kernel does not support nftables".to_owned(),
        why: format!(
            "any host that reaches the port of {device} can send to pods, and the node cannot \
             masquerade with nftables"
        ),
        fix: format!("modprobe -a {}", modules.join(" ")),
        drop_in: Some(DropIn::new(MODULES, modules)),
        ..Finding::of(Level::Warning, "tunnel-unguarded", "module nf_tables")
    }
}

/// Reports links whose MTU is too small for the packets that they carry, and bridges with another
/// MTU.
pub(super) fn mtus(needs: &Needs, host: &Host) -> Vec<Finding> {
    let Some(mtu) = needs.pod_mtu else { return Vec::new() };
    let below = needs.underlay.iter().filter_map(|link| underlay(link, mtu, needs, host));
    let tunnels = needs.tunnels.iter().filter_map(|link| tunnel(link, mtu, host));
    let pods = [least(mtu, needs), bridge(mtu, host)].into_iter().flatten();
    below.chain(tunnels).chain(pods).collect()
}

/// With several tunnels, the largest header counts.
fn underlay(link: &LinkName, mtu: u32, needs: &Needs, host: &Host) -> Option<Finding> {
    let is_used = |family: &Family| needs.tunnels.iter().any(|it| it.is_tunnel_of(*family));
    let headers = Family::ALL.into_iter().filter(is_used).map(backend::overhead).max().unwrap_or(0);
    let carries = host.link(link)?.mtu;
    let wanted = mtu + headers;
    (carries < wanted).then(|| Finding {
        what: format!("{link} has MTU {carries}, but packets of pods need up to {wanted}"),
        why: "large packets are dropped or fragmented: connections hang".to_owned(),
        fix: format!(
            "remove Backend.MTU or set it to {carries}, or ip link set {link} mtu {wanted}"
        ),
        ..Finding::of(Level::Warning, "mtu-too-large", format!("link {link}"))
    })
}

fn tunnel(link: &LinkName, mtu: u32, host: &Host) -> Option<Finding> {
    let carries = host.link(link)?.mtu;
    (carries < mtu).then(|| Finding {
        what: format!("{link} has MTU {carries}, but pods send up to {mtu} bytes"),
        why: "large packets are dropped: connections hang".to_owned(),
        fix: format!(
            "find the program that changes it; tweedd restores it, or ip link set {link} mtu {mtu}"
        ),
        ..Finding::of(Level::Warning, "mtu-too-large", format!("link {link}"))
    })
}

fn least(mtu: u32, needs: &Needs) -> Option<Finding> {
    let speaks_v6 = needs.families.contains(&Family::V6);
    (speaks_v6 && mtu < MIN_IPV6_MTU).then(|| Finding {
        what: format!("pods may send {mtu} bytes, less than the {MIN_IPV6_MTU} that IPv6 needs"),
        why: "the kernel disables IPv6 on links with a smaller MTU".to_owned(),
        fix: "give the link between the nodes a larger MTU, or use host-gw".to_owned(),
        ..Finding::of(
            Level::Warning,
            "mtu-too-small",
            needs.underlay.as_ref().map_or_else(String::new, |link| format!("link {link}")),
        )
    })
}

fn bridge(mtu: u32, host: &Host) -> Option<Finding> {
    let carries = host.link(&LinkName::new(POD_BRIDGE))?.mtu;
    (carries > mtu).then(|| Finding {
        what: format!("{POD_BRIDGE} has MTU {carries}, but new pods send up to {mtu} bytes"),
        why: "pods that are older than the present MTU keep the larger one: their large packets \
              depend on path MTU discovery"
            .to_owned(),
        fix: "recreate the pods that tweedctl migrate status lists".to_owned(),
        ..Finding::of(Level::Note, "pods-of-another-mtu", format!("link {POD_BRIDGE}"))
    })
}
