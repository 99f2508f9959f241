//! What the kernel holds, as iproute2 and nft tell it.

use std::process::Command;

use serde_json::Value;

use super::{Node, Pod, eventually};

/// Somewhere with interfaces.
pub(crate) trait Place {
    fn name(&self) -> &str;

    /// `ip` with the words of `arguments`, in here.
    fn ip(&self, arguments: &str) -> String {
        run(Command::new("ip").args(["-netns", self.name()]).args(arguments.split(' ')))
    }

    /// The objects that `ip -json` lists.
    fn ip_json(&self, arguments: &str) -> Vec<Value> {
        let text = self.ip(&format!("-json -details {arguments}"));
        if text.trim().is_empty() { Vec::new() } else { serde_json::from_str(&text).unwrap() }
    }

    /// The names of all links but the loopback.
    fn links(&self) -> Vec<String> {
        let links = self.ip_json("link show");
        let names = links.iter().map(|link| link["ifname"].as_str().unwrap().to_owned());
        names.filter(|name| name != "lo").collect()
    }

    /// A program with its arguments, in here; whether it succeeds, and what it prints.
    fn exec(&self, line: &str) -> (bool, String) {
        let words = line.split(' ');
        let output =
            Command::new("ip").args(["netns", "exec", self.name()]).args(words).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Whether `address` answers, which a busy machine may take long for.
    fn pings(&self, address: &str) -> bool {
        self.exec(&format!("ping -n -c 1 -W 10 {address}")).0
    }

    /// Waits until frames pass the link `name`.
    fn is_operational(&self, name: &str) {
        let shown = || self.ip(&format!("link show {name}"));
        eventually(|| shown().contains("state UP"), shown);
        // The kernel holds a lock until it is done with what it shows; this takes the same one.
        self.ip("link set lo up");
    }

    fn sysctl(&self, name: &str) -> String {
        self.exec(&format!("cat /proc/sys/net/{name}")).1.trim().to_owned()
    }
}

impl Place for Node {
    fn name(&self) -> &str {
        self.netns()
    }
}

impl Place for Pod {
    fn name(&self) -> &str {
        self.netns()
    }
}

/// Runs a program that has to succeed; returns what it prints.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
