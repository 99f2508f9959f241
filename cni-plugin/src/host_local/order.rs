//! Which address comes next: in the order in which Go's host-local tries them.

use std::collections::HashSet;
use std::net::IpAddr;

use super::range::{Range, RangeSet, address, number};

/// Addresses without a gap, tried from `first` to `last`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Span<'a> {
    range: &'a Range,
    first: u128,
    last: u128,
}

/// The first address of `set` that is not `taken`, with its range; `None` if all are.
pub(super) fn next_free<'a>(
    set: &'a RangeSet,
    last_reserved: Option<IpAddr>,
    taken: &HashSet<IpAddr>,
) -> Option<(&'a Range, IpAddr)> {
    order(set, last_reserved).into_iter().find_map(|span| {
        let mut addresses = (span.first..=span.last).map(address);
        addresses.find(|address| !taken.contains(address)).map(|address| (span.range, address))
    })
}

/// Every address of `set` but the gateways, once: from the one after `last_reserved` on and around,
/// or from the first one on if `last_reserved` is not in `set`.
///
/// So an address that was freed is given again as late as possible.
fn order(set: &RangeSet, last_reserved: Option<IpAddr>) -> Vec<Span<'_>> {
    let ranges = set.ranges();
    let begin = last_reserved.and_then(|last| {
        let index = ranges.iter().position(|range| range.contains(last))?;
        Some((index, number(last)))
    });
    let Some((index, last)) = begin else {
        return ranges.iter().flat_map(|range| spans(range, 0, u128::MAX)).collect();
    };
    let (before, from) = ranges.split_at(index);
    let (current, after) = from.split_at(1);
    let rest = current.iter().flat_map(|range| spans(range, last.saturating_add(1), u128::MAX));
    let others = after.iter().chain(before).flat_map(|range| spans(range, 0, u128::MAX));
    let passed = current.iter().flat_map(|range| spans(range, 0, last));
    rest.chain(others).chain(passed).collect()
}

/// The part of `range` from `first` to `last`, without its gateway.
fn spans(range: &Range, first: u128, last: u128) -> impl Iterator<Item = Span<'_>> {
    let (first, last) = (first.max(number(range.first)), last.min(number(range.last)));
    let gateway = number(range.gateway);
    let parts = match gateway.checked_sub(1) {
        Some(before) if (first..=last).contains(&gateway) => {
            [(first, before), (gateway.saturating_add(1), last)]
        }
        _ => [(first, last), (1, 0)],
    };
    let spans = parts.into_iter().map(move |(first, last)| Span { range, first, last });
    spans.filter(|span| span.first <= span.last)
}

#[cfg(test)]
#[path = "tests/order.rs"]
mod tests;
