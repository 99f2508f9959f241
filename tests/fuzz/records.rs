//! Properties of any set of records, from any source.

#![allow(dead_code, reason = "each reader uses some of it")]

use std::sync::LazyLock;

use tweed::excerpt::{self, SENTENCE};
use tweed::model::entry::Entry;
use tweed::model::lease::{Lease, LeaseUpdate, Peers, Record};
use tweed::model::node_inputs::NodeInputs;
use tweed::model::path::Fallbacks;
use tweed::plan::backend;
use tweed::store::etcd::key::Layout;
use tweed::store::etcd::value::{self, Origin};

use crate::notation;

const CONFIG: &str = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48",
    "Mixed":true,"Backend":{"Type":"vxlan","DirectRouting":true}}"#;

static LOCAL: LazyLock<NodeInputs> = LazyLock::new(|| {
    let subnets = "10.244.1.0/24 fd00:244:0:1::/64";
    notation::local(CONFIG, "eth0 172.16.0.5/24 fd00:16::5/64", subnets)
});

/// Leases below `subnets/` in etcd, separated by zero bytes: the rest of a key after the prefix, a
/// line feed, the value.
pub(crate) fn leases(input: &[u8]) -> Vec<Record> {
    let layout = Layout::below("/coreos.com/network");
    let record = |(created, part): (u64, &[u8])| {
        let feed = part.iter().position(|byte| *byte == b'\n')?;
        let key = [layout.subnets.as_bytes(), &part[..feed]].concat();
        let origin = Origin { created, grant: Some(7) };
        Some(value::decode(layout.lease_id(&key)?, &part[feed + 1..], origin))
    };
    (1..).zip(input.split(|byte| *byte == 0)).filter_map(record).collect()
}

/// No foreign text is repeated whole, no two accepted leases share an address, and nothing is
/// planned outside the network.
pub(crate) fn check(records: Vec<Record>) {
    let backends = backend::backends(&LOCAL);
    for record in &records {
        check_text(record.id.as_str());
        if let Err(error) = &record.lease {
            check_text(&error.to_string());
        }
    }
    let mut peers = Peers::default();
    peers.validate_by(LOCAL.rules());
    peers.update(LeaseUpdate::Snapshot(records));
    let mut taken: Vec<_> = LOCAL.own.iter().flat_map(Lease::subnets).collect();
    for peer in peers.all().filter_map(|(_, peer)| peer) {
        let lease = match peer {
            Ok(lease) => lease,
            Err(rejected) => {
                check_text(&rejected.to_string());
                continue;
            }
        };
        for subnet in lease.subnets() {
            assert!(taken.iter().all(|other| !other.overlaps(subnet)), "{subnet} is taken twice");
            taken.push(subnet);
        }
        let plan = backend::plan_peer(&backends, lease, &Fallbacks::new());
        plan.entries().for_each(|entry| check_entry(entry));
    }
}

/// A reason may quote some values, each of them cut.
fn check_text(text: &str) {
    assert!(excerpt::is_printable(text), "{text:?}");
    assert!(text.chars().count() <= 2 * SENTENCE, "{} characters", text.chars().count());
}

fn check_entry(entry: &Entry) {
    if let Entry::Route(route) = entry {
        let is_inside = LOCAL.config.networks().any(|network| network.covers(route.destination));
        assert!(is_inside, "{entry}");
    }
}
