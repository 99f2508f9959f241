//! Whether the host passes packets on at all, and those of bridges through iptables.

use super::facts::{Host, Needs};
use super::{DropIn, Finding, Level};
use crate::model::prefix::Family;

pub(crate) const SYSCTLS: &str = "sysctl.d/90-tweed.conf";
pub(crate) const BRIDGE: &str = "net/bridge/bridge-nf-call-iptables";
/// The chain that kube-proxy has in its iptables mode.
const SERVICES: &str = "KUBE-SERVICES";

pub(crate) fn findings(needs: &Needs, host: &Host) -> Vec<Finding> {
    let off = needs.families.iter().filter(|family| host.number(sysctl(**family)) == Some(0));
    off.map(|family| forwarding(*family)).chain(bridges(host)).collect()
}

pub(crate) const fn sysctl(family: Family) -> &'static str {
    match family {
        Family::V4 => "net/ipv4/ip_forward",
        Family::V6 => "net/ipv6/conf/all/forwarding",
    }
}

fn forwarding(family: Family) -> Finding {
    let sysctl = sysctl(family);
    Finding {
        id: "forwarding-off",
        level: Level::Warning,
        what: format!("this host does not forward {family}"),
        place: sysctl.to_owned(),
        why: "packets between pods of different nodes are dropped".to_owned(),
        cure: format!("sysctl -w {sysctl}=1"),
        drop_in: Some(DropIn { file: SYSCTLS, lines: vec![format!("{sysctl} = 1")] }),
    }
}

fn bridges(host: &Host) -> Option<Finding> {
    let services = host.chains.iter().find(|chain| chain.name == SERVICES)?;
    let passed = host.number(BRIDGE) == Some(1);
    (!passed).then(|| Finding {
        id: "bridge-netfilter-off",
        level: Level::Note,
        what: "iptables does not see what pods of this node send each other".to_owned(),
        place: BRIDGE.to_owned(),
        why: format!(
            "services are translated in table {}: a pod that is behind its own service, or beside \
             who asks it, may get answers from the wrong address",
            services.table
        ),
        cure: format!("modprobe br_netfilter && sysctl -w {BRIDGE}=1"),
        drop_in: Some(DropIn {
            file: "modules-load.d/tweed.conf",
            lines: vec!["br_netfilter".to_owned()],
        }),
    })
}
