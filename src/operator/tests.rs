//! A host for tests of `diff` and `cleanup`: a checkpoint on disk and a kernel in memory that agree.

#![allow(clippy::unwrap_used)]

use std::fmt;
use std::sync::Arc;

use clap::Parser;
use serde::Serialize;
use tempfile::TempDir;

use super::options::{Arguments, Command, Files, Output};
use super::{Answer, Verdict, inputs, write};
use crate::daemon::checkpoint;
use crate::kernel::Kernel;
use crate::kernel::fake::FakeKernel;
use crate::model::checkpoint::Checkpoint;
use crate::model::config::NetworkConfig;
use crate::model::entry::{Entry, KernelState, LinkName, Route};
use crate::model::lease::Lease;
use crate::model::local::Local;
use crate::model::node::tests::interface;
use crate::model::node::{Facts, InterfaceOptions, Node};
use crate::model::policy::Policy;
use crate::model::prefix::Family;
use crate::plan::diff::diff;

pub(super) struct Host {
    pub(super) kernel: FakeKernel,
    pub(super) files: Files,
    pub(super) folder: TempDir,
}

impl Host {
    /// A vxlan node in a mixed network, with a peer behind the tunnel and one on its link. Nothing is programmed.
    pub(super) fn bare() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let subnet_file = folder.path().join("subnet.env");
        let line = ["tweedctl", "status", "--subnet-file", subnet_file.to_str().unwrap()];
        let files = Arguments::try_parse_from(line).unwrap().files;
        std::fs::write(&subnet_file, "FLANNEL_MTU=1450\n").unwrap();
        checkpoint::save(&files.state_file(), &inputs()).unwrap();
        Self { kernel: FakeKernel::new(facts()), files, folder }
    }

    /// As [`Self::bare`], and everything is programmed; beside it routes of others.
    pub(super) async fn programmed() -> Self {
        let mut host = Self::bare();
        let known = inputs::read(&host.files).await.unwrap();
        let actual = host.kernel.dump(&known.scope(), &KernelState::default()).await.unwrap();
        let ops = diff(known.desired().state(), &actual, &known.scope());
        assert_eq!(host.kernel.apply(&ops).await.unwrap(), []);
        host.kernel.take_log();
        host.kernel.set(foreign_route("10.244.77.0/24", 4));
        host.kernel.set(foreign_route("192.168.7.0/24", crate::model::entry::PROTOCOL));
        host
    }

    /// All entries, in words.
    pub(super) fn entries(&self) -> Vec<String> {
        self.kernel.state().entries().map(ToString::to_string).collect()
    }
}

/// What stands on the command line behind `tweedctl`.
pub(super) fn command(line: &str) -> Command {
    Arguments::try_parse_from(["tweedctl"].into_iter().chain(line.split(' '))).unwrap().command
}

pub(super) fn inputs() -> Checkpoint {
    let config = r#"{"Network":"10.244.0.0/16","Mixed":true,"Backend":{"Type":"vxlan"}}"#;
    let node = Node::select(&facts(), &InterfaceOptions::default(), &[Family::V4]).unwrap();
    let own = lease("10.244.1.0/24", "172.16.0.5", "vxlan", "0a:00:00:00:00:05");
    let local = Local {
        config: NetworkConfig::parse(config.as_bytes()).unwrap(),
        node,
        macs: [(Family::V4, "0a:00:00:00:00:05".parse().unwrap())].into(),
        own: Some(own),
        strict: [LinkName::new("eth0")].into(),
        leaving: [].into(),
        policy: Policy::default(),
    };
    let peers = [
        lease("10.244.3.0/24", "172.17.0.9", "vxlan", "0a:00:00:00:00:09"),
        lease("10.244.4.0/24", "172.16.0.10", "host-gw", "0a:00:00:00:00:0a"),
    ];
    let leases = peers.map(Arc::new).into();
    Checkpoint { local, leases, detours: [].into(), host: checkpoint::this_host() }
}

fn lease(subnet: &str, public_ip: &str, backend: &str, mac: &str) -> Lease {
    let id = subnet.replace('/', "-");
    let endpoint = serde_json::json!({
        "subnet": subnet, "public_ip": public_ip, "backend": backend,
        "vtep": { "vni": 1, "mac": mac },
    });
    let lease = serde_json::json!({ "id": id, "endpoints": [endpoint], "created": 1, "grant": 1 });
    serde_json::from_value(lease).unwrap()
}

fn facts() -> Facts {
    let eth0 = interface("eth0", &["172.16.0.5/24"]);
    let default_routes = vec![(Family::V4, Some(LinkName::new("eth0")))];
    Facts { interfaces: vec![eth0], default_routes, ..Facts::default() }
}

/// An answer with text of others.
#[derive(Serialize)]
struct Written(&'static str);

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Answer for Written {
    fn verdict(&self) -> Verdict {
        Verdict::Well
    }
}

#[test]
fn json_drives_no_terminal() {
    let mut out = Vec::new();
    write(&mut out, Output::Json, &Written("\u{9b}2J\u{202e}")).unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), "\"\\u009b2J\\u202e\"\n");
}

pub(super) fn foreign_route(destination: &str, protocol: u8) -> Entry {
    let gateway = "172.16.0.1".parse().unwrap();
    let route = Route::via(destination.parse().unwrap(), gateway, LinkName::new("eth0"));
    Entry::Route(Route { protocol, ..route })
}
