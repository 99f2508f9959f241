//! tweed's and Debian's plugins create the same, and each can continue with pods of the other.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::ensure;
use serde_json::{Value, json};
use tweed_lab::eventually;

use crate::harness::kernel::Place;
use crate::harness::{Answer, DUAL, IPV4, Node, Plugin, Pod, TIMEOUT, files_in, patiently};

/// The state of a pod, in lines, without names and numbers that differ from pod to pod.
type Picture = BTreeSet<String>;

fn masquerading(env: &str) -> String {
    env.replace("FLANNEL_IPMASQ=true", "FLANNEL_IPMASQ=false")
}

/// The config for both; flannel's own part is tested elsewhere.
fn config(node: &Node, version: &str) -> Value {
    let mut config = node.config(version);
    config["delegate"]["ipMasqBackend"] = json!("iptables");
    config
}

impl Plugin {
    fn call(self, node: &Node, command: &str, pod: &Pod, config: &Value) -> Answer {
        match self {
            Self::Ours => node.call(command, pod, config).run(),
            Self::Debian => {
                let delegate = delegate(node, config);
                let program = crate::harness::PLUGINS.to_owned() + "/bridge";
                let call = |command: &str| {
                    node.call(command, pod, &delegate).program(program.as_ref()).run()
                };
                if command == "ADD" { patiently(node, call) } else { call(command) }
            }
        }
    }
}

/// The config that flannel passes to the bridge.
fn delegate(node: &Node, config: &Value) -> Value {
    let env = std::fs::read_to_string(node.subnet_file()).unwrap();
    let value = |key: &str| {
        env.lines().find_map(|line| line.strip_prefix(&format!("{key}="))).map(str::to_owned)
    };
    let subnets = ["FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET"].into_iter().filter_map(value);
    let base =
        |subnet: String| json!([{"subnet": subnet.replace("1/", "0/").replace("::0/", "::/")}]);
    let networks = ["FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK"].into_iter().filter_map(value);
    let mut delegate = config["delegate"].clone();
    delegate["cniVersion"] = config["cniVersion"].clone();
    delegate["name"] = config["name"].clone();
    delegate["type"] = json!("bridge");
    delegate["isGateway"] = json!(true);
    if delegate.get("mtu").is_none() {
        delegate["mtu"] = json!(1450);
    }
    delegate["ipMasq"] = json!(value("FLANNEL_IPMASQ").unwrap() != "true");
    delegate["ipam"] = json!({
        "type": "host-local",
        "dataDir": config["ipam"]["dataDir"],
        "ranges": subnets.map(base).collect::<Vec<_>>(),
        "routes": networks.map(|network| json!({"dst": network})).collect::<Vec<_>>(),
    });
    if let Some(previous) = config.get("prevResult") {
        delegate["prevResult"] = previous.clone();
    }
    delegate
}

fn picture(node: &Node, pod: &Pod, answer: &Answer) -> Picture {
    let (_, ports) = node.exec("bridge -json -details link show");
    let mut lines = Picture::new();
    let mut put = |what: &str, value: &Value| flatten(what, &mask(value, node, pod), &mut lines);
    put("result", &answer.result());
    put("ports", &serde_json::from_str(&ports).unwrap());
    for list in ["link show", "address show", "route show table all", "-6 route show table all"] {
        for (place, objects) in [("node", node.ip_json(list)), ("pod", pod.ip_json(list))] {
            for object in objects {
                put(&format!("{place} {list} {}", name(&object)), &object);
            }
        }
    }
    put("sysctls", &json!(sysctls(node, pod)));
    put("store", &json!(store(node, pod)));
    lines
}

fn name(object: &Value) -> String {
    let text = |key: &str| object[key].as_str().unwrap_or_default();
    let name = ["ifname", "dst", "dev"].map(text).join(" ");
    if name.contains("veth") { "VETH".to_owned() } else { name }
}

fn flatten(path: &str, value: &Value, lines: &mut Picture) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                flatten(&format!("{path}.{key}"), value, lines);
            }
        }
        Value::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                flatten(&format!("{path}[{index}]"), value, lines);
            }
        }
        value => drop(lines.insert(format!("{path}: {value}"))),
    }
}

fn sysctls(node: &Node, pod: &Pod) -> BTreeMap<String, String> {
    let of_node = ["ipv4/ip_forward", "ipv6/conf/all/forwarding", "ipv6/conf/cni0/accept_ra"];
    let of_pod = [
        "ipv4/conf/eth0/arp_notify",
        "ipv6/conf/eth0/accept_dad",
        "ipv6/conf/eth0/disable_ipv6",
        "ipv6/conf/lo/disable_ipv6",
    ];
    let node = of_node.map(|name| (name.to_owned(), node.sysctl(name)));
    let pod = of_pod.map(|name| (name.to_owned(), pod.sysctl(name)));
    node.into_iter().chain(pod).collect()
}

fn store(node: &Node, pod: &Pod) -> BTreeMap<String, String> {
    let content = |name: &String| std::fs::read_to_string(node.store().join(name)).unwrap();
    let files = files_in(&node.store()).into_iter();
    files.map(|name| (name.clone(), content(&name).replace(&pod.id, "POD"))).collect()
}

/// Masks random values, times and counters, and the differences of tweed's plugin in docs/cni.md.
fn mask(value: &Value, node: &Node, pod: &Pod) -> Value {
    const VOLATILE: &[&str] = &[
        "ifindex",
        "link_index",
        "link_netnsid",
        "mac",
        "address",
        "ifalias",
        "nodad",
        "root_id",
        "bridge_id",
        "gc_timer",
        "hello_timer",
        "tcn_timer",
        "topology_change_timer",
        "hold_timer",
        "message_age_timer",
        "forward_delay_timer",
        "designated_bridge",
        "designated_root",
        "id",
        "topology_change_detected",
        "cacheinfo",
        "valid_life_time",
        "preferred_life_time",
        // Debian's version leaves it at zero, later ones at the kernel's default.
        "txqlen",
        "expires",
        "tentative",
        "topology_change",
    ];
    match value {
        Value::Object(object) => object
            .iter()
            .filter(|(key, value)| {
                // IP addresses are distinguished; hardware addresses are random.
                let is_hardware = value.as_str().is_some_and(|text| text.matches(':').count() == 5);
                !VOLATILE.contains(&key.as_str()) || (*key == "address" && !is_hardware)
            })
            .map(|(key, value)| (key.clone(), mask(value, node, pod)))
            .collect(),
        Value::Array(list) => {
            let kept = list.iter().filter(|one| !is_random(one));
            kept.map(|one| mask(one, node, pod)).collect()
        }
        Value::String(text) if text.starts_with("veth") => json!("VETH"),
        Value::String(text) => {
            json!(text.replace(pod.netns(), "POD").replace(node.netns(), "NODE"))
        }
        other => other.clone(),
    }
}

/// Whether it is an address that the kernel derives from a random MAC.
fn is_random(value: &Value) -> bool {
    value.get("local").and_then(Value::as_str).is_some_and(|local| local.starts_with("fe80"))
}

/// A pod on its own node, after an ADD.
struct Made {
    node: Node,
    pod: Pod,
    answer: Answer,
}

impl Made {
    fn by(plugin: Plugin, env: &str, version: &str, change: &impl Fn(&mut Value)) -> Self {
        let node = Node::new(env);
        let pod = node.pod();
        let mut config = config(&node, version);
        change(&mut config);
        let answer = plugin.call(&node, "ADD", &pod, &config);
        Self { node, pod, answer }
    }

    /// Without link-local addresses, and without routes to them.
    fn picture(&self) -> Picture {
        let mut picture = picture(&self.node, &self.pod, &self.answer);
        picture.retain(|line| !line.contains("fe80") && !line.contains("ff00"));
        picture
    }
}

#[track_caller]
fn are_alike(env: &str, version: &str, change: impl Fn(&mut Value)) {
    let ours = Made::by(Plugin::Ours, env, version, &change);
    let debians = Made::by(Plugin::Debian, env, version, &change);
    // The kernel may apply further changes for a while after both.
    eventually(TIMEOUT, || {
        let (ours, debians) = (ours.picture(), debians.picture());
        assert!(ours.len() > 100);
        let difference: Picture = ours.symmetric_difference(&debians).cloned().collect();
        ensure!(difference.is_empty(), "{difference:#?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn one_family_is_set_up_the_same() {
    are_alike(IPV4, "0.3.1", |_| {});
}

#[test]
fn both_families_are_set_up_the_same() {
    are_alike(DUAL, "1.0.0", |_| {});
}

#[test]
fn the_first_version_gets_the_same_answer() {
    are_alike(DUAL, "0.2.0", |_| {});
}

#[test]
fn a_bridge_without_hairpin_default_route_or_gateway_is_set_up_the_same() {
    are_alike(IPV4, "0.4.0", |config| config["delegate"] = json!({"mtu": 1300}));
    are_alike(DUAL, "1.0.0", |config| config["delegate"] = json!({"promiscMode": true}));
}

#[test]
fn requests_of_the_runtime_are_set_up_the_same() {
    are_alike(IPV4, "1.0.0", |config| {
        config["delegate"]["runtimeConfig"] =
            json!({"mac": "0a:00:00:00:00:07", "ips": ["10.244.7.99"]});
        config["delegate"]["dns"] = json!({"nameservers": ["192.0.2.1"], "search": ["a.example"]});
    });
}

#[test]
fn rules_of_iptables_are_the_same() {
    let rules = [Plugin::Ours, Plugin::Debian].map(|plugin| {
        let node = Node::new(&masquerading(DUAL));
        let pod = node.pod();
        let _ = plugin.call(&node, "ADD", &pod, &config(&node, "1.0.0")).result();
        ["iptables", "ip6tables"].map(|program| {
            let (done, rules) = node.exec(&format!("{program} -t nat -S"));
            assert!(done);
            // Names of chains are derived from the id of the pod.
            let words = rules.replace(&pod.id, "POD");
            let mut lines: Vec<_> = words.lines().map(without_chain_names).collect();
            lines.sort();
            lines
        })
    });
    assert_eq!(rules[0], rules[1]);
    assert!(rules[0][0].iter().any(|rule| rule.contains("MASQUERADE")));
}

fn without_chain_names(rule: &str) -> String {
    let masked = rule.split(' ').map(|word| if word.starts_with("CNI-") { "CHAIN" } else { word });
    masked.collect::<Vec<_>>().join(" ")
}

/// One plugin adds a pod, the other checks and removes it, and adds the next.
#[track_caller]
fn swap(env: &str, from: Plugin, to: Plugin) {
    let node = Node::new(env);
    let (first, second) = (node.pod(), node.pod());
    let config = config(&node, "1.0.0");
    let mut later = config.clone();
    later["prevResult"] = from.call(&node, "ADD", &first, &config).result();
    let other = to.call(&node, "ADD", &second, &config);
    assert_eq!(other.address(), "10.244.7.3/24");
    assert!(second.pings("10.244.7.2"));
    if from == Plugin::Debian {
        keep_as_flannel_does(&node, &first, &config);
    }
    match to {
        Plugin::Ours => to.call(&node, "CHECK", &first, &later).is_silent(),
        Plugin::Debian => debian_judges_alike(&node, &first, &later, &second, &other),
    }
    to.call(&node, "DEL", &first, &later).is_silent();
    assert_eq!(first.links(), Vec::<String>::new());
    let owners: Vec<_> = node.reservations().into_iter().map(|(_, owner)| owner).collect();
    assert!(owners.iter().all(|owner| *owner == format!("{}\r\neth0", second.id)), "{owners:?}");
    assert!(!rules(&node).contains(&first.id));
    assert!(second.pings("10.244.7.1"));

    later["prevResult"] = other.result();
    from.call(&node, "DEL", &second, &later).is_silent();
    assert_eq!(node.reservations(), []);
    assert!(!rules(&node).contains(&second.id));
    assert_eq!(node.links(), ["cni0"]);
}

/// Debian's CHECK finds no route without a gateway in a result, not even in its own.
fn debian_judges_alike(node: &Node, ours: &Pod, config: &Value, its: &Pod, its_answer: &Answer) {
    let mut its_config = config.clone();
    its_config["prevResult"] = its_answer.result();
    assert_eq!(
        Plugin::Debian.call(node, "CHECK", ours, config),
        Plugin::Debian.call(node, "CHECK", its, &its_config)
    );
}

fn rules(node: &Node) -> String {
    ["iptables -t nat -S", "ip6tables -t nat -S"].map(|line| node.exec(line).1).concat()
}

/// Debian has no flannel plugin: this writes its record.
fn keep_as_flannel_does(node: &Node, pod: &Pod, config: &Value) {
    std::fs::create_dir_all(node.state_dir()).unwrap();
    std::fs::write(node.state_dir().join(&pod.id), delegate(node, config).to_string()).unwrap();
}

#[test]
fn debians_plugins_continue_with_pods_of_tweed() {
    swap(IPV4, Plugin::Ours, Plugin::Debian);
    swap(DUAL, Plugin::Ours, Plugin::Debian);
    swap(&masquerading(DUAL), Plugin::Ours, Plugin::Debian);
}

#[test]
fn tweed_continues_with_pods_of_debians_plugins() {
    swap(IPV4, Plugin::Debian, Plugin::Ours);
    swap(DUAL, Plugin::Debian, Plugin::Ours);
    swap(&masquerading(DUAL), Plugin::Debian, Plugin::Ours);
}

#[test]
fn rules_of_debians_plugins_are_removed_without_the_pods_namespace() {
    let node = Node::new(&masquerading(DUAL));
    let pod = node.pod();
    let mut config = node.config("1.0.0");
    let _ = Plugin::Debian.call(&node, "ADD", &pod, &config).result();
    keep_as_flannel_does(&node, &pod, &config);
    pod.lose_netns();
    assert!(rules(&node).contains(&pod.id));
    config["delegate"] = json!({});
    node.del(&pod, &config).is_silent();
    assert!(!rules(&node).contains(&pod.id));
    assert_eq!(node.reservations(), []);
}
