//! Whether addresses of pods are those of hosts or services, too.

use super::facts::{Host, Needs};
use super::{Finding, Level};
use crate::model::node::{InterfaceAddress, Other, Overlap};
use crate::model::prefix::Prefix;

pub(super) fn findings(needs: &Needs, host: &Host) -> Vec<Finding> {
    let link = needs.underlay.as_ref().and_then(|link| host.link(link));
    let prefixes = link.into_iter().flat_map(|link| {
        let prefix = |it: &InterfaceAddress| Prefix::holding(it.address, it.prefix_len);
        link.addresses.iter().filter_map(prefix).map(move |prefix| (&link.name, prefix))
    });
    let prefixes: Vec<_> = prefixes.collect();
    let overlaps = Overlap::of(needs.networks.iter().copied(), &prefixes, host.service);
    overlaps.iter().map(finding).collect()
}

fn finding(overlap: &Overlap) -> Finding {
    let place = match &overlap.with {
        Other::Underlay(link, _) => format!("link {link}"),
        Other::Service(service) => format!("service {service}"),
    };
    Finding {
        id: "network-overlap",
        level: Level::Warning,
        what: overlap.to_string(),
        place,
        why: "pods and what has the same addresses do not reach each other".to_owned(),
        cure: "choose a Network apart from both before there are pods".to_owned(),
        drop_in: None,
    }
}
