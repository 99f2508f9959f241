//! Whether the kernel's table of neighbours has room for all peers.

use super::facts::{Host, Needs};
use super::{DropIn, Finding, Level, forwarding};
use crate::model::prefix::Family;

/// Of pods and others, beside the peers.
const OTHERS: usize = 256;
/// What the drop-in sets, from the first threshold to the third.
const ROOMY: [usize; 3] = [8192, 32768, 65536];

pub(crate) fn findings(needs: &Needs, host: &Host) -> Vec<Finding> {
    let families = needs.neighbours.iter();
    families.filter_map(|(family, peers)| finding(*family, *peers, host)).collect()
}

/// A network namespace that is not the host's first has none of them.
pub(crate) fn sysctls(family: Family) -> [String; 3] {
    let family = match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    };
    [1, 2, 3].map(|number| format!("net/{family}/neigh/default/gc_thresh{number}"))
}

/// Peers behind the tunnel have entries that do not count.
fn finding(family: Family, peers: usize, host: &Host) -> Option<Finding> {
    let [_, soft, hard] = sysctls(family);
    let wanted = peers + OTHERS;
    let exceeded = |name: &str| host.number(name).filter(|limit| *limit < wanted);
    let (level, place, limit, why) = match (exceeded(&hard), exceeded(&soft)) {
        (Some(limit), _) => {
            (Level::Warning, hard, limit, "beyond it, packets to further neighbours are lost")
        }
        (None, Some(limit)) => (
            Level::Note,
            soft,
            limit,
            "beyond it, neighbours are forgotten and asked for all the time",
        ),
        (None, None) => return None,
    };
    let set = |(name, value): (String, usize)| format!("{name} = {value}");
    Some(Finding {
        id: "neighbour-table-small",
        level,
        what: format!(
            "there is room for {limit} {family} neighbours, and {peers} peers are on the link"
        ),
        cure: format!("sysctl -w {place}={}", room(&place)),
        place,
        why: why.to_owned(),
        drop_in: Some(DropIn {
            file: forwarding::SYSCTLS,
            lines: sysctls(family).into_iter().zip(ROOMY).map(set).collect(),
        }),
    })
}

fn room(sysctl: &str) -> usize {
    let [_, soft, hard] = ROOMY;
    if sysctl.ends_with('3') { hard } else { soft }
}
