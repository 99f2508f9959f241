//! Whether the pods of this node have addresses of the subnet that it has.

use super::facts::{Host, Needs};
use super::{Finding, Level};
use crate::model::node::{FormerBridge, former_bridges};

pub(super) fn findings(needs: &Needs, host: &Host) -> Vec<Finding> {
    let former = former_bridges(&host.links, &needs.networks, &needs.subnets);
    former.into_iter().map(finding).collect()
}

fn finding(FormerBridge { link, subnet }: FormerBridge) -> Finding {
    Finding {
        id: "bridge-of-another-subnet",
        level: Level::Warning,
        what: format!("bridge {link} is of subnet {subnet}, which this node no longer has"),
        place: format!("link {link}"),
        why: "its pods are unreachable, and new pods fail".to_owned(),
        cure: format!(
            "drain the node (kubectl drain), then ip link delete {link}: the next pod makes it again"
        ),
        drop_in: None,
    }
}
