//! The plan for a node and its peers: the kernel entries, with expected values.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]
#![allow(clippy::needless_raw_string_hashes, reason = "expect-test writes them")]

mod notation;

use std::fmt::Write;

use expect_test::{Expect, expect};
use notation::{lease, local};
use tweed::model::node_inputs::NodeInputs;
use tweed::model::path::Fallbacks;
use tweed::plan::backend;

/// The pods' networks of most tests.
const NETWORKS: &str =
    r#""Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48""#;
/// A node on an Ethernet segment, and its subnets.
const ETH0: &str = "eth0 172.16.0.5/24 fd00:16::5/64";
const OWN: &str = "10.244.1.0/24 fd00:244:0:1::/64";
/// Peers on our link, and behind a router.
const NEAR: &str = "10.244.3.0/24@172.16.0.9 fd00:244:0:3::/64@fd00:16::9";
const FAR: &str = "10.244.7.0/24@172.17.0.9 fd00:244:0:7::/64@fd00:17::9";

/// The node of most tests, with this backend and these additional keys.
fn node(backend: &str, keys: &str) -> NodeInputs {
    local(&format!(r#"{{{NETWORKS}{keys},"Backend":{backend}}}"#), ETH0, OWN)
}

const VXLAN: &str = r#"{"Type":"vxlan"}"#;
const HOST_GW: &str = r#"{"Type":"host-gw"}"#;
const MIXED: &str = r#","Mixed":true"#;

fn check_plan(local: &NodeInputs, peers: &[&str], expected: Expect) {
    let backends = backend::backends(local);
    let mut text = String::new();
    for peer in peers {
        let peer = lease(peer);
        let plan = backend::plan_peer(&backends, &peer, &Fallbacks::new());
        for entry in plan.entries() {
            writeln!(text, "{entry}").unwrap();
        }
        for (family, path) in &plan.paths {
            if let Err(reason) = path {
                writeln!(text, "{family} skipped: {reason}").unwrap();
            }
        }
    }
    expected.assert_eq(&text);
}

fn check_local(local: &NodeInputs, expected: Expect) {
    let backends = backend::backends(local);
    let mut text = String::new();
    for entry in backend::plan_local(local).entries() {
        writeln!(text, "{entry}").unwrap();
    }
    writeln!(text, "pods' mtu {}", backend::pod_mtu(&backends).unwrap()).unwrap();
    expected.assert_eq(&text);
}

fn check_attributes(local: &NodeInputs, expected: Expect) {
    let attributes = local.attributes();
    let mut text = format!("{}\n", attributes.backend.as_str());
    for endpoint in attributes.endpoints {
        write!(text, "{}", endpoint.public_ip).unwrap();
        if let Some(vtep) = endpoint.vtep {
            write!(text, " vni {:?} mac {}", vtep.vni, vtep.mac).unwrap();
            text.push_str(if vtep.mixed { " mixed" } else { "" });
        }
        text.push('\n');
    }
    expected.assert_eq(&text);
}

#[path = "plan/paths.rs"]
mod of_its_peers;
#[path = "plan/guard.rs"]
mod of_the_tunnels_guard;
#[path = "plan/local.rs"]
mod of_this_node;
#[path = "plan/masquerade.rs"]
mod of_what_leaves;
