//! Ranges as host-local's documentation and its users write them.

use super::*;

fn range(json: &str) -> Result<Range, Error> {
    Range::parse(&serde_json::from_str(json).unwrap())
}

fn subnet(subnet: &str) -> Result<Range, Error> {
    range(&format!(r#"{{"subnet": "{subnet}"}}"#))
}

fn shown(range: &Range) -> String {
    format!("{range} via {}", range.gateway)
}

#[test]
fn a_range_is_the_subnet_without_its_first_and_ipv4_broadcast_address() {
    let cases = [
        ("192.0.2.0/24", "192.0.2.1-192.0.2.254 via 192.0.2.1"),
        ("192.0.2.0/25", "192.0.2.1-192.0.2.126 via 192.0.2.1"),
        ("192.0.2.4/30", "192.0.2.5-192.0.2.6 via 192.0.2.5"),
        ("0.0.0.0/0", "0.0.0.1-255.255.255.254 via 0.0.0.1"),
        ("2001:db8:1::/64", "2001:db8:1::1-2001:db8:1:0:ffff:ffff:ffff:ffff via 2001:db8:1::1"),
    ];
    for (text, expected) in cases {
        assert_eq!(shown(&subnet(text).unwrap()), expected);
    }
}

#[test]
fn a_subnet_must_be_a_network_with_free_addresses() {
    let cases = [
        ("192.0.2.0/31", "Network 192.0.2.0/31 too small to allocate from"),
        ("2001:db8::/127", "Network 2001:db8::/127 too small to allocate from"),
        (
            "192.0.2.12/24",
            "Network has host bits set. For a subnet mask of length 24 the network address is 192.0.2.0",
        ),
        ("192.0.2.0", "invalid CIDR address: 192.0.2.0"),
        ("", "invalid CIDR address: "),
    ];
    for (text, expected) in cases {
        let error = subnet(text).unwrap_err();
        assert_eq!((error.code, error.msg.as_str()), (7, expected));
    }
    assert!(subnet("::ffff:10.0.0.0/120").is_err());
    assert!(range("{}").is_err());
}

#[test]
fn start_and_end_lie_in_the_subnet_and_in_order() {
    let with = |start: &str, end: &str| {
        range(&format!(
            r#"{{"subnet": "192.0.2.0/24", "rangeStart": "{start}", "RANGEEND": "{end}"}}"#
        ))
    };
    assert_eq!(with("192.0.2.40", "192.0.2.50").unwrap().to_string(), "192.0.2.40-192.0.2.50");
    assert_eq!(with("192.0.2.0", "192.0.2.255").unwrap().to_string(), "192.0.2.0-192.0.2.255");
    assert_eq!(with("", "").unwrap().to_string(), "192.0.2.1-192.0.2.254");
    assert_eq!(
        with("192.0.3.1", "192.0.2.9").unwrap_err().msg,
        "RangeStart 192.0.3.1 not in network 192.0.2.0/24"
    );
    assert_eq!(
        with("192.0.2.1", "192.0.3.9").unwrap_err().msg,
        "RangeEnd 192.0.3.9 not in network 192.0.2.0/24"
    );
    for (start, end) in [("192.0.2.50", "192.0.2.40"), ("2001:db8::1", ""), ("", "no")] {
        assert!(with(start, end).is_err(), "{start} {end}");
    }
}

#[test]
fn a_gateway_may_be_any_address() {
    let range = range(r#"{"subnet": "10.0.0.0/24", "gateway": "172.16.0.1"}"#).unwrap();
    assert_eq!(shown(&range), "10.0.0.1-10.0.0.254 via 172.16.0.1");
}

#[test]
fn a_range_contains_its_ends_and_nothing_of_the_other_family() {
    let v4 = subnet("10.0.0.0/30").unwrap();
    for (address, expected) in
        [("10.0.0.0", false), ("10.0.0.1", true), ("10.0.0.2", true), ("10.0.0.3", false)]
    {
        assert_eq!(v4.contains(address.parse().unwrap()), expected, "{address}");
    }
    assert!(!subnet("::/64").unwrap().contains("0.0.0.1".parse().unwrap()));
}

fn set(subnets: &[&str]) -> Result<RangeSet, Error> {
    RangeSet::of(subnets.iter().map(|text| subnet(text).unwrap()).collect())
}

#[test]
fn the_ranges_of_a_set_are_of_one_family_and_disjoint() {
    assert_eq!(
        set(&["10.0.0.0/30", "10.1.0.0/30"]).unwrap().to_string(),
        "10.0.0.1-10.0.0.2,10.1.0.1-10.1.0.2"
    );
    assert_eq!(set(&[]).unwrap_err().msg, "empty range set");
    assert_eq!(set(&["10.0.0.0/24", "fd00::/64"]).unwrap_err().msg, "mixed address families");
    assert_eq!(
        set(&["10.0.0.0/24", "10.0.1.0/24", "10.0.0.128/25"]).unwrap_err().msg,
        "subnets 10.0.0.1-10.0.0.254 and 10.0.0.129-10.0.0.254 overlap"
    );
}

#[test]
fn ranges_of_one_subnet_may_be_adjacent() {
    let part = |start: &str, end: &str| {
        let json =
            format!(r#"{{"subnet": "10.0.0.0/24", "rangeStart": "{start}", "rangeEnd": "{end}"}}"#);
        RangeSet::of(vec![range(&json).unwrap()]).unwrap()
    };
    let [low, high] = [part("10.0.0.10", "10.0.0.20"), part("10.0.0.21", "10.0.0.30")];
    assert!(!low.overlaps(&high) && !high.overlaps(&low));
    for inner in [part("10.0.0.12", "10.0.0.14"), part("10.0.0.20", "10.0.0.30"), low.clone()] {
        assert!(low.overlaps(&inner) && inner.overlaps(&low), "{inner}");
    }
}

#[test]
fn an_address_is_converted_to_a_number_and_back() {
    for text in ["0.0.0.0", "10.244.7.2", "255.255.255.255", "::", "fd00:10:244:7::2"] {
        let before = json::address(text).unwrap();
        assert_eq!(address(number(before)), before);
    }
}
