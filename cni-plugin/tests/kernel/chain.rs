//! Debian's plugins after tweed's in a chain; each gets the result of the one before.

use serde_json::{Value, json};

use crate::harness::kernel::Place;
use crate::harness::{Answer, IPV4, Node, PLUGINS, Pod};

fn behind(node: &Node, command: &str, pod: &Pod, plugin: &str, config: &Value) -> Answer {
    let program = format!("{PLUGINS}/{plugin}");
    node.call(command, pod, config).program(program.as_ref()).run()
}

/// The config of a plugin after flannel, with the result `previous`.
fn chained(plugin: &str, previous: &Value, more: Value) -> Value {
    let mut config = json!({
        "cniVersion": "1.0.0", "name": "cbr0", "type": plugin, "prevResult": previous,
    });
    let Value::Object(more) = more else { panic!("no object") };
    config.as_object_mut().unwrap().extend(more);
    config
}

#[test]
fn portmap_forwards_a_port_of_the_host_to_the_pod() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    let result = node.add(&pod, &node.config("1.0.0")).result();
    let mappings = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    let config = chained("portmap", &result, json!({"runtimeConfig": {"portMappings": mappings}}));
    assert_eq!(behind(&node, "ADD", &pod, "portmap", &config).result()["ips"], result["ips"]);
    let (_, rules) = node.exec("iptables -t nat -S");
    assert!(rules.contains("--to-destination 10.244.7.2:80"), "{rules}");
    behind(&node, "DEL", &pod, "portmap", &config).is_silent();
    node.del(&pod, &node.config("1.0.0")).is_silent();
}

#[test]
fn bandwidth_finds_the_port_of_the_pod() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    let result = node.add(&pod, &node.config("1.0.0")).result();
    let limit = json!({"ingressRate": 8_000_000, "ingressBurst": 8_000_000});
    let config = chained("bandwidth", &result, limit);
    let _ = behind(&node, "ADD", &pod, "bandwidth", &config).result();
    let port = result["interfaces"][1]["name"].as_str().unwrap();
    let (_, shaped) = node.exec(&format!("tc qdisc show dev {port}"));
    assert!(shaped.contains("tbf"), "{shaped}");
    behind(&node, "DEL", &pod, "bandwidth", &config).is_silent();
}

#[test]
fn tuning_changes_the_pod_and_check_of_both_passes() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    let config = node.config("1.0.0");
    let result = node.add(&pod, &config).result();
    let more =
        json!({"mac": "0a:00:00:00:00:99", "sysctl": {"net.ipv4.conf.eth0.log_martians": "1"}});
    let tuning = chained("tuning", &result, more.clone());
    let tuned = behind(&node, "ADD", &pod, "tuning", &tuning).result();
    assert_eq!(tuned["interfaces"][2]["mac"], "0a:00:00:00:00:99");
    let mut ours = config.clone();
    ours["prevResult"] = tuned.clone();
    node.call("CHECK", &pod, &ours).run().is_silent();
    behind(&node, "CHECK", &pod, "tuning", &chained("tuning", &tuned, more)).is_silent();
}

#[test]
fn firewall_lets_the_pods_traffic_through() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    let result = node.add(&pod, &node.config("1.0.0")).result();
    let config = chained("firewall", &result, json!({"backend": "iptables"}));
    let _ = behind(&node, "ADD", &pod, "firewall", &config).result();
    let (_, rules) = node.exec("iptables -S CNI-FORWARD");
    assert!(rules.contains("-s 10.244.7.2/32 -j ACCEPT"), "{rules}");
    behind(&node, "DEL", &pod, "firewall", &config).is_silent();
}
