//! A host for `tweedctl`: a checkpoint on disk and a kernel in memory that agree.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Parser;
use serde_json::Value;
use tempfile::TempDir;
use tweed::daemon::checkpoint;
use tweed::kernel::Kernel;
use tweed::model::checkpoint::Checkpoint;
use tweed::model::config::NetworkConfig;
use tweed::model::entry::{Entry, KernelState, LinkName, PROTOCOL, Route};
use tweed::model::lease::{Lease, Peers};
use tweed::model::node::{Facts, InterfaceOptions, Node};
use tweed::model::node_inputs::NodeInputs;
use tweed::model::policy::Policy;
use tweed::model::prefix::Family;
use tweed::model::status::PeerStatus;
use tweed::operator::{self, Arguments, Error, ExitStatus};
use tweed::plan::desired::Desired;
use tweed::plan::diff::diff;
use tweed::plan::scope::Scope;
use tweed::plan::trace::PeerHops;
use tweed_http as http;
use tweed_model::ModelKernel;

use crate::notation;

pub(crate) struct Host {
    pub(crate) kernel: ModelKernel,
    pub(crate) folder: TempDir,
}

impl Host {
    /// A vxlan node in a mixed network, with a peer behind the tunnel and one on its link. Nothing is programmed.
    pub(crate) fn bare() -> Self {
        let host = Self { kernel: ModelKernel::new(facts()), folder: tempfile::tempdir().unwrap() };
        std::fs::write(host.subnet_file(), "FLANNEL_MTU=1450\n").unwrap();
        host.save(&inputs());
        host
    }

    /// As [`Self::bare`], with everything programmed, and with foreign routes.
    pub(crate) async fn programmed() -> Self {
        let mut host = Self::bare();
        let (inputs, scope) = (inputs(), scope(&inputs()));
        let actual = host.kernel.dump(&scope, &KernelState::default()).await.unwrap();
        let ops = diff(&desired(&inputs), &actual, &scope);
        assert_eq!(host.kernel.apply(&ops).await.unwrap(), []);
        host.kernel.take_log();
        host.kernel.set(foreign_route("10.244.77.0/24", 4));
        host.kernel.set(foreign_route("192.168.7.0/24", PROTOCOL));
        host
    }

    /// The output of `tweedctl` on this host with these arguments.
    pub(crate) async fn run(&self, line: &str) -> Result<(ExitStatus, String), Error> {
        let subnet_file = self.subnet_file();
        let files = ["--color", "never", "--subnet-file", subnet_file.to_str().unwrap()];
        let line = ["tweedctl"].into_iter().chain(line.split(' ')).chain(files);
        let arguments = Arguments::try_parse_from(line).unwrap();
        let mut out = Vec::new();
        let exit_status = operator::run(arguments, || Ok(self.kernel.clone()), &mut out).await?;
        Ok((exit_status, String::from_utf8(out).unwrap()))
    }

    /// As [`Self::run`], in JSON.
    pub(crate) async fn json(&self, line: &str) -> Result<(ExitStatus, Value), Error> {
        let (exit_status, text) = self.run(&format!("{line} -o json")).await?;
        Ok((exit_status, serde_json::from_str(&text).unwrap()))
    }

    /// Runs `work` next to a daemon that answers.
    pub(crate) async fn next_to_a_daemon(&self, work: impl AsyncFnOnce()) {
        self.next_to_a_daemon_with(&[], work).await;
    }

    /// The same, with these peers, whose daemons do not answer.
    pub(crate) async fn next_to_a_daemon_with(
        &self,
        peers: &[PeerStatus],
        work: impl AsyncFnOnce(),
    ) {
        self.next_to_a_daemon_that_asks(peers, |_| unseen(), work).await;
    }

    /// The same, with the hops on the peer by the path of the question.
    pub(crate) async fn next_to_a_daemon_that_asks(
        &self,
        peers: &[PeerStatus],
        hops: impl Fn(&str) -> PeerHops,
        work: impl AsyncFnOnce(),
    ) {
        let listener = http::bind_control(&self.folder.path().join("subnet.sock")).unwrap();
        let daemon = http::serve(listener, async |path: String| match path.as_str() {
            "/peers" => http::json(200, &peers),
            path if path.starts_with("/trace/") => http::json(200, &hops(path)),
            _ => http::json(200, &inputs()),
        });
        tokio::select! {
            () = daemon => {}
            () = work() => {}
        }
    }

    pub(crate) fn save(&self, inputs: &Checkpoint) {
        checkpoint::save(&self.state_file(), inputs).unwrap();
    }

    pub(crate) fn subnet_file(&self) -> PathBuf {
        self.folder.path().join("subnet.env")
    }

    pub(crate) fn state_file(&self) -> PathBuf {
        self.folder.path().join("subnet.state.json")
    }

    /// `text`, with another name for the folder of this host.
    pub(crate) fn anonymous(&self, text: &str, name: &str) -> String {
        text.replace(self.folder.path().to_str().unwrap(), name)
    }

    /// The texts of all entries.
    pub(crate) fn entries(&self) -> Vec<String> {
        self.kernel.state().entries().map(ToString::to_string).collect()
    }
}

fn unseen() -> PeerHops {
    PeerHops::Unseen("no answer within 1 s".to_owned())
}

pub(crate) fn inputs() -> Checkpoint {
    let config = r#"{"Network":"10.244.0.0/16","Mixed":true,"Backend":{"Type":"vxlan"}}"#;
    let node = Node::select(&facts(), &InterfaceOptions::default(), &[Family::V4]).unwrap();
    let own = lease("10.244.1.0/24", "172.16.0.5", "vxlan", "0a:00:00:00:00:05");
    let local = NodeInputs {
        config: NetworkConfig::parse(config.as_bytes()).unwrap(),
        node,
        macs: [(Family::V4, "0a:00:00:00:00:05".parse().unwrap())].into(),
        own: Some(own),
        strict: [LinkName::new("eth0")].into(),
        leaving: [].into(),
        was_on_host_gw: false,
        policy: Policy::default(),
    };
    let peers = [
        lease("10.244.3.0/24", "172.17.0.9", "vxlan", "0a:00:00:00:00:09"),
        lease("10.244.4.0/24", "172.16.0.10", "host-gw", "0a:00:00:00:00:0a"),
    ];
    let leases = peers.map(Arc::new).into();
    Checkpoint { local, leases, fallbacks: [].into(), host: checkpoint::this_host() }
}

/// The entries that the kernel should hold.
pub(crate) fn desired(inputs: &Checkpoint) -> KernelState {
    let mut peers = Peers::from_checkpoint(inputs.leases.iter().cloned());
    Desired::plan(&inputs.local, &mut peers, &inputs.fallbacks).state().clone()
}

fn scope(inputs: &Checkpoint) -> Scope {
    let endpoints = inputs.leases.iter().flat_map(|lease| &lease.endpoints);
    inputs.local.scope(endpoints.map(|endpoint| endpoint.public_ip).collect())
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
    notation::host(&["eth0 172.16.0.5/24"])
}

fn foreign_route(destination: &str, protocol: u8) -> Entry {
    let gateway = "172.16.0.1".parse().unwrap();
    let route = Route::via(destination.parse().unwrap(), gateway, LinkName::new("eth0"));
    Entry::Route(Route { protocol, ..route })
}
