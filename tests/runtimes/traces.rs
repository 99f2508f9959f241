//! What a pod's network leaves on its host.

use anyhow::Result;
use tweed_lab::{Container, Host};

/// Files that are there whether pods are or not.
const FIXTURES: [&str; 3] = ["last_reserved_ip.0", "lock", ".lock"];

/// Where the plugins and the runtime keep something for each pod.
const FOLDERS: [&str; 4] =
    ["/var/lib/cni/networks/cbr0", "/var/lib/cni/flannel", "/var/lib/cni/results", "/run/netns"];

/// Whatever there is of any pod, and rules with the address or the name of this one.
pub fn of(host: &Host, container: &Container) -> Result<Vec<String>> {
    let mut traces = Vec::new();
    for folder in FOLDERS {
        let names = host.list(folder)?.into_iter();
        let names = names.filter(|name| !FIXTURES.contains(&name.as_str()));
        traces.extend(names.map(|name| format!("{folder}/{name}")));
    }
    let ports = host.node().ip("-oneline link show master cni0")?;
    traces.extend(ports.lines().map(str::to_owned));
    let address = container.address.to_string();
    let rules = host.run("nft", &["list", "ruleset"])?;
    let is_its = |rule: &&str| rule.contains(&address) || rule.contains(&container.id);
    traces.extend(rules.lines().filter(is_its).map(|rule| rule.trim().to_owned()));
    Ok(traces)
}
