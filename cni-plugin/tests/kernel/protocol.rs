//! Requests of a runtime, and the answers.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::thread;

use anyhow::ensure;
use serde_json::{Value, json};
use tweed_lab::eventually;

use crate::harness::kernel::Place;
use crate::harness::{Answer, IPV4, Node, TIMEOUT};

#[test]
fn version_lists_what_is_supported_and_reads_no_config() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    let answer = node.call("VERSION", &pod, &Value::Null).stdin("{").run();
    let result = answer.result();
    assert_eq!(result["cniVersion"], "1.1.0");
    assert_eq!(result["supportedVersions"].as_array().unwrap().len(), 7);
    assert!(answer.stdout.ends_with("}\n"));
}

#[test]
fn without_a_command_it_prints_its_version() {
    let output = Command::new(env!("CARGO_BIN_EXE_flannel")).env_clear().output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, b"");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("CNI Plugin flannel version v"), "{error}");
    assert!(error.contains("CNI protocol versions supported: 0.1.0, 0.2.0"), "{error}");
}

#[test]
fn errors_are_one_json_object_of_the_configs_version() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    let refused = node.call("ADD", &pod, &node.config("0.3.1")).with("CNI_NETNS", "/none").run();
    assert_eq!(refused.error().0, 999);
    let error: Value = serde_json::from_str(&refused.stdout).unwrap();
    assert_eq!(error["cniVersion"], "0.3.1");
    assert_eq!(refused.stderr, "");
}

#[test]
fn missing_and_malformed_input_have_their_own_codes() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    let add = |config: &Value| node.call("ADD", &pod, config);
    let config = node.config("1.0.0");
    let missing = add(&config).without("CNI_NETNS").without("CNI_IFNAME").run().error();
    assert_eq!(missing, (4, "required env variables [CNI_NETNS,CNI_IFNAME] missing".to_owned()));
    assert_eq!(add(&config).with("CNI_COMMAND", "SHOW").run().error().0, 4);
    assert_eq!(add(&config).with("CNI_CONTAINERID", "a/b").run().error().0, 4);
    assert_eq!(add(&config).stdin("{").run().error().0, 6);
    assert_eq!(add(&json!({"cniVersion": "1.0.0"})).run().error().0, 7);
    assert_eq!(add(&node.config("1.0")).run().error().0, 1);
    for command in ["GC", "STATUS"] {
        let error = node.call(command, &pod, &config).run().error();
        assert_eq!(error.0, 1);
        assert!(error.1.contains(&format!("config version does not allow {command}")), "{error:?}");
    }
    assert_eq!(node.call("CHECK", &pod, &node.config("0.3.1")).run().error().0, 1);
}

#[test]
fn a_name_that_cannot_be_shown_is_refused_by_add_and_accepted_by_del() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    let config = node.config("1.0.0");
    let (code, error) = node.call("ADD", &pod, &config).interface("eth\u{1}").run().error();
    assert_eq!((code, error.as_str()), (4, "CNI_IFNAME \"eth\\u{1}\" is not printable"));
    // Another plugin may have added it under this name.
    let added = node.add(&pod, &config).result();
    let port = added["interfaces"][1]["name"].as_str().unwrap();
    node.ip(&format!("link set {port} alias "));
    pod.ip("link set eth0 down");
    pod.ip("link set eth0 name eth\u{1}");
    let reservation = node.store().join("10.244.7.2");
    std::fs::remove_file(&reservation).unwrap();
    std::fs::write(&reservation, format!("{}\r\neth\u{1}", pod.id)).unwrap();
    node.call("DEL", &pod, &config).interface("eth\u{1}").run().is_silent();
    assert_eq!(node.reservations(), []);
    assert_eq!(node.links(), ["cni0"]);
}

#[test]
fn the_plugins_own_namespace_is_refused_before_any_change() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    let own = format!("/run/netns/{}", node.netns());
    let refused = node.call("ADD", &pod, &node.config("1.0.0")).with("CNI_NETNS", &own).run();
    assert_eq!(refused.error().0, 8);
    let _ = node.add(&pod, &node.config("1.0.0")).result();
    let before = node.links();
    node.call("DEL", &node.pod(), &node.config("1.0.0")).with("CNI_NETNS", &own).run().is_silent();
    assert_eq!(node.links(), before);
    node.del(&pod, &node.config("1.0.0")).is_silent();
    assert_eq!(node.states(), Vec::<String>::new());
    assert_eq!(node.reservations(), []);
}

#[test]
fn keys_match_in_any_case() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    let config = json!({
        "CNIVersion": "1.0.0", "NAME": "cbr0", "Type": "flannel",
        "SubnetFile": node.subnet_file(), "DATADIR": node.state_dir(),
        "IPAM": { "DataDir": node.home.path().join("networks") },
        "runtimeConfig": { "portMappings": [{"HostPort": 80, "ContainerPort": 80, "Protocol": "tcp"}] },
    });
    assert_eq!(node.add(&pod, &config).address(), "10.244.7.2/24");
    assert_eq!(node.reservations().len(), 1);
    node.del(&pod, &config).is_silent();
    assert_eq!(node.reservations(), []);
}

#[test]
fn each_version_gets_the_result_in_its_own_form() {
    for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let node = Node::new(IPV4);
        let pod = node.pod();
        let result = node.add(&pod, &node.config(version)).result();
        assert_eq!(result["cniVersion"], version);
        if version < "0.3.0" {
            assert_eq!(result["ip4"]["ip"], "10.244.7.2/24");
            assert_eq!(result["ip4"]["routes"][1], json!({"dst": "0.0.0.0/0", "gw": "10.244.7.1"}));
            continue;
        }
        let names: Vec<_> = result["interfaces"].as_array().unwrap().iter().collect();
        assert_eq!(names[0]["name"], "cni0");
        assert_eq!(names[2]["name"], "eth0");
        assert_eq!(names[2]["sandbox"], pod.path());
        assert_eq!(result["ips"][0]["interface"], 2);
        assert_eq!(result["ips"][0].get("version").is_some(), version < "1.0.0");
        assert_eq!(result.get("dns").is_some(), version < "1.0.0");
    }
}

#[test]
fn without_a_subnet_file_the_error_asks_to_try_again() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    std::fs::remove_file(node.subnet_file()).unwrap();
    let (code, error) = node.add(&pod, &node.config("1.0.0")).error();
    assert_eq!(code, 11);
    assert!(error.contains("subnet.env: no such file or directory"), "{error}");
    let (code, _) = node.call("STATUS", &pod, &node.config("1.1.0")).run().error();
    assert_eq!(code, 50);
}

/// A daemon that answers every request with `answer` during the test.
fn daemon(node: &Node, answer: &'static str) {
    let listener = UnixListener::bind(node.home.path().join("subnet.sock")).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ = write!(stream, "HTTP/1.1 {answer}");
        }
    });
}

#[test]
fn the_reasons_of_the_daemon_are_passed_on() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    std::fs::remove_file(node.subnet_file()).unwrap();
    daemon(&node, "503 x\r\n\r\n{\"ready\":false,\"reasons\":[\"no subnet is leased yet\"]}");
    // The plugin waits for two seconds: a busy machine may answer later.
    eventually(TIMEOUT, || {
        let (code, error) = node.add(&pod, &node.config("1.0.0")).error();
        ensure!(code == 11, "{code}: {error}");
        ensure!(error.ends_with("the daemon reports: no subnet is leased yet"), "{error}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_stuck_daemon_makes_the_node_limited() {
    let node = Node::new(IPV4);
    daemon(&node, "503 x\r\n\r\nthe loop has been stuck for 40 s\n");
    let pod = node.pod();
    // The plugin waits for two seconds: a busy machine may answer later.
    eventually(TIMEOUT, || {
        let (code, error) = node.call("STATUS", &pod, &node.config("1.1.0")).run().error();
        ensure!((code, error.as_str()) == (51, "the loop has been stuck for 40 s"), "{error}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_subnet_file_that_appears_meanwhile_is_waited_for() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    // The plugin waits for three seconds: a busy machine may write later.
    eventually(TIMEOUT, || {
        std::fs::remove_file(node.subnet_file())?;
        let mut waiting = node.call("ADD", &pod, &node.config("1.0.0")).start();
        eventually(TIMEOUT, || watches(waiting.id()) || !matches!(waiting.try_wait(), Ok(None)))?;
        node.write_subnet_env(IPV4);
        let answer = Answer::of(waiting);
        ensure!(answer.status == 0, "{answer:?}");
        Ok(())
    })
    .unwrap();
}

/// Whether the process waits for changes of files.
fn watches(process: u32) -> bool {
    let files = std::fs::read_dir(format!("/proc/{process}/fdinfo")).into_iter().flatten();
    let text = |file: std::fs::DirEntry| std::fs::read_to_string(file.path()).unwrap_or_default();
    files.flatten().any(|file| text(file).contains("inotify wd:"))
}

#[test]
fn an_invalid_subnet_file_is_named_with_the_reason() {
    let node = Node::new("FLANNEL_MTU=1450\n");
    let pod = node.pod();
    let (code, error) = node.add(&pod, &node.config("1.0.0")).error();
    assert_eq!(code, 7);
    let missing = "subnet.env is missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK, FLANNEL_SUBNET, \
                   FLANNEL_IPV6_SUBNET, FLANNEL_IPMASQ";
    assert!(error.contains(missing), "{error}");
    node.write_subnet_env("FLANNEL_MTU\n");
    let (_, error) = node.add(&pod, &node.config("1.0.0")).error();
    assert!(error.contains("line 1: FLANNEL_MTU has no value"), "{error}");
}

#[test]
fn status_reports_whether_an_add_would_succeed() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    node.call("STATUS", &pod, &node.config("1.1.0")).run().is_silent();
    node.write_subnet_env(&IPV4.replace("10.244.7.1/24", "10.244.7.1/30"));
    node.call("STATUS", &pod, &node.config("1.1.0")).run().is_silent();
    assert_eq!(node.add(&pod, &node.config("1.1.0")).address(), "10.244.7.2/30");
    // Its pods would be evicted if their node were not ready.
    let other = node.pod();
    assert!(
        node.add(&other, &node.config("1.1.0")).error().1.contains("no IP addresses available")
    );
    node.call("STATUS", &pod, &node.config("1.1.0")).run().is_silent();
    std::fs::remove_file(node.subnet_file()).unwrap();
    let (code, error) = node.call("STATUS", &pod, &node.config("1.1.0")).run().error();
    assert_eq!(code, 50, "{error}");
}

#[test]
fn the_installer_puts_plugin_and_config_in_place() {
    let node = Node::new(IPV4);
    let home = node.home.path();
    let (bin, conf) = (home.join("opt/cni/bin"), home.join("net.d/10-flannel.conflist"));
    std::fs::create_dir_all(&bin).unwrap();
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/cni/10-flannel.conflist");
    let run = |words: &[&std::ffi::OsStr]| {
        let status = Command::new(env!("CARGO_BIN_EXE_flannel")).args(words).status().unwrap();
        assert!(status.success());
    };
    run(&["install".as_ref(), bin.as_ref()]);
    run(&["install-conf".as_ref(), sample.as_ref(), conf.as_ref()]);
    let pod = node.pod();
    let installed = bin.join("flannel");
    let answer = node.call("ADD", &pod, &node.config("1.0.0")).program(&installed).run();
    assert_eq!(answer.address(), "10.244.7.2/24");
    assert_eq!(std::fs::read(&conf).unwrap(), std::fs::read(sample).unwrap());
}
