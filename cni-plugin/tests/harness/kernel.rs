//! What the kernel holds, as iproute2 and nft show it.

use std::process::Command;

use serde_json::Value;
use tweed_lab::{Namespace, eventually};

use super::{Node, Pod, TIMEOUT};

/// A network namespace.
pub(crate) trait Place {
    fn namespace(&self) -> &Namespace;

    /// Runs `ip` with the words of `arguments`, of which the last may be empty, in this namespace.
    fn ip(&self, arguments: &str) -> String {
        self.namespace().run("ip", &arguments.split(' ').collect::<Vec<_>>()).unwrap()
    }

    /// The objects that `ip -json` lists.
    fn ip_json(&self, arguments: &str) -> Vec<Value> {
        self.namespace().ip_json(&format!("-details {arguments}")).unwrap()
    }

    /// The names of all links but the loopback.
    fn links(&self) -> Vec<String> {
        let links = self.ip_json("link show");
        let names = links.iter().map(|link| link["ifname"].as_str().unwrap().to_owned());
        names.filter(|name| name != "lo").collect()
    }

    /// Runs a program with its arguments in this namespace; returns whether it succeeds, and its
    /// output.
    fn exec(&self, line: &str) -> (bool, String) {
        let mut words = line.split(' ');
        let program = words.next().unwrap();
        let output = self.namespace().output(program, &words.collect::<Vec<_>>()).unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Whether `address` answers; on a busy machine, this may take long.
    fn pings(&self, address: &str) -> bool {
        self.exec(&format!("ping -n -c 1 -W 10 {address}")).0
    }

    /// Waits until frames pass the link `name`.
    fn is_operational(&self, name: &str) {
        eventually(TIMEOUT, || self.ip(&format!("link show {name}")).contains("state UP")).unwrap();
        // The kernel holds a lock until it has applied the state that it shows; this request takes
        // the same lock.
        self.ip("link set lo up");
    }

    fn sysctl(&self, name: &str) -> String {
        self.namespace().sysctl(&format!("net/{name}")).unwrap()
    }
}

impl Place for Node {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }
}

impl Place for Pod {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }
}

/// Runs a program that must succeed; returns its output.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
