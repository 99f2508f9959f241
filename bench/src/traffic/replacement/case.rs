//! The ways of replacing a route, as lines for `ip -batch`.

use ipnetwork::IpNetwork;
use tweed_lab::Family;

/// The two paths to a subnet, in the syntax of `ip route`.
pub(super) struct Paths {
    pub(super) family: Family,
    pub(super) subnet: IpNetwork,
    pub(super) direct: String,
    pub(super) tunnel: String,
}

/// A way to replace a route: after `setup` and after `back`, packets use the direct path.
pub(super) struct Case {
    pub(super) family: Family,
    pub(super) name: &'static str,
    pub(super) setup: Vec<String>,
    pub(super) there: Vec<String>,
    pub(super) back: Vec<String>,
}

pub(super) fn all(paths: &Paths) -> Vec<Case> {
    let Paths { family, subnet, direct, tunnel } = paths;
    let case = |name, [setup, there, back]: [&[&str]; 3]| {
        let fill = |line: &&str| {
            let line = line.replace("SUBNET", &subnet.to_string());
            line.replace("DIRECT", direct).replace("TUNNEL", tunnel)
        };
        let lines = |lines: &[&str]| lines.iter().map(fill).collect();
        Case { family: *family, name, setup: lines(setup), there: lines(there), back: lines(back) }
    };
    CASES.iter().map(|(name, lines)| case(name, *lines)).collect()
}

type Lines = &'static [&'static str];

const CASES: &[(&str, [Lines; 3])] = &[
    ("nothing", [&["route add SUBNET DIRECT"], &[], &[]]),
    (
        "a plain route by a plain route",
        [
            &["route add SUBNET DIRECT"],
            &["route replace SUBNET TUNNEL"],
            &["route replace SUBNET DIRECT"],
        ],
    ),
    (
        "a route by one with another nexthop object",
        [
            &["nexthop add id 1 DIRECT", "nexthop add id 2 TUNNEL", "route add SUBNET nhid 1"],
            &["route replace SUBNET nhid 2"],
            &["route replace SUBNET nhid 1"],
        ],
    ),
    (
        "the same, with objects made for it and deleted after it",
        [
            &["nexthop add id 1 DIRECT", "route add SUBNET nhid 1"],
            &["nexthop add id 2 TUNNEL", "route replace SUBNET nhid 2", "nexthop del id 1"],
            &["nexthop add id 1 DIRECT", "route replace SUBNET nhid 1", "nexthop del id 2"],
        ],
    ),
    (
        "the nexthop object of a route",
        [
            &["nexthop add id 1 DIRECT", "route add SUBNET nhid 1"],
            &["nexthop replace id 1 TUNNEL"],
            &["nexthop replace id 1 DIRECT"],
        ],
    ),
    (
        "a plain route by one with a nexthop object, and back",
        [
            &["nexthop add id 1 TUNNEL", "route add SUBNET DIRECT"],
            &["route replace SUBNET nhid 1"],
            &["route replace SUBNET DIRECT"],
        ],
    ),
    (
        "the same, along one path",
        [
            &["nexthop add id 1 DIRECT", "route add SUBNET DIRECT"],
            &["route replace SUBNET nhid 1"],
            &["route replace SUBNET DIRECT"],
        ],
    ),
    (
        "a route that is deleted and added",
        [
            &["route add SUBNET DIRECT"],
            &["route del SUBNET", "route add SUBNET TUNNEL"],
            &["route del SUBNET", "route add SUBNET DIRECT"],
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_placeholders_of_a_case_are_replaced() {
        let paths = Paths {
            family: Family::V4,
            subnet: "10.244.2.0/24".parse().unwrap(),
            direct: "via 10.99.1.12 dev eth0".to_owned(),
            tunnel: "via 10.244.2.0 dev flannel.1 onlink".to_owned(),
        };
        let cases = all(&paths);
        let plain = cases.iter().find(|case| case.name.starts_with("a plain")).unwrap();
        assert_eq!(
            plain.there,
            ["route replace 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink"]
        );
        let lines = cases.iter().flat_map(|case| [&case.setup, &case.there, &case.back]);
        let words = lines.flatten().flat_map(|line| line.split(' '));
        assert!(words.into_iter().all(|word| !["SUBNET", "DIRECT", "TUNNEL"].contains(&word)));
    }
}
