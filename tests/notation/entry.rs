//! Reads an entry from its text.

use std::fmt::Debug;
use std::str::FromStr;

use tweed::model::entry::{
    Address, Entry, Fdb, Link, LinkKind, LinkName, Neighbour, Nexthop, NexthopId, PROTOCOL, Route,
    RouteKind, Setting, SettingKind, Vxlan,
};
use tweed::model::prefix::Prefix;

/// The entry with this text.
pub(crate) fn entry(text: &str) -> Entry {
    let words = Words(text.split_whitespace().collect());
    match words.at(0) {
        "link" => Entry::Link(link(&words)),
        "rp_filter" => setting(&words, SettingKind::ReversePath, "strict"),
        "accept_ra" => setting(&words, SettingKind::AcceptRa, "1"),
        "tx-checksum-ip-generic" => setting(&words, SettingKind::TxChecksum, "on"),
        "addr" => address(&words),
        "chain" => Entry::Chain(super::chain::chain(text)),
        "table" => Entry::Table(super::table::table(text)),
        "element" => match super::table::renewal(text) {
            Some(renewal) => Entry::Renewal(renewal),
            None => Entry::Element(super::table::element(text)),
        },
        "fdb" => Entry::Fdb(Fdb {
            link: words.device(),
            mac: parse(words.at(1)),
            destination: words.parsed("dst").unwrap(),
        }),
        "neigh" => Entry::Neighbour(Neighbour {
            link: words.device(),
            address: parse(words.at(1)),
            mac: words.parsed("lladdr").unwrap(),
            permanent: !words.has("not"),
        }),
        "nexthop" => Entry::Nexthop(Nexthop {
            id: NexthopId(words.parsed("id").unwrap()),
            gateway: words.parsed("via"),
            link: words.after("dev").map(LinkName::new),
            onlink: words.has("onlink"),
            protocol: words.parsed("proto").unwrap_or(PROTOCOL),
        }),
        "route" => Entry::Route(route(&words)),
        _ => panic!("no entry is shown as {text:?}"),
    }
}

fn link(words: &Words<'_>) -> Link {
    let kind = match words.after("type").unwrap() {
        "vxlan" => LinkKind::Vxlan(Box::new(Vxlan {
            vni: words.parsed("id").unwrap(),
            underlay: words.after("dev").map(LinkName::new),
            local: words.parsed("local"),
            port: words.parsed("dstport").unwrap(),
            learning: words.has("learning"),
            gbp: words.has("gbp"),
            group: words.parsed("remote"),
            l2miss: words.has("l2miss"),
        })),
        other => LinkKind::Other(other.to_owned()),
    };
    Link {
        name: LinkName::new(words.at(1)),
        kind,
        mtu: words.parsed("mtu").unwrap(),
        mac: words.parsed("address").unwrap(),
        up: words.at(2) == "up",
    }
}

fn setting(words: &Words<'_>, kind: SettingKind, on: &str) -> Entry {
    Entry::Setting(Setting { link: words.device(), kind, on: words.at(1) == on })
}

fn address(words: &Words<'_>) -> Entry {
    let (address, len) = words.at(1).split_once('/').unwrap();
    let (address, prefix_len) = (parse(address), parse(len));
    Entry::Address(Address { link: words.device(), address, prefix_len })
}

fn route(words: &Words<'_>) -> Route {
    let (kind, at) = match words.at(1) {
        "unreachable" => (RouteKind::Unreachable, 2),
        _ => (RouteKind::Unicast, 1),
    };
    let destination: Prefix = parse(words.at(at));
    Route {
        kind,
        destination,
        metric: words.parsed("metric").unwrap_or(Route::default_metric(destination.family())),
        gateway: words.parsed("via"),
        link: words.after("dev").map(LinkName::new),
        onlink: words.has("onlink"),
        nexthop: words.parsed("nhid").map(NexthopId),
        protocol: words.parsed("proto").unwrap_or(PROTOCOL),
    }
}

struct Words<'a>(Vec<&'a str>);

impl<'a> Words<'a> {
    fn at(&self, index: usize) -> &'a str {
        self.0.get(index).copied().unwrap_or_default()
    }

    fn has(&self, word: &str) -> bool {
        self.0.contains(&word)
    }

    fn after(&self, word: &str) -> Option<&'a str> {
        self.0.iter().skip_while(|other| **other != word).nth(1).copied()
    }

    fn parsed<T: FromStr<Err: Debug>>(&self, word: &str) -> Option<T> {
        self.after(word).map(parse)
    }

    fn device(&self) -> LinkName {
        LinkName::new(self.after("dev").unwrap())
    }
}

fn parse<T: FromStr<Err: Debug>>(text: &str) -> T {
    text.parse().unwrap_or_else(|error| panic!("{text:?}: {error:?}"))
}
