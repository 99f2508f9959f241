//! The bridge itself: its kind, its MAC address and its addresses.

use serde_json::{Value, json};

use crate::harness::kernel::Place;
use crate::harness::{IPV4, Node};

fn mac(node: &Node) -> Value {
    node.ip_json("link show cni0")[0]["address"].clone()
}

#[test]
fn another_kind_of_link_is_not_used_as_bridge() {
    let node = Node::new(IPV4);
    node.ip("link add cni0 type veth peer name other");
    let (_, error) = node.add(&node.pod(), &node.config("1.0.0")).error();
    assert_eq!(error, "\"cni0\" already exists but is not a bridge");
    assert_eq!(node.reservations(), []);
}

#[test]
fn macs_of_ports_do_not_change_the_mac_of_the_bridge() {
    let node = Node::new(IPV4);
    let config = node.config("1.0.0");
    let _ = node.add(&node.pod(), &config).result();
    let before = mac(&node);
    let mut low = config.clone();
    low["runtimeConfig"] = json!({"mac": "02:00:00:00:00:01"});
    let pod = node.pod();
    let result = node.add(&pod, &low).result();
    assert_eq!(result["interfaces"][2]["mac"], "02:00:00:00:00:01");
    assert_eq!(mac(&node), before);
}

/// An ADD of another plugin that failed midway, or an administrator, has given it the address; the kernel
/// gives such a bridge the lowest MAC of its ports, and none when it has lost all ports.
#[test]
fn a_bridge_of_another_program_keeps_its_mac_from_the_first_pod_on() {
    for changes in [
        &["address add 10.244.7.1/24 dev cni0"][..],
        &[
            "link add first type veth peer name end",
            "link set first master cni0",
            "link delete first",
        ],
    ] {
        let node = Node::new(IPV4);
        node.ip("link add cni0 type bridge");
        for change in changes {
            node.ip(change);
        }
        let mut config = node.config("1.0.0");
        let result = node.add(&node.pod(), &config).result();
        let before = mac(&node);
        assert_eq!(result["interfaces"][0]["mac"], before);
        assert_ne!(before, "00:00:00:00:00:00");
        config["runtimeConfig"] = json!({"mac": "02:00:00:00:00:01"});
        let low = node.pod();
        let _ = node.add(&low, &config).result();
        node.ip("link add lowest address 02:00:00:00:00:00 type veth peer name end");
        node.ip("link set lowest master cni0");
        node.del(&low, &config).is_silent();
        assert_eq!(mac(&node), before, "{changes:?}");
    }
}

#[test]
fn another_subnet_moves_the_bridge_once_no_pod_uses_the_former_one() {
    let node = Node::new(IPV4);
    let config = node.config("1.0.0");
    let (old, new) = (node.pod(), node.pod());
    let _ = node.add(&old, &config).result();
    node.write_subnet_env(&IPV4.replace("10.244.7.1", "10.244.9.1"));
    let (_, error) = node.add(&new, &config).error();
    let known = "failed to set bridge addr: \"cni0\" already has an IP address different from 10.244.9.1/24";
    assert!(error.starts_with(known), "{error}");
    assert!(error.contains("10.244.7.1/24"), "{error}");
    assert_eq!(node.reservations().len(), 1);

    node.del(&old, &config).is_silent();
    assert_eq!(node.add(&new, &config).address(), "10.244.9.3/24");
    let addresses = node.ip_json("-4 address show dev cni0");
    assert_eq!(addresses[0]["addr_info"].as_array().unwrap().len(), 1);
    assert!(new.pings("10.244.9.1"));
}

#[test]
fn force_address_moves_the_bridge_under_running_pods() {
    let node = Node::new(IPV4);
    let mut config = node.config("1.0.0");
    config["delegate"]["forceAddress"] = json!(true);
    let _ = node.add(&node.pod(), &config).result();
    node.write_subnet_env(&IPV4.replace("10.244.7.1", "10.244.9.1"));
    assert_eq!(node.add(&node.pod(), &config).address(), "10.244.9.2/24");
}
