//! The traces of a pod's network on its host.

use anyhow::Result;
use tweed_lab::{Container, Host};

/// Files that exist with and without pods.
const FIXTURES: [&str; 4] = ["last_reserved_ip.0", "last_reserved_ip.1", "lock", ".lock"];

/// Folders in which the plugins and the runtime keep a file for each pod.
const FOLDERS: [&str; 4] =
    ["/var/lib/cni/networks/cbr0", "/var/lib/cni/flannel", "/var/lib/cni/results", "/run/netns"];

/// Traces of any pod, and rules with an address or the name of one of these.
pub fn of(host: &Host, containers: &[Container]) -> Result<Vec<String>> {
    let mut traces = Vec::new();
    for folder in FOLDERS {
        let names = host.list(folder)?.into_iter();
        let names = names.filter(|name| !FIXTURES.contains(&name.as_str()));
        traces.extend(names.map(|name| format!("{folder}/{name}")));
    }
    let links = host.node().links()?.into_iter().map(|link| link.name);
    traces.extend(links.filter(|name| name.starts_with("veth")));
    let words = containers.iter().flat_map(words).collect::<Vec<_>>();
    let is_theirs = |rule: &&str| words.iter().any(|word| rule.contains(word));
    for program in ["iptables-save", "ip6tables-save", "nft list ruleset"] {
        let rules = host.run("sh", &["-c", program])?;
        traces.extend(rules.lines().filter(is_theirs).map(str::to_owned));
    }
    Ok(traces)
}

/// Texts that a rule for the container contains.
fn words(container: &Container) -> impl Iterator<Item = String> {
    container.addresses.iter().map(ToString::to_string).chain([container.id.clone()])
}
