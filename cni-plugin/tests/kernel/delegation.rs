//! Calls of other plugins, as delegates and for address management.

use std::fs;

use serde_json::{Value, json};
use tweed_lab::{eventually, install};

use crate::harness::kernel::Place;
use crate::harness::{Answer, DUAL, IPV4, Node, PLUGINS, Pod, TIMEOUT, patiently};

/// A plugin that records its calls, and then runs `script`.
fn fake(node: &Node, name: &str, script: &str) {
    let home = node.home.path();
    let (path, log) = (home.join(name), home.join("log"));
    let log = log.display();
    let text = format!(
        "#!/bin/sh\nconfig=$(cat)\n\
         echo \"$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME [$CNI_NETNS] $config\" >>{log}\n{script}\n"
    );
    install(&text, &path).unwrap();
}

/// The recorded calls: command and config.
fn calls(node: &Node) -> Vec<(String, Value)> {
    let log = fs::read_to_string(node.home.path().join("log")).unwrap_or_default();
    log.lines()
        .map(|line| {
            let (call, config) = line.split_once(" {").unwrap();
            (call.to_owned(), serde_json::from_str(&format!("{{{config}")).unwrap())
        })
        .collect()
}

fn path(node: &Node) -> String {
    format!("{}:{PLUGINS}", node.home.path().display())
}

fn config_of(node: &Node, kind: &str) -> Value {
    let mut config = node.config("1.1.0");
    config["delegate"] = json!({ "type": kind, "mine": true });
    config
}

fn run(node: &Node, command: &str, pod: &Pod, config: &Value) -> Answer {
    node.call(command, pod, config).with("CNI_PATH", &path(node)).run()
}

#[test]
fn a_delegate_gets_flannels_config_and_its_output_is_passed_on() {
    let node = Node::new(DUAL);
    let pod = node.pod();
    fake(&node, "mine", r#"echo '{"cniVersion":"1.1.0","ips":[{"address":"10.244.7.9/24"}]}'"#);
    let config = config_of(&node, "mine");
    let answer = run(&node, "ADD", &pod, &config);
    assert_eq!(
        answer.stdout,
        "{\"cniVersion\":\"1.1.0\",\"ips\":[{\"address\":\"10.244.7.9/24\"}]}\n"
    );
    let (call, got) = calls(&node).remove(0);
    assert_eq!(call, format!("ADD {} eth0 [{}]", pod.id, pod.path()));
    assert_eq!(
        got,
        json!({
            "cniVersion": "1.1.0", "name": "cbr0", "type": "mine", "mine": true,
            "mtu": 1450, "ipMasq": false,
            "ipam": {
                "type": "host-local", "dataDir": node.home.path().join("networks"),
                "ranges": [[{"subnet": "10.244.7.0/24"}], [{"subnet": "fd00:10:244:7::/64"}]],
                "routes": [{"dst": "10.244.0.0/16"}, {"dst": "fd00:10:244::/48"}],
            },
        })
    );
}

#[test]
fn the_record_equals_flannels_and_del_uses_it() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    fake(&node, "mine", "");
    let config = config_of(&node, "mine");
    run(&node, "ADD", &pod, &config);
    let kept = fs::read_to_string(node.state_dir().join(&pod.id)).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&kept).unwrap(), calls(&node)[0].1);

    // Neither subnet.env nor the same delegate is needed to undo what was done.
    fs::remove_file(node.subnet_file()).unwrap();
    run(&node, "DEL", &pod, &node.config("1.1.0")).is_silent();
    let (call, got) = calls(&node).remove(1);
    assert_eq!(call, format!("DEL {} eth0 [{}]", pod.id, pod.path()));
    assert_eq!(got, calls(&node)[0].1);
    assert_eq!(node.states(), Vec::<String>::new());
}

#[test]
fn a_failed_del_keeps_the_record() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    let config = config_of(&node, "mine");
    fake(&node, "mine", "");
    run(&node, "ADD", &pod, &config);
    let fails = r#"echo '{"code":11,"msg":"not now"}'; exit 1"#;
    fake(&node, "mine", fails);
    assert_eq!(run(&node, "DEL", &pod, &config).error(), (11, "not now".to_owned()));
    assert_eq!(node.states().len(), 2);
    fake(&node, "mine", "");
    run(&node, "DEL", &pod, &config).is_silent();
    assert_eq!(node.states(), Vec::<String>::new());
    assert_eq!(calls(&node).len(), 3);
}

#[test]
fn a_plugin_that_dies_without_output_is_named() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    fake(&node, "mine", "exit 3");
    let (code, error) = run(&node, "ADD", &pod, &config_of(&node, "mine")).error();
    assert_eq!(code, 999);
    assert!(error.contains("plugin mine failed (exit status: 3)"), "{error}");
}

#[test]
fn a_missing_plugin_is_named_with_the_searched_folders() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    let (_, error) = run(&node, "ADD", &pod, &config_of(&node, "nowhere")).error();
    let expected =
        format!("failed to find plugin \"nowhere\" in path [{}", node.home.path().display());
    assert!(error.starts_with(&expected), "{error}");
    assert_eq!(node.states(), Vec::<String>::new());
    run(&node, "DEL", &pod, &config_of(&node, "nowhere")).is_silent();
}

#[test]
fn pods_of_an_uninstalled_plugin_are_removed_without_it() {
    let node = Node::new(IPV4);
    let (one, two) = (node.pod(), node.pod());
    let mut config = node.config("1.0.0");
    config["delegate"] = json!({"type": "ptp"});
    for pod in [&one, &two] {
        let _ = node.add(pod, &config).result();
    }
    // One does not exist, the other is a program for another machine.
    let other = node.home.path().join("ptp");
    install("no program", &other).unwrap();
    node.call("DEL", &one, &config).with("CNI_PATH", "/none").run().is_silent();
    run(&node, "DEL", &two, &config).is_silent();
    for pod in [&one, &two] {
        assert_eq!(pod.links(), Vec::<String>::new());
    }
    assert_eq!(node.reservations(), []);
    assert_eq!(node.states(), Vec::<String>::new());
}

#[test]
fn a_damaged_record_does_not_turn_a_refusal_into_a_success() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    fake(&node, "mine", "");
    let config = config_of(&node, "mine");
    run(&node, "ADD", &pod, &config);
    for name in node.states() {
        fs::write(node.state_dir().join(name), "{").unwrap();
    }
    fake(&node, "mine", r#"echo '{"code":11,"msg":"not now"}'; exit 1"#);
    assert_eq!(run(&node, "DEL", &pod, &config).error(), (11, "not now".to_owned()));
    fake(&node, "mine", "");
    run(&node, "DEL", &pod, &config).is_silent();
    assert_eq!(node.states(), Vec::<String>::new());
}

#[test]
fn output_of_another_plugin_is_cut_and_escaped() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    let long = r#"printf '{"code":7,"msg":"\\u009b2J'; head -c 60000 /dev/zero | tr '\0' a; echo '"}'; exit 1"#;
    fake(&node, "mine", long);
    let (code, error) = run(&node, "ADD", &pod, &config_of(&node, "mine")).error();
    assert_eq!(code, 7);
    assert!(error.starts_with("\\u{9b}2Jaaa") && error.chars().count() == 600, "{error}");
}

#[test]
fn keys_that_the_operator_may_not_set_are_refused_and_nothing_is_kept() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    for delegate in [json!({"name": "x"}), json!({"ipam": {}}), json!({"type": 1})] {
        let mut config = node.config("1.1.0");
        config["delegate"] = delegate;
        assert_eq!(run(&node, "ADD", &pod, &config).error().0, 7);
    }
    assert_eq!(node.states(), Vec::<String>::new());
}

#[test]
fn check_status_and_gc_reach_the_delegate() {
    let node = Node::new(IPV4);
    let (pod, stale) = (node.pod(), node.pod());
    fake(&node, "mine", "");
    let mut config = config_of(&node, "mine");
    run(&node, "ADD", &pod, &config);
    run(&node, "ADD", &stale, &config);
    assert_eq!(run(&node, "CHECK", &pod, &config).error().0, 7);
    config["prevResult"] = json!({"cniVersion": "1.1.0", "ips": []});
    run(&node, "CHECK", &pod, &config).is_silent();
    run(&node, "STATUS", &pod, &config).is_silent();
    config["cni.dev/valid-attachments"] = json!([{"containerID": pod.id, "ifname": "eth0"}]);
    run(&node, "GC", &pod, &config).is_silent();

    let all = calls(&node);
    let commands: Vec<_> = all.iter().map(|(call, _)| call.split(' ').next().unwrap()).collect();
    assert_eq!(commands, ["ADD", "ADD", "CHECK", "STATUS", "GC", "DEL"]);
    assert_eq!(all[2].1["prevResult"], config["prevResult"]);
    assert_eq!(all[4].1["cni.dev/valid-attachments"], config["cni.dev/valid-attachments"]);
    assert_eq!(all[5].0, format!("DEL {} eth0 []", stale.id));
    assert_eq!(node.states(), [pod.id.clone(), format!("{}:eth0", pod.id)]);
}

#[test]
fn an_add_does_not_wait_for_another_plugin_that_a_gc_calls() {
    let node = Node::new(IPV4);
    let (stale, pod) = (node.pod(), node.pod());
    // Its GC and DEL wait until a file exists.
    let wait =
        "case $CNI_COMMAND in GC|DEL) until [ -e ${0%/*}/added ]; do sleep 0.05; done;; esac";
    fake(&node, "mine", wait);
    let config = config_of(&node, "mine");
    run(&node, "ADD", &stale, &config);
    let mut native = node.config("1.1.0");
    native["cni.dev/valid-attachments"] = json!([]);
    let gc = node.call("GC", &pod, &native).with("CNI_PATH", &path(&node)).start();
    let is_called = || calls(&node).iter().any(|(call, _)| call.starts_with("DEL"));
    eventually(TIMEOUT, is_called).unwrap();
    let _ = node.add(&pod, &native).result();
    fs::write(node.home.path().join("added"), "").unwrap();
    Answer::of(gc).is_silent();
    assert!(pod.pings("10.244.7.1"));
    assert_eq!(node.states().len(), 2);
}

#[test]
fn an_add_does_not_wait_for_the_gc_of_a_delegate() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    fake(
        &node,
        "mine",
        "case $CNI_COMMAND in GC) until [ -e ${0%/*}/added ]; do sleep 0.05; done;; esac",
    );
    let mut config = config_of(&node, "mine");
    config["cni.dev/valid-attachments"] = json!([]);
    let gc = node.call("GC", &pod, &config).with("CNI_PATH", &path(&node)).start();
    eventually(TIMEOUT, || calls(&node).iter().any(|(call, _)| call.starts_with("GC"))).unwrap();
    let _ = node.add(&pod, &node.config("1.1.0")).result();
    fs::write(node.home.path().join("added"), "").unwrap();
    Answer::of(gc).is_silent();
}

fn lacks_the_plugin_bridge(answer: &Answer) {
    let (code, error) = answer.error();
    assert_eq!((code, error.as_str()), (999, "failed to find plugin \"bridge\" in path [/none]"));
}

#[test]
fn native_false_calls_debians_plugins() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    let mut config = node.config("1.0.0");
    config["native"] = json!(false);
    let added = patiently(&node, |command| node.call(command, &pod, &config).run());
    assert_eq!(added.address(), "10.244.7.2/24");
    lacks_the_plugin_bridge(
        &node.call("ADD", &node.pod(), &config).with("CNI_PATH", "/none").run(),
    );
    node.del(&pod, &config).is_silent();
    assert_eq!(node.reservations(), []);
}

#[test]
fn other_delegates_and_other_address_management_work() {
    let node = Node::new(IPV4);
    let (one, two) = (node.pod(), node.pod());
    let mut config = node.config("1.0.0");
    config["delegate"] = json!({"type": "ptp"});
    assert_eq!(node.add(&one, &config).address(), "10.244.7.2/24");
    node.del(&one, &config).is_silent();
    assert_eq!(node.reservations(), []);

    config["delegate"] = json!({"type": "bridge"});
    config["ipam"] = json!({"type": "static", "addresses": [{"address": "10.244.7.77/24"}]});
    let added = patiently(&node, |command| node.call(command, &two, &config).run());
    assert_eq!(added.address(), "10.244.7.77/24");
    assert_eq!(two.links(), ["eth0"]);
    node.del(&two, &config).is_silent();
    assert_eq!(two.links(), Vec::<String>::new());
}

#[test]
fn features_of_the_plugin_bridge_alone_are_delegated_to_it() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    let mut config = node.config("1.0.0");
    config["delegate"] = json!({"isDefaultGateway": true, "vlan": 100});
    lacks_the_plugin_bridge(&node.call("ADD", &pod, &config).with("CNI_PATH", "/none").run());
}
