//! Whether the pods of this node have addresses of the subnet that it has.

use super::facts::{Host, Needs};
use super::{Finding, Level};
use crate::model::node::{FormerBridge, former_bridges};

pub(super) fn findings(needs: &Needs, host: &Host) -> Vec<Finding> {
    let former = former_bridges(&host.links, &needs.networks, &needs.subnets);
    former.iter().map(finding).collect()
}

fn finding(bridge: &FormerBridge) -> Finding {
    let link = &bridge.link;
    Finding {
        id: "bridge-of-another-subnet",
        level: Level::Warning,
        what: bridge.to_string(),
        place: format!("link {link}"),
        why: "its pods are unreachable, and new pods fail".to_owned(),
        cure: format!(
            "drain the node (kubectl drain), then ip link delete {link}: the next pod makes it again"
        ),
        drop_in: None,
    }
}
