//! Address checks: overlaps with the pod network, bridges of another subnet, and the size of the
//! kernel's neighbour tables.

use super::facts::{Host, Needs};
use super::{DropIn, Finding, Level, firewall};
use crate::model::node::{FormerBridge, InterfaceAddress, Overlap, Overlapped, former_bridges};
use crate::model::prefix::{Family, Prefix};

/// Neighbours other than the peers, such as pods of this node.
const OTHERS: usize = 256;

/// Reports pod networks that overlap addresses of hosts or services.
pub(super) fn overlaps(needs: &Needs, host: &Host) -> Vec<Finding> {
    let link = needs.underlay.as_ref().and_then(|link| host.link(link));
    let prefixes = link.into_iter().flat_map(|link| {
        let prefix = |it: &InterfaceAddress| Prefix::holding(it.address, it.prefix_len);
        link.addresses.iter().filter_map(prefix).map(move |prefix| (&link.name, prefix))
    });
    let prefixes: Vec<_> = prefixes.collect();
    let finding = |overlap: Overlap| {
        let place = match &overlap.with {
            Overlapped::Underlay(link, _) => format!("link {link}"),
            Overlapped::Service(service) => format!("service {service}"),
        };
        Finding {
            what: overlap.to_string(),
            why: "pods cannot reach hosts or services with the same addresses".to_owned(),
            fix: "choose a Network that overlaps neither, before pods are created".to_owned(),
            ..Finding::of(Level::Warning, "network-overlap", place)
        }
    };
    let overlaps = Overlap::of(needs.networks.iter().copied(), &prefixes, host.service);
    overlaps.into_iter().map(finding).collect()
}

/// Reports bridges whose pods have addresses of a subnet that this node does not have.
pub(super) fn bridges(needs: &Needs, host: &Host) -> Vec<Finding> {
    let former = former_bridges(&host.links, &needs.networks, &needs.subnets);
    let finding = |bridge: FormerBridge| Finding {
        what: bridge.to_string(),
        why: "its pods are unreachable, and new pods fail".to_owned(),
        fix: format!(
            "drain the node (kubectl drain), then ip link delete {}: the next pod recreates it",
            bridge.link
        ),
        ..Finding::of(Level::Warning, "bridge-of-another-subnet", format!("link {}", bridge.link))
    };
    former.into_iter().map(finding).collect()
}

/// The values that the drop-in sets, from the first threshold to the third.
const THRESHOLDS: [usize; 3] = [8192, 32768, 65536];

/// Reports neighbour tables that are too small for all peers.
pub(super) fn neighbours(needs: &Needs, host: &Host) -> Vec<Finding> {
    let families = needs.neighbours.iter();
    families.filter_map(|(family, peers)| neighbour_table_small(*family, *peers, host)).collect()
}

/// The sysctls of the table's limits. Only the first network namespace of a host has them.
pub(crate) fn neighbour_sysctls(family: Family) -> [String; 3] {
    let family = family.to_string().to_lowercase();
    [1, 2, 3].map(|number| format!("net/{family}/neigh/default/gc_thresh{number}"))
}

/// `peers` are those on the link: permanent entries of peers behind the tunnel do not count.
fn neighbour_table_small(family: Family, peers: usize, host: &Host) -> Option<Finding> {
    let [_, soft, hard] = neighbour_sysctls(family);
    let [_, soft_value, hard_value] = THRESHOLDS;
    let exceeded = |name: &str| host.number(name).filter(|limit| *limit < peers + OTHERS);
    let (level, place, value, why) = if exceeded(&hard).is_some() {
        let why = "above this limit, packets to further neighbours are dropped";
        (Level::Warning, hard, hard_value, why)
    } else {
        let why = "above this limit, the kernel removes and resolves neighbours continuously";
        (Level::Note, soft, soft_value, why)
    };
    let limit = exceeded(&place)?;
    let set = |(name, value): (String, usize)| format!("{name} = {value}");
    Some(Finding {
        what: format!(
            "the {family} neighbour table is limited to {limit} entries, and {peers} peers are on the link"
        ),
        fix: format!("sysctl -w {place}={value}"),
        why: why.to_owned(),
        drop_in: Some(DropIn::new(
            firewall::SYSCTLS,
            neighbour_sysctls(family).into_iter().zip(THRESHOLDS).map(set),
        )),
        ..Finding::of(level, "neighbour-table-small", place)
    })
}
