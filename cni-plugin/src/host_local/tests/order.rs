//! The order in which addresses are tried, compared with Go's iterator.

use proptest::prelude::*;

use super::*;

fn set(ranges: &[(&str, &str, &str)]) -> RangeSet {
    let range = |(start, end, gateway): &(&str, &str, &str)| {
        let json = format!(
            r#"{{"subnet": "10.0.0.0/16", "rangeStart": "{start}", "rangeEnd": "{end}", "gateway": "{gateway}"}}"#
        );
        Range::parse(&serde_json::from_str(&json).unwrap()).unwrap()
    };
    RangeSet::of(ranges.iter().map(range).collect()).unwrap()
}

fn tried(set: &RangeSet, last: Option<IpAddr>) -> Vec<IpAddr> {
    let (mut tried, mut taken) = (Vec::new(), HashSet::new());
    while let Some((_, address)) = next_free(set, last, &taken) {
        tried.push(address);
        taken.insert(address);
    }
    tried
}

fn shown(set: &RangeSet, last: Option<&str>) -> Vec<String> {
    let tried = tried(set, last.map(|last| last.parse().unwrap()));
    tried.iter().map(IpAddr::to_string).collect()
}

#[test]
fn the_order_begins_after_the_last_address_and_ends_with_it() {
    let set = set(&[("10.0.0.2", "10.0.0.5", "10.0.0.4")]);
    assert_eq!(shown(&set, None), ["10.0.0.2", "10.0.0.3", "10.0.0.5"]);
    assert_eq!(shown(&set, Some("10.0.0.2")), ["10.0.0.3", "10.0.0.5", "10.0.0.2"]);
    assert_eq!(shown(&set, Some("10.0.0.4")), ["10.0.0.5", "10.0.0.2", "10.0.0.3"]);
    assert_eq!(shown(&set, Some("10.0.0.5")), ["10.0.0.2", "10.0.0.3", "10.0.0.5"]);
    assert_eq!(shown(&set, Some("10.0.0.9")), ["10.0.0.2", "10.0.0.3", "10.0.0.5"]);
}

#[test]
fn all_ranges_of_a_set_are_used_alternately() {
    let set = set(&[
        ("10.0.0.1", "10.0.0.2", "10.0.0.1"),
        ("10.0.1.1", "10.0.1.2", "10.0.9.9"),
        ("10.0.2.1", "10.0.2.1", "10.0.2.1"),
    ]);
    assert_eq!(shown(&set, Some("10.0.1.1")), ["10.0.1.2", "10.0.0.2", "10.0.1.1"]);
    assert_eq!(shown(&set, Some("10.0.2.1")), ["10.0.0.2", "10.0.1.1", "10.0.1.2"]);
}

/// Go's order: one step at a time, until the first address is reached again.
fn gos_order(set: &RangeSet, last: Option<IpAddr>) -> Vec<IpAddr> {
    let ranges = &set.0;
    let begin = last.and_then(|last| {
        ranges.iter().position(|range| range.contains(last)).map(|index| (index, last))
    });
    let after = |(index, current): (usize, IpAddr)| {
        if current == ranges[index].last {
            let index = (index + 1) % ranges.len();
            (index, ranges[index].first)
        } else {
            (index, address(number(current) + 1))
        }
    };
    let start = begin.map_or((0, ranges[0].first), after);
    let mut order = Vec::new();
    let mut current = start;
    loop {
        if current.1 != ranges[current.0].gateway {
            order.push(current.1);
        }
        current = after(current);
        if current == start {
            return order;
        }
    }
}

proptest! {
    #[test]
    fn the_order_equals_gos(
        sizes in prop::collection::vec((1..6_u32, 0..8_u32), 1..4),
        last in prop::option::of(0..30_u32),
    ) {
        let mut next = 2;
        let ranges: Vec<_> = sizes.iter().map(|(size, gateway)| {
            let first = next;
            next += size + 1;
            (first, first + size - 1, first + gateway)
        }).collect();
        let texts: Vec<_> = ranges.iter().map(|(first, last, gateway)| {
            (format!("10.0.0.{first}"), format!("10.0.0.{last}"), format!("10.0.0.{gateway}"))
        }).collect();
        let texts: Vec<_> =
            texts.iter().map(|(a, b, c)| (a.as_str(), b.as_str(), c.as_str())).collect();
        let set = set(&texts);
        let last = last.map(|last| format!("10.0.0.{last}").parse::<IpAddr>().unwrap());
        prop_assert_eq!(tried(&set, last), gos_order(&set, last));
    }
}
