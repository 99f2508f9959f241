//! What flanneld and `tweedd` write for the same cluster, field by field.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::{Context, Result, ensure};
use ipnetwork::IpNetwork;
use serde_json::Value;
use tweed_lab::{Backend, Family, Node, Stack};

use super::Programs;
use super::site::{Program, SUBNETS, Setting, Site};
use super::sources;
use crate::verdict::Counted;

/// Runs flanneld; its entries are compared with those of [`TWEEDD`].
const FLANNELD: usize = 0;
const TWEEDD: usize = 1;
/// One peer of each program, for both.
const PEERS: [usize; 2] = [2, 3];

/// By name, such as `route to n3, protocol`.
type Fields = BTreeMap<String, String>;

/// A field that may differ.
struct Explained {
    /// Of its name: the begin, and a part.
    name: (&'static str, &'static str),
    reason: &'static str,
    applies: fn(Setting) -> bool,
}

const EXPLAINED: [Explained; 6] = [
    Explained { name: ("route to", ", nh_info, "), reason: NEXTHOP, applies: |_| true },
    Explained { name: ("route to", ", nhid"), reason: NEXTHOP, applies: |_| true },
    Explained {
        name: ("route to", ", protocol"),
        reason: "routes of tweedd have protocol 241, as their mark",
        applies: |_| true,
    },
    Explained { name: ("subnet.env", "FLANNEL_MTU"), reason: MTU, applies: has_two_tunnels },
    Explained { name: ("net/ipv6/conf/cni0", "mtu"), reason: MTU, applies: has_two_tunnels },
    Explained {
        name: ("destinations", "IPv6, on lo"),
        reason: "without a tunnel, tweedd keeps its address on lo, for probes",
        applies: |setting| setting.backend == Backend::HostGw,
    },
];
const NEXTHOP: &str = "routes of tweedd have a nexthop object, which can change without a gap";
const MTU: &str = "the MTU of pods fits into the IPv6 tunnel, too";

fn has_two_tunnels(setting: Setting) -> bool {
    setting.backend == Backend::Vxlan && setting.stack == Stack::Dual
}

pub(super) fn compare(programs: &Programs, setting: Setting) -> Result<Counted> {
    use Program::{Flanneld, Tweedd};
    let site = Site::start(programs, setting, &[Flanneld, Tweedd, Flanneld, Tweedd])?;
    site.wait_until_all_answer()?;
    let theirs = fields(&site, FLANNELD, TWEEDD)?;
    let ours = fields(&site, TWEEDD, FLANNELD)?;
    let names: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
    let mut differences = Vec::new();
    let mut reasons = BTreeMap::<&str, usize>::new();
    for name in &names {
        let (theirs, ours) = (theirs.get(*name), ours.get(*name));
        if theirs == ours {
            continue;
        }
        match explanation(name, setting) {
            Some(reason) => *reasons.entry(reason).or_default() += 1,
            None => {
                differences.push(format!("{name}: {theirs:?} with flanneld, {ours:?} with tweedd"));
            }
        }
    }
    ensure!(differences.is_empty(), "unexplained:\n{}", differences.join("\n"));
    let sources = sources::compare(&site, [FLANNELD, TWEEDD])?;
    let reasons: Vec<_> =
        reasons.iter().map(|(reason, count)| format!("{reason} ({count})")).collect();
    let remark = format!(
        "{} fields; different: {}. {sources}",
        names.len(),
        if reasons.is_empty() { "none".to_owned() } else { reasons.join(", ") }
    );
    Ok(Counted { remark, ..Counted::default() })
}

fn explanation(name: &str, setting: Setting) -> Option<&'static str> {
    let fits = |it: &&Explained| {
        let (begin, part) = it.name;
        name.starts_with(begin) && name.contains(part) && (it.applies)(setting)
    };
    EXPLAINED.iter().find(fits).map(|it| it.reason)
}

/// All fields of a node; `partner` is the node that it is compared with.
fn fields(site: &Site, index: usize, partner: usize) -> Result<Fields> {
    let labels = Labels::of(site, index, partner)?;
    let node = site.node(index)?;
    let mut fields = Fields::new();
    let mut add = |name: &str, value: &Value| labels.flatten(name, value, &mut fields);
    let lease = site.lease(index)?;
    let subnets = site.subnets(index)?;
    let key = subnets.iter().map(|it| it.to_string().replace('/', "-")).collect::<Vec<_>>();
    add("lease, key", &(lease.key == format!("{SUBNETS}{}", key.join("&"))).into());
    add("lease, expires", &(lease.lease != 0).into());
    add("lease", &serde_json::from_str(&lease.value).context(lease.value)?);
    let env = std::fs::read_to_string(node.subnet_file())?;
    for (number, line) in (1..).zip(env.lines()) {
        let (key, value) = line.split_once('=').context("subnet.env")?;
        add(&format!("subnet.env, line {number}"), &key.into());
        add(&format!("subnet.env, {key}"), &value.into());
    }
    for (device, text) in devices(node, site.setting)? {
        add(&device, &text);
    }
    for peer in PEERS {
        for (name, entry) in entries_of_peer(site, node, peer)? {
            add(&name, &entry);
        }
    }
    for family in site.setting.stack.families() {
        let routes: Vec<Value> =
            node.namespace().ip_json(&format!("{} route show", family.flag()))?;
        for device in ["lo", ""] {
            let is_of = |route: &&Value| (route["dev"] == "lo") == (device == "lo");
            let destinations = routes.iter().filter(is_of).filter_map(|it| it["dst"].as_str());
            let mut destinations: Vec<String> = destinations.map(|it| labels.label(it)).collect();
            destinations.sort_unstable();
            let suffix = if device.is_empty() { String::new() } else { format!(", on {device}") };
            add(&format!("destinations, {family}{suffix}"), &destinations.join(" ").into());
        }
    }
    Ok(fields)
}

/// Link, addresses and kernel parameters of the underlay and of the devices of the tunnel.
fn devices(node: &Node, setting: Setting) -> Result<Vec<(String, Value)>> {
    let mut devices = vec!["all", "default", "eth0", "lo", "cni0"];
    if setting.backend == Backend::Vxlan {
        devices.push("flannel.1");
        if setting.stack.families().contains(&Family::V6) {
            devices.push("flannel-v6.1");
        }
    }
    let mut found = Vec::new();
    for device in devices {
        for folder in ["net/ipv4/conf", "net/ipv6/conf"] {
            let values = parameters(node, &format!("/proc/sys/{folder}/{device}"))?;
            found.push((format!("{folder}/{device}"), values));
        }
        if device.starts_with("flannel") {
            let links: Vec<Value> =
                node.namespace().ip_json(&format!("-details address show dev {device}"))?;
            let mut link = links.into_iter().next().with_context(|| device.to_owned())?;
            if let Some(object) = link.as_object_mut() {
                object.retain(|key, _| !["ifindex", "link_index"].contains(&key.as_str()));
                // The kernel makes these of the MAC address.
                if let Some(list) = object.get_mut("addr_info").and_then(Value::as_array_mut) {
                    list.retain(|address| address["scope"] != "link");
                }
            }
            found.push((format!("device {device}"), link));
        }
    }
    Ok(found)
}

fn parameters(node: &Node, folder: &str) -> Result<Value> {
    let read = || -> Result<Value> {
        let mut values = serde_json::Map::new();
        for file in std::fs::read_dir(folder).with_context(|| folder.to_owned())? {
            let path = file?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // Some can only be written.
            if let Ok(text) = std::fs::read_to_string(&path) {
                values.insert(name, text.trim().into());
            }
        }
        Ok(values.into())
    };
    node.namespace().within(read)?
}

/// Routes, neighbours and forwarding entries towards a peer.
fn entries_of_peer(site: &Site, node: &Node, peer: usize) -> Result<Vec<(String, Value)>> {
    let name = site.node(peer)?.name();
    let (mut found, space) = (Vec::new(), node.namespace());
    for subnet in site.subnets(peer)? {
        let family = Family::of(subnet.ip());
        let routes: Vec<Value> =
            space.ip_json(&format!("-details {} route show exact {subnet}", family.flag()))?;
        found.push((format!("route to {name}, {family}"), routes.into()));
        if site.setting.backend == Backend::HostGw {
            continue;
        }
        let device = device(family);
        let mut neighbours: Vec<Value> = space.ip_json(&format!("neighbour show dev {device}"))?;
        neighbours.retain(|it| it["dst"] == subnet.network().to_string());
        found.push((format!("neighbour {name}, {family}"), neighbours.into()));
        let mac = mac(site.node(peer)?, device)?;
        let mut fdb: Vec<Value> = space.bridge_json(&format!("fdb show dev {device}"))?;
        fdb.retain(|it| it["mac"] == mac.as_str());
        found.push((format!("fdb {name}, {family}"), fdb.into()));
    }
    Ok(found)
}

fn device(family: Family) -> &'static str {
    match family {
        Family::V4 => "flannel.1",
        Family::V6 => "flannel-v6.1",
    }
}

fn mac(node: &Node, device: &str) -> Result<String> {
    Ok(node.link(device)?.with_context(|| format!("{}: no {device}", node.name()))?.mac)
}

/// Names for what must differ between two nodes: their addresses.
struct Labels {
    labels: HashMap<String, String>,
}

impl Labels {
    fn of(site: &Site, own: usize, partner: usize) -> Result<Self> {
        let mut labels = HashMap::new();
        for index in 0..site.nodes.len() {
            let node = site.node(index)?;
            let name = match index {
                _ if index == own => "own",
                _ if index == partner => "partner",
                _ => node.name(),
            };
            let mut add = |text: String, what: &str| labels.insert(text, format!("{name} {what}"));
            for gateway in node.subnet_env()?.gateways {
                let subnet = IpNetwork::new(gateway.network(), gateway.prefix())?;
                let family = Family::of(gateway.ip());
                add(gateway.to_string(), "gateway");
                add(gateway.ip().to_string(), "gateway's address");
                add(subnet.to_string(), "subnet");
                add(subnet.network().to_string(), "base");
                add(node.address(family)?.to_string(), "address");
                if site.setting.backend == Backend::Vxlan {
                    add(mac(node, device(family))?, "MAC");
                }
            }
        }
        Ok(Self { labels })
    }

    fn label(&self, text: &str) -> String {
        self.labels.get(text).cloned().unwrap_or_else(|| text.to_owned())
    }

    /// One field per value; texts that name a node are replaced, lists of texts are sorted.
    fn flatten(&self, name: &str, value: &Value, into: &mut Fields) {
        match value {
            Value::Object(fields) => {
                for (key, value) in fields {
                    self.flatten(&format!("{name}, {key}"), value, into);
                }
            }
            Value::Array(items) if items.iter().all(Value::is_string) => {
                let mut texts: Vec<String> =
                    items.iter().filter_map(Value::as_str).map(|it| self.label(it)).collect();
                texts.sort_unstable();
                into.insert(name.to_owned(), texts.join(" "));
            }
            Value::Array(items) => {
                into.insert(format!("{name}, count"), items.len().to_string());
                for (number, item) in (1..).zip(items) {
                    self.flatten(&format!("{name}, {number}"), item, into);
                }
            }
            Value::String(text) => {
                into.insert(name.to_owned(), self.label(text));
            }
            other => {
                into.insert(name.to_owned(), other.to_string());
            }
        }
    }
}
