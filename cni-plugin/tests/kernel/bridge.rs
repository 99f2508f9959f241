//! The native path: ADD creates, CHECK compares, DEL removes.

use std::fs::{self, File};
use std::process::Command;

use nix::fcntl::{Flock, FlockArg};
use serde_json::{Value, json};

use crate::harness::kernel::{Place, run};
use crate::harness::{DUAL, Disk, IPV4, Node, Pod, change_time, write_time};

fn masquerading(env: &str) -> String {
    env.replace("FLANNEL_IPMASQ=true", "FLANNEL_IPMASQ=false")
}

fn rules(node: &Node) -> Vec<String> {
    let (_, listed) = node.exec("nft list chain inet cni_plugins_masquerade masq_checks");
    listed.lines().filter(|line| line.contains("masquerade")).skip(1).map(str::to_owned).collect()
}

/// Whether nothing is left of any container.
fn is_clean(node: &Node) {
    assert_eq!(node.reservations(), []);
    assert_eq!(node.states(), Vec::<String>::new());
    assert_eq!(node.links(), ["cni0"]);
    assert_eq!(rules(node), Vec::<String>::new());
}

#[test]
fn no_other_program_is_needed() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    let config = node.config("1.0.0");
    let answer = node.call("ADD", &pod, &config).with("CNI_PATH", "/none").run();
    assert_eq!(answer.address(), "10.244.7.2/24");
    assert_eq!(answer.stderr, "");
    assert!(pod.pings("10.244.7.1"));
}

#[test]
fn the_first_pod_of_a_fresh_bridge_reaches_both_gateways_at_once() {
    let node = Node::new(DUAL);
    let pod = node.pod();
    let config = node.config("1.0.0");
    assert_eq!(node.add(&pod, &config).addresses(), ["10.244.7.2/24", "fd00:10:244:7::2/64"]);
    let tentative = node.ip("-6 address show dev cni0 scope global tentative");
    assert_eq!(tentative, "");
    assert!(pod.pings("fd00:10:244:7::1"));
    assert!(pod.pings("10.244.7.1"));
}

#[test]
fn two_pods_reach_each_other_and_themselves_through_the_bridge() {
    let node = Node::new(DUAL);
    let (one, two) = (node.pod(), node.pod());
    let config = node.config("1.0.0");
    let _ = node.add(&one, &config).result();
    assert_eq!(node.add(&two, &config).addresses()[0], "10.244.7.3/24");
    assert!(two.pings("10.244.7.2"));
    assert!(two.pings("fd00:10:244:7::2"));
    let port = node.ip_json("link show type veth").remove(0);
    assert_eq!(port["linkinfo"]["info_slave_data"]["hairpin"], true);
}

#[test]
fn a_used_address_leads_to_the_next_pod_at_once() {
    let node = Node::new(IPV4);
    let (other, first, second) = (node.pod(), node.pod(), node.pod());
    let config = node.config("1.0.0");
    let _ = node.add(&other, &config).result();
    let _ = node.add(&first, &config).result();
    let reaches = || other.pings("10.244.7.3") && node.exec("ping -c1 -W1 10.244.7.3").0;
    assert!(reaches());
    node.del(&first, &config).is_silent();
    fs::write(node.store().join("last_reserved_ip.0"), "10.244.7.2").unwrap();
    assert_eq!(node.add(&second, &config).address(), "10.244.7.3/24");
    assert!(reaches());
}

#[test]
fn a_del_leaves_nothing_and_may_be_repeated() {
    let node = Node::new(&masquerading(DUAL));
    let pod = node.pod();
    let config = node.config("0.3.1");
    let _ = node.add(&pod, &config).result();
    assert_eq!(rules(&node).len(), 2);
    for _ in 0..2 {
        node.del(&pod, &config).is_silent();
        is_clean(&node);
    }
    assert_eq!(pod.links(), Vec::<String>::new());
}

#[test]
fn the_rules_are_those_of_the_go_plugins() {
    let node = Node::new(&masquerading(DUAL));
    let pod = node.pod();
    let _ = node.add(&pod, &node.config("1.0.0")).result();
    let (_, listed) = node.exec("nft list ruleset");
    // The comment is truncated if the id of a container is long.
    let masked: Vec<_> = listed.lines().map(|line| line.split(", net:").next().unwrap()).collect();
    let keys = masked.join("\n").replace('\t', " ");
    let comment = keys.split("comment \"cb6e746fae1a4d6c-").nth(1).unwrap();
    let own = comment.get(..16).unwrap();
    assert_eq!(
        keys.replace(own, "OWN"),
        r#"table inet cni_plugins_masquerade {
 comment "Masquerading for plugins from github.com/containernetworking/plugins"
 chain masq_checks {
  comment "Masquerade traffic from certain IPs to any (non-multicast) IP outside their subnet"
  ip saddr 10.244.7.2 ip daddr != 10.244.7.0/24 masquerade comment "cb6e746fae1a4d6c-OWN
  ip6 saddr fd00:10:244:7::2 ip6 daddr != fd00:10:244:7::/64 masquerade comment "cb6e746fae1a4d6c-OWN
 }

 chain postrouting {
  type nat hook postrouting priority srcnat; policy accept;
  ip daddr 224.0.0.0/4 return
  ip6 daddr ff00::/8 return
  goto masq_checks
 }
}"#
    );
}

#[test]
fn packets_of_a_masqueraded_pod_have_the_address_of_the_node() {
    let node = Node::new(&masquerading(IPV4));
    let (pod, outside) = (node.pod(), node.pod());
    let _ = node.add(&pod, &node.config("1.0.0")).result();
    node.ip(&format!("link add uplink type veth peer name eth9 netns {}", outside.netns()));
    node.ip("address add 192.0.2.1/24 dev uplink");
    node.ip("link set uplink up");
    outside.ip("address add 192.0.2.2/24 dev eth9");
    outside.ip("link set eth9 up");
    node.is_operational("uplink");
    outside.is_operational("eth9");
    // The outside has no route to pods: it can only answer packets with the address of the node.
    assert!(pod.pings("192.0.2.2"));
}

#[test]
fn a_del_of_an_unknown_pod_succeeds() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    node.del(&pod, &node.config("0.3.1")).is_silent();
    fs::remove_file(node.subnet_file()).unwrap();
    node.del(&pod, &node.config("0.3.1")).is_silent();
    node.call("DEL", &pod, &node.config("0.3.1")).without("CNI_NETNS").run().is_silent();
}

#[test]
fn a_del_without_a_namespace_removes_everything() {
    let node = Node::new(&masquerading(IPV4));
    let (unnamed, gone) = (node.pod(), node.pod());
    let config = node.config("0.3.1");
    for pod in [&unnamed, &gone] {
        let _ = node.add(pod, &config).result();
    }
    // The namespace still exists, but the runtime does not name it.
    node.call("DEL", &unnamed, &config).with("CNI_NETNS", "").run().is_silent();
    assert_eq!(unnamed.links(), Vec::<String>::new());
    gone.lose_netns();
    node.del(&gone, &config).is_silent();
    is_clean(&node);
}

#[test]
fn a_del_without_record_or_with_a_damaged_one_removes_everything() {
    let node = Node::new(&masquerading(DUAL));
    let config = node.config("0.3.1");
    for damage in [None, Some(""), Some("{\"type\":")] {
        let pod = node.pod();
        let _ = node.add(&pod, &config).result();
        for name in node.states() {
            let path = node.state_dir().join(name);
            match damage {
                None => fs::remove_file(path).unwrap(),
                Some(text) => fs::write(path, text).unwrap(),
            }
        }
        node.del(&pod, &config).is_silent();
        is_clean(&node);
    }
}

#[test]
fn a_del_uses_the_addresses_of_a_record_only_if_the_store_confirms_them() {
    let node = Node::new(DUAL);
    let config = node.config("1.0.0");
    for wrong in [None, Some(json!(["10.244.7.99"])), Some(json!([])), Some(json!("nonsense"))] {
        let pod = node.pod();
        let addresses = node.add(&pod, &config).addresses();
        let path = node.state_dir().join(format!("{}:eth0", pod.id));
        let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let named = record["reservedAddresses"].as_array().unwrap().iter();
        let named: Vec<_> = named.map(|address| address.as_str().unwrap()).collect();
        let held = addresses.iter().map(|address| address.split('/').next().unwrap());
        assert_eq!(named, held.collect::<Vec<_>>());
        if let Some(wrong) = wrong {
            record["reservedAddresses"] = wrong;
            fs::write(&path, record.to_string()).unwrap();
        }
        node.del(&pod, &config).is_silent();
        is_clean(&node);
    }
}

#[test]
fn a_del_without_record_and_subnet_file_still_frees_the_address() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    let config = node.config("0.3.1");
    let _ = node.add(&pod, &config).result();
    for name in node.states() {
        fs::remove_file(node.state_dir().join(name)).unwrap();
    }
    fs::remove_file(node.subnet_file()).unwrap();
    node.del(&pod, &config).is_silent();
    is_clean(&node);
}

#[test]
fn two_interfaces_of_one_container_are_independent() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    let config = node.config("1.0.0");
    let _ = node.add(&pod, &config).result();
    let mut second = config.clone();
    second["delegate"] = json!({"isGateway": true});
    let answer = node.call("ADD", &pod, &second).interface("net1").run();
    assert_eq!(answer.address(), "10.244.7.3/24");
    assert_eq!(node.states().len(), 3);

    node.del(&pod, &config).is_silent();
    assert_eq!(pod.links(), ["net1"]);
    assert_eq!(node.reservations()[0].0, "10.244.7.3");
    node.call("DEL", &pod, &second).interface("net1").run().is_silent();
    is_clean(&node);
}

#[test]
fn an_existing_interface_is_not_changed() {
    let node = Node::new(&masquerading(IPV4));
    let pod = node.pod();
    pod.ip("link add eth0 type bridge");
    let (_, error) = node.add(&pod, &node.config("1.0.0")).error();
    assert!(error.contains("container veth name (\"eth0\") peer provided (\"veth"), "{error}");
    assert!(error.ends_with("already exists"), "{error}");
    assert_eq!(pod.links(), ["eth0"]);
    is_clean(&node);
    node.del(&pod, &node.config("1.0.0")).is_silent();
}

#[test]
fn a_second_add_removes_nothing_of_the_first() {
    let node = Node::new(&masquerading(IPV4));
    let pod = node.pod();
    let config = node.config("1.0.0");
    let _ = node.add(&pod, &config).result();
    let before = (node.states(), node.reservations(), rules(&node), node.links());
    let (_, error) = node.add(&pod, &config).error();
    assert!(error.contains("duplicate allocation is not allowed"), "{error}");
    assert_eq!((node.states(), node.reservations(), rules(&node), node.links()), before);
    assert!(pod.pings("10.244.7.1"));
}

#[test]
fn an_add_that_fails_late_removes_everything() {
    let node = Node::new(&masquerading(IPV4));
    let pod = node.pod();
    let mut config = node.config("1.0.0");
    let unreachable = json!([{"dst": "192.0.2.0/24", "gw": "198.51.100.1"}]);
    config["ipam"]["routes"] = unreachable;
    let (_, error) = node.add(&pod, &config).error();
    assert!(error.contains("failed to add route '192.0.2.0/24 via 198.51.100.1'"), "{error}");
    assert_eq!(pod.links(), Vec::<String>::new());
    is_clean(&node);
}

#[test]
fn a_default_route_of_the_operator_is_compatible_with_a_default_gateway() {
    let node = Node::new(IPV4);
    let pod = node.pod();
    let mut config = node.config("1.0.0");
    config["ipam"]["routes"] = json!([{"dst": "0.0.0.0/0"}]);
    let _ = node.add(&pod, &config).result();
    assert_eq!(pod.ip_json("route show default").len(), 1);
}

#[test]
fn a_full_subnet_refuses_until_a_pod_is_deleted() {
    let node = Node::new(&IPV4.replace("10.244.7.1/24", "10.244.7.1/29"));
    let config = node.config("1.0.0");
    let pods: Vec<_> = (0..5).map(|_| node.pod()).collect();
    for pod in &pods {
        let _ = node.add(pod, &config).result();
    }
    let late = node.pod();
    let (_, error) = node.add(&late, &config).error();
    assert!(
        error.contains("no IP addresses available in range set: 10.244.7.1-10.244.7.6"),
        "{error}"
    );
    assert_eq!(late.links(), Vec::<String>::new());
    node.del(&late, &config).is_silent();
    node.del(&pods[1], &config).is_silent();
    assert_eq!(node.add(&late, &config).address(), "10.244.7.3/29");
}

/// `NET_ADDR_SET` of the kernel.
const SET_BY_A_PROGRAM: &str = "3";

#[test]
fn check_passes_after_add_and_names_what_is_wrong() {
    let node = Node::new(DUAL);
    let pod = node.pod();
    let mut config = node.config("1.0.0");
    config["prevResult"] = node.add(&pod, &config).result();
    let check = || node.call("CHECK", &pod, &config).run();
    check().is_silent();

    let veth = config["prevResult"]["interfaces"][1]["name"].as_str().unwrap().to_owned();
    let refuses = |word: &str| {
        let (_, error) = check().error();
        assert!(error.contains(word), "{error}");
    };
    pod.ip("address del 10.244.7.2/24 dev eth0");
    refuses("does not have the address 10.244.7.2/24");
    pod.ip("address add 10.244.7.2/24 brd + dev eth0");
    refuses("no route to");
    pod.ip("route add default via 10.244.7.1");
    refuses("no route to 10.244.0.0/16");
    pod.ip("route add 10.244.0.0/16 via 10.244.7.1");
    check().is_silent();

    node.ip(&format!("link set {veth} nomaster"));
    refuses("is not a port of cni0");
    node.ip(&format!("link set {veth} master cni0"));
    check().is_silent();
    // Udev sets another MAC if the kernel has chosen it.
    let by_whom = format!("mount -t sysfs sysfs /sys; cat /sys/class/net/{veth}/addr_assign_type");
    let by_whom = node.namespace().run("unshare", &["--mount", "sh", "-c", &by_whom]).unwrap();
    assert_eq!(by_whom.trim(), SET_BY_A_PROGRAM);
    node.ip(&format!("link set {veth} address 02:00:00:00:00:07"));
    check().is_silent();
    pod.ip("link del eth0");
    assert!(check().error().1.contains("the container does not have it"));
}

#[test]
fn gc_removes_only_what_the_runtime_does_not_know() {
    let node = Node::new(&masquerading(DUAL));
    let mut config = node.config("1.1.0");
    let pods: Vec<_> = (0..4).map(|_| node.pod()).collect();
    for pod in &pods {
        let _ = node.add(pod, &config).result();
    }
    let foreign = node.pod();
    let mut other = config.clone();
    other["name"] = json!("other");
    other["delegate"]["bridge"] = json!("br1");
    other["ipam"]["dataDir"] = json!(node.home.path().join("elsewhere"));
    node.write_subnet_env(
        &masquerading(DUAL).replace("10.244.7.", "10.244.8.").replace(":7::", ":8::"),
    );
    let _ = node.add(&foreign, &other).result();
    node.write_subnet_env(&masquerading(DUAL));
    // The namespace of one pod is gone, that of another is not.
    pods[1].lose_netns();

    let gc = |config: &Value| node.call("GC", &pods[0], config).run();
    gc(&config).is_silent();
    assert_eq!(node.reservations().len(), 8);

    let live = |pod: &Pod| json!({"containerID": pod.id, "ifname": "eth0"});
    config["cni.dev/valid-attachments"] = json!([live(&pods[0]), live(&pods[3])]);
    gc(&config).is_silent();
    assert_eq!(node.reservations().len(), 4);
    assert_eq!(rules(&node).len(), 6);
    assert_eq!(pods[2].links(), Vec::<String>::new());
    assert_eq!(node.states().len(), 6);
    assert!(pods[0].pings("10.244.7.5"));
    assert!(foreign.pings("10.244.8.1"));

    config["cni.dev/valid-attachments"] = json!([]);
    gc(&config).is_silent();
    assert_eq!(node.reservations(), []);
    assert_eq!(node.states().len(), 2);
    assert_eq!(rules(&node).len(), 2);
}

#[test]
fn a_gc_with_a_null_list_removes_everything() {
    let node = Node::new(&masquerading(DUAL));
    let mut config = node.config("1.1.0");
    let pod = node.pod();
    let _ = node.add(&pod, &config).result();
    config["cni.dev/valid-attachments"] = Value::Null;
    node.call("GC", &pod, &config).run().is_silent();
    is_clean(&node);
    assert_eq!(pod.links(), Vec::<String>::new());
}

/// A network that other plugins accept, and an ADD of this one does not.
fn with_odd_records(node: &Node) -> Pod {
    let pod = node.pod();
    let _ = node.add(&pod, &node.config("1.1.0")).result();
    for name in node.states() {
        let path = node.state_dir().join(name);
        let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        record["mtu"] = json!(-1);
        record["ipMasqBackend"] = json!("ebtables");
        record["runtimeConfig"] = json!({"mac": "0211.2233.4455"});
        record["ipam"]["ranges"] = json!("none");
        fs::write(&path, record.to_string()).unwrap();
    }
    pod
}

#[test]
fn records_that_an_add_refuses_can_be_deleted_and_collected() {
    let node = Node::new(&masquerading(DUAL));
    let mut config = node.config("1.1.0");
    config["cni.dev/valid-attachments"] = json!([]);
    for command in ["DEL", "GC"] {
        let pod = with_odd_records(&node);
        node.call(command, &pod, &config).run().is_silent();
        is_clean(&node);
        assert_eq!(pod.links(), Vec::<String>::new());
    }
}

#[test]
fn a_gc_keeps_pods_added_after_the_runtime_made_its_list() {
    let node = Node::new(IPV4);
    let mut config = node.config("1.1.0");
    let (stale, late) = (node.pod(), node.pod());
    let _ = node.add(&stale, &config).result();
    let path = node.state_dir().join(".lock");
    let before = change_time(&path);
    // A running ADD delays the GC.
    let adding = Flock::lock(File::open(&path).unwrap(), FlockArg::LockShared).unwrap();
    config["cni.dev/valid-attachments"] = json!([]);
    let gc = node.call("GC", &stale, &config).start();
    while change_time(&path) == before {}
    while write_time() <= change_time(&path) {}
    assert_eq!(node.add(&late, &node.config("1.1.0")).address(), "10.244.7.3/24");
    drop(adding);
    let output = gc.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(stale.links(), Vec::<String>::new());
    assert!(late.pings("10.244.7.1"));
    assert_eq!(node.reservations().len(), 1);
    assert_eq!(node.states().len(), 2);
}

#[test]
fn a_read_only_or_full_disk_is_reported_by_status_and_keeps_no_container() {
    let changes: [[fn(&Disk); 2]; 2] =
        [[Disk::make_read_only, Disk::make_writable], [Disk::fill, Disk::make_room]];
    for [harm, repair] in changes {
        let node = Node::new(IPV4);
        let pods = [node.pod(), node.pod()];
        let config = node.config("1.1.0");
        let _ = node.add(&pods[0], &config).result();
        // Moves the records to a disk of their own.
        let records: Vec<_> = node.states().into_iter().collect();
        let record = fs::read(node.state_dir().join(&records[0])).unwrap();
        let disk = Disk::at(&node.state_dir());
        fs::write(node.state_dir().join(&records[0]), record).unwrap();
        harm(&disk);
        let (code, error) = node.call("STATUS", &pods[0], &config).run().error();
        assert_eq!(code, 50);
        assert!(error.starts_with("cannot write to "), "{error}");
        let (_, error) = node.add(&pods[1], &config).error();
        assert!(error.starts_with("writing the record of a container"), "{error}");
        assert_eq!(pods[1].links(), Vec::<String>::new());
        node.del(&pods[0], &config).is_silent();
        assert_eq!(pods[0].links(), Vec::<String>::new());
        assert_eq!(node.reservations(), []);
        repair(&disk);
        node.call("STATUS", &pods[0], &config).run().is_silent();
        node.del(&pods[0], &config).is_silent();
        is_clean(&node);
    }
}

#[test]
fn requested_ranges_are_added_to_those_of_the_node() {
    let node = Node::new(IPV4);
    let plain = node.config("1.0.0");
    let mut asking = [plain.clone(), plain.clone(), plain.clone()];
    for (config, subnet) in asking.iter_mut().zip(["10.7.0.0/24", "10.7.0.0/24", "10.8.0.0/24"]) {
        config["runtimeConfig"] = json!({"ipRanges": [[{"subnet": subnet}]]});
    }
    let pods: Vec<_> = (0..4).map(|_| node.pod()).collect();
    for (pod, config) in pods.iter().zip(asking.iter().chain([&plain])) {
        let _ = node.add(pod, config).result();
        assert!(pod.pings("10.244.7.1"));
    }
    assert!(pods[0].pings("10.7.0.1") && pods[2].pings("10.8.0.1"));
    assert_eq!(node.reservations().len(), 7);
}

#[test]
fn an_error_without_ipv6_on_the_host_names_the_fix() {
    let node = Node::new(DUAL);
    let pod = node.pod();
    assert!(node.exec("sysctl -w net.ipv6.conf.all.disable_ipv6=1").0);
    let (_, error) = node.add(&pod, &node.config("1.0.0")).error();
    assert!(error.contains("IPv6 is disabled on this host"), "{error}");
    assert_eq!(node.reservations(), []);
    let mut long = node.config("1.0.0");
    long["delegate"]["bridge"] = json!("the-bridge-of-all-pods");
    let (code, error) = node.add(&pod, &long).error();
    assert_eq!(code, 7);
    assert!(error.ends_with("\"the-bridge-of-all-pods\" is too long: at most 15 bytes"), "{error}");
}

#[test]
fn a_name_that_the_mark_of_a_link_cannot_hold_is_refused() {
    let node = Node::new(&masquerading(IPV4));
    let pod = node.pod();
    let mut config = node.config("1.0.0");
    // `cni:`, two slashes and `eth0` are part of the mark.
    let longest = 255 - 10 - pod.id.len();
    config["name"] = json!("n".repeat(longest + 1));
    let (code, error) = node.add(&pod, &config).error();
    let sentence = format!("it may have {longest} bytes with this container ID");
    assert!(code == 7 && error.ends_with(&sentence), "{code}: {error}");
    assert_eq!(pod.links(), Vec::<String>::new());
    assert_eq!(rules(&node), Vec::<String>::new());
    assert_eq!(node.states().len(), 0);
    let addresses = fs::read_dir(node.store().with_file_name("n".repeat(longest + 1))).unwrap();
    let mut addresses = addresses.map(|it| it.unwrap().file_name().into_string().unwrap());
    assert!(addresses.all(|name| !name.starts_with("10.244.")));
    config["name"] = json!("n".repeat(longest));
    let _ = node.add(&pod, &config).result();
    assert!(pod.pings("10.244.7.1"));
}

#[test]
fn a_del_removes_nothing_of_a_later_container_at_the_same_path() {
    let node = Node::new(&masquerading(DUAL));
    let config = node.config("1.0.0");
    let (former, later) = (node.pod(), node.pod());
    let _ = node.add(&former, &config).result();
    let _ = node.add(&later, &config).result();
    node.call("DEL", &former, &config).with("CNI_NETNS", &later.path()).run().is_silent();
    assert_eq!(former.links(), Vec::<String>::new());
    assert!(later.pings("10.244.7.1"));
    assert_eq!(node.reservations().len(), 2);
}

#[test]
fn a_pipe_in_place_of_a_file_delays_nothing() {
    let node = Node::new(IPV4);
    let config = node.config("1.1.0");
    let pod = node.pod();
    let _ = node.add(&pod, &config).result();
    let states = node.states().into_iter().map(|name| node.state_dir().join(name));
    let files = ["10.244.7.9", "last_reserved_ip.0", "lock"].map(|name| node.store().join(name));
    let others = [node.state_dir().join(".lock")];
    for path in states.chain(files).chain(others) {
        let _ = fs::remove_file(&path);
        run(Command::new("mkfifo").arg(&path));
    }
    node.del(&pod, &config).is_silent();
    assert_eq!(node.links(), ["cni0"]);
    let _ = node.add(&pod, &config).result();
    assert!(pod.pings("10.244.7.1"));
    node.del(&pod, &config).is_silent();
    assert!(!node.store().join("10.244.7.2").exists());
}
