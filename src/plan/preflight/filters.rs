//! Reverse-path filters that take packets for forged.

use super::facts::{Host, Needs, Packets};
use super::{Finding, Level};
use crate::model::entry::LinkName;

pub(crate) const ALL: &str = "net/ipv4/conf/all/rp_filter";
const STRICT: usize = 1;
const LOOSE: usize = 2;

pub(crate) fn findings(needs: &Needs, host: &Host) -> Vec<Finding> {
    let tunnels = needs.tunnels.iter().map(|(tunnel, _)| tunnel);
    let links = needs.underlay.iter().chain(tunnels);
    links.filter(|link| is_strict(link, host)).map(|link| finding(link, needs.packets)).collect()
}

pub(crate) fn sysctl(link: &LinkName) -> String {
    format!("net/ipv4/conf/{link}/rp_filter")
}

/// Of the link's own value and that of all links, the kernel goes by the larger.
fn is_strict(link: &LinkName, host: &Host) -> bool {
    let own = host.number(&sysctl(link));
    own.is_some_and(|own| own.max(host.number(ALL).unwrap_or(0)) == STRICT)
}

fn finding(link: &LinkName, packets: Packets) -> Finding {
    let (level, why) = match packets {
        Packets::ByTwoWays => (
            Level::Warning,
            "packets that come by another way than answers go are dropped, as while a peer changes \
             between tunnel and direct path",
        ),
        Packets::ByOneWay => (
            Level::Note,
            "nothing is lost as long as no peer changes between tunnel and direct path; with Mixed, \
             tweedd loosens the filter where it may write it",
        ),
    };
    Finding {
        id: "strict-reverse-path",
        level,
        what: format!("the reverse-path filter of {link} is strict"),
        place: sysctl(link),
        why: why.to_owned(),
        cure: format!("sysctl -w {}={LOOSE}", sysctl(link)),
        drop_in: None,
    }
}
