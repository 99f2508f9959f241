//! What a pod's network leaves on its host.

use anyhow::Result;
use tweed_lab::{Container, Host};

/// Files that are there whether pods are or not.
const FIXTURES: [&str; 4] = ["last_reserved_ip.0", "last_reserved_ip.1", "lock", ".lock"];

/// Where the plugins and the runtime keep something for each pod.
const FOLDERS: [&str; 4] =
    ["/var/lib/cni/networks/cbr0", "/var/lib/cni/flannel", "/var/lib/cni/results", "/run/netns"];

/// Whatever there is of any pod, and rules with an address or the name of one of these.
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

/// What a rule for the container has in it.
fn words(container: &Container) -> impl Iterator<Item = String> {
    container.addresses.iter().map(ToString::to_string).chain([container.id.clone()])
}
