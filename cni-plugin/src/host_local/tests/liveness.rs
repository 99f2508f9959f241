//! Processes, namespaces and plugins of this machine, as liveness reads them.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use super::*;

#[test]
fn processes_that_start_and_end_are_no_error() {
    let crowd = std::thread::spawn(|| {
        for _ in 0..150 {
            Command::new("true").status().unwrap();
        }
    });
    while !crowd.is_finished() {
        Liveness::gather(Path::new("/nonexistent")).unwrap();
    }
}

#[test]
fn this_machine_was_booted_before_now_and_knows_its_own_addresses() {
    let liveness = Liveness::gather(Path::new("/nonexistent")).unwrap();
    assert!(liveness.booted < liveness.now);
    assert!(liveness.configured.contains_key(&"127.0.0.1".parse::<IpAddr>().unwrap()));
    assert!(liveness.cached.is_empty());
}

fn run(line: &str) {
    let mut words = line.split(' ');
    let status = Command::new(words.next().unwrap()).args(words).status().unwrap();
    assert!(status.success(), "{line}");
}

#[test]
fn addresses_are_found_in_namespaces_with_and_without_processes() {
    for line in [
        "ip netns add witness",
        "ip -n witness link set lo up",
        "ip -n witness address add 10.77.0.9/24 dev lo",
        "ip -n witness address add fd77::9/64 dev lo",
    ] {
        run(line);
    }
    let found = || configured_addresses(&processes().unwrap()).unwrap();
    for address in ["10.77.0.9", "fd77::9"] {
        let name = found().remove(&address.parse::<IpAddr>().unwrap());
        assert_eq!(name.as_deref(), Some("/run/netns/witness"));
    }
    let mut inside = Command::new("ip")
        .args(["netns", "exec", "witness", "cat"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let address: IpAddr = "10.77.0.9".parse().unwrap();
    let by_process = |name: &String| name.starts_with("net:[");
    while !found().get(&address).is_some_and(by_process) {}
    run("ip netns delete witness");
    assert!(found().get(&address).is_some_and(by_process));
    drop(inside.stdin.take());
    inside.wait().unwrap();
    assert!(!found().contains_key(&address));
}

#[test]
fn local_leaves_of_the_trie_are_addresses() {
    let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n\
                \x20    +-- 10.244.7.0/24 2 0 2\n        |-- 10.244.7.0\n           /24 link UNICAST\n\
                \x20       |-- 10.244.7.9\n           /32 host LOCAL\n\
                \x20    |-- 10.244.7.255\n        /32 link BROADCAST\n";
    assert_eq!(parse_trie(trie), ["10.244.7.9".parse::<IpAddr>().unwrap()]);
}

#[test]
fn invalid_text_has_no_addresses() {
    assert_eq!(parse_trie("/32 host LOCAL\n|-- x\n/32 host LOCAL\n"), Vec::<IpAddr>::new());
    assert_eq!(parse_inet6("\n zz 1 2\n"), Vec::<IpAddr>::new());
    assert_eq!(parse_mount(""), None);
}

#[test]
fn a_plugin_is_recognized_by_its_environment() {
    let mut plugin = Command::new("cat")
        .env("CNI_CONTAINERID", "busy-one")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Before its first output, the process may not have its own environment yet.
    plugin.stdin.as_mut().unwrap().write_all(b"!").unwrap();
    plugin.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    assert!(busy_containers(&processes().unwrap()).unwrap().contains("busy-one"));
    drop(plugin.stdin.take());
    plugin.wait().unwrap();
    assert!(!busy_containers(&processes().unwrap()).unwrap().contains("busy-one"));
}

#[test]
fn an_empty_name_is_not_a_container() {
    assert_eq!(container_of(b"A=1\0CNI_CONTAINERID=abc\0B=2\0").as_deref(), Some("abc"));
    assert_eq!(container_of(b"CNI_CONTAINERID=\0"), None);
    assert_eq!(container_of(b""), None);
}
