//! Hostile records in etcd change nothing on the nodes.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ipnetwork::IpNetwork;
use tweed_lab::{Daemon, Etcd, Family, Node, Path, SegmentPlan, Snapshot, eventually};

use crate::fixture::ask::{has_saved, is_ready, is_ready_with, json, lease_reason, throughout};
use crate::fixture::cluster::{CONFIG, Cluster, PATIENCE, SUBNETS, binaries};
use crate::fixture::peer::{Peer, host_gw, key, key_of, vxlan};

const VXLAN: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
const MIXED: &str = r#"{"Network":"10.244.0.0/16","Mixed":true,"Backend":{"Type":"host-gw"}}"#;
/// Longer than it takes until the routes to a lost peer are withdrawn.
const A_WHILE: Duration = Duration::from_secs(4);

/// For values too long for a command line, or not text.
fn put_bytes(etcd: &Etcd, key: &str, value: &[u8]) -> Result<()> {
    if value.is_empty() {
        return etcd.put(key, "");
    }
    let member = etcd.members().first().context("no member")?;
    member.namespace().within(|| {
        let mut command = Command::new("etcdctl");
        command.arg(format!("--endpoints={}", member.endpoint()));
        command.args(["--command-timeout=60s", "put", "--", key]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        child.stdin.take().context("no stdin")?.write_all(value)?;
        let status = child.wait()?;
        ensure!(status.success(), "etcdctl put {key}: {status}");
        Ok(())
    })?
}

fn kernels(cluster: &Cluster) -> Result<Vec<Snapshot>> {
    cluster.nodes.iter().map(Node::snapshot).collect()
}

fn are_unchanged(cluster: &Cluster, before: &[Snapshot]) -> Result<()> {
    cluster.nodes.iter().zip(before).try_for_each(|(node, before)| {
        let changes = before.changes(&node.snapshot()?);
        ensure!(changes.is_empty(), "{}: {changes:?}", node.name());
        Ok(())
    })
}

#[test]
fn garbage_below_subnets_changes_no_node() {
    let cluster = Cluster::start(2, VXLAN).unwrap();
    cluster.wait_for_paths(|_, _| Path::Tunnel).unwrap();
    let (near, far) = (cluster.nodes[0].pod().unwrap(), cluster.nodes[1].pod().unwrap());
    near.reaches(far.address(Family::V4).unwrap(), 56).unwrap();
    let before = kernels(&cluster).unwrap();
    let good = r#"{"PublicIP":"10.99.1.200","PublicIPv6":null,"BackendType":"host-gw"}"#;
    let huge = vec![b'a'; 1024 * 1024];
    let deep = "[".repeat(100_000);
    let long = format!(r#"{{"PublicIP":"10.99.1.200","BackendData":"{}"}}"#, "a".repeat(100_000));
    let garbage: [(&str, &[u8]); 18] = [
        ("hello", good.as_bytes()),
        ("10.244.200.0", good.as_bytes()),
        ("10.244.300.0-24", good.as_bytes()),
        ("10.244.200.0-32", good.as_bytes()),
        ("10.244.200.0-24x", good.as_bytes()),
        ("10.244.200.0-24/more", good.as_bytes()),
        ("10.244.200.0-24&nonsense", good.as_bytes()),
        ("0.0.0.0-0", good.as_bytes()),
        ("10.244.201.0-24", b""),
        ("10.244.202.0-24", b"{"),
        ("10.244.203.0-24", b"null"),
        ("10.244.204.0-24", b"[1,2]"),
        ("10.244.205.0-24", br#"{"PublicIP":5}"#),
        ("10.244.206.0-24", br#"{"PublicIP":"10.99.1.300"}"#),
        ("10.244.207.0-24", b"\xff\xfe\x00{}"),
        ("10.244.208.0-24", &huge),
        ("10.244.209.0-24", deep.as_bytes()),
        ("10.244.210.0-24", long.as_bytes()),
    ];
    for (id, value) in garbage {
        put_bytes(&cluster.etcd, &format!("{SUBNETS}/{id}"), value).unwrap();
    }
    for (id, _) in garbage {
        let is_told = || {
            let reason = lease_reason(&cluster.daemons[0], id)?;
            ensure!(reason.starts_with("rejected: "), "{id}: {reason:?}");
            ensure!(reason.len() < 300, "{id}: a reason of {} bytes", reason.len());
            Ok(())
        };
        eventually(PATIENCE, is_told).unwrap();
    }
    are_unchanged(&cluster, &before).unwrap();
    near.reaches(far.address(Family::V4).unwrap(), 56).unwrap();
    // Valid leases are still applied, and an invalid record may become a lease.
    put_bytes(&cluster.etcd, &format!("{SUBNETS}/10.244.201.0-24"), good.as_bytes()).unwrap();
    eventually(PATIENCE, || is_followed(&cluster, "10.244.201.0/24", Path::None)).unwrap();
    let good = vxlan("10.99.1.201", "02:00:00:00:02:01");
    put_bytes(&cluster.etcd, &key("10.244.201.0/24"), good.as_bytes()).unwrap();
    eventually(PATIENCE, || is_followed(&cluster, "10.244.201.0/24", Path::Tunnel)).unwrap();
    let probe = cluster.lab.probe(&cluster.lab.pairs(Family::V4), 100).unwrap();
    for (id, _) in garbage {
        cluster.etcd.delete(&format!("{SUBNETS}/{id}")).unwrap();
    }
    probe.run_for(A_WHILE);
    let report = probe.finish().unwrap();
    assert_eq!(report.lost(), 0, "{report}");
}

/// Leases with texts of the maximum length that etcd's clients accept.
fn long_leases() -> Vec<(String, String)> {
    let long = "\u{1}\u{9b}\u{202e}a".repeat(8_000);
    let text = |number: u8| {
        let (mut ip, mut backend, mut mac) = ("10.99.1.200", "vxlan", "02:00:00:00:09:01");
        match number % 4 {
            0 => ip = &long,
            1 => backend = &long,
            2 => mac = &long,
            _ => return serde_json::json!({ "PublicIP": [&long] }).to_string(),
        }
        let data = serde_json::json!({ "VNI": 1, "VtepMAC": mac });
        serde_json::json!({ "PublicIP": ip, "BackendType": backend, "BackendData": data })
            .to_string()
    };
    (1..=100).map(|number| (format!("{SUBNETS}/10.244.{number}.0-24"), text(number))).collect()
}

#[test]
fn long_texts_in_leases_delay_no_removal() {
    let mut cluster = Cluster::start(2, VXLAN).unwrap();
    let peers: Vec<Peer> = (1..=2).map(|number| Peer::numbered(number + 50)).collect();
    for peer in &peers {
        peer.is_followed_by(&cluster.nodes, &cluster.etcd).unwrap();
    }
    let logged = |cluster: &Cluster| -> Result<usize> {
        cluster.daemons.iter().map(|daemon| Ok(daemon.log()?.len())).sum()
    };
    let before = logged(&cluster).unwrap();
    let own = cluster.nodes.iter().map(key_of).collect::<Result<Vec<_>>>().unwrap();
    let free = |(key, _): &(String, String)| !own.contains(key);
    let long: Vec<_> = long_leases().into_iter().filter(free).collect();
    for (key, value) in &long {
        put_bytes(&cluster.etcd, key, value.as_bytes()).unwrap();
    }
    // Each node's report names them, and etcd accepts it.
    let reports_all = |cluster: &Cluster| {
        let reports = cluster.etcd.list("/coreos.com/network/tweed/nodes/")?;
        let total = format!("\"exceptions_total\":{}", long.len());
        ensure!(reports.len() == 2, "{} reports", reports.len());
        for report in reports {
            ensure!(report.value.contains(&total), "{} lacks {total}", report.key);
            ensure!(report.value.len() <= 64 * 1024, "{} bytes", report.value.len());
        }
        Ok(())
    };
    eventually(PATIENCE, || reports_all(&cluster)).unwrap();
    let is_told =
        |it: &Daemon| is_ready_with(it, "too large for leases: /coreos.com/network/subnets/");
    let are_ready = |cluster: &Cluster| cluster.daemons.iter().try_for_each(is_told);
    eventually(PATIENCE, || are_ready(&cluster)).unwrap();
    throughout(A_WHILE, || are_ready(&cluster)).unwrap();
    let is_gone = |cluster: &Cluster, peer: &Peer| {
        cluster.nodes.iter().try_for_each(|node| peer.is_unknown_to(node))
    };
    peers[0].leave(&cluster.etcd).unwrap();
    eventually(PATIENCE, || is_gone(&cluster, &peers[0])).unwrap();
    let grown = logged(&cluster).unwrap() - before;
    assert!(grown < 100 * 1024, "the logs grew by {grown} bytes");
    // The same records, present from the start, are logged in one line.
    let before = logged(&cluster).unwrap();
    for daemon in &mut cluster.daemons {
        daemon.restart().unwrap();
    }
    eventually(PATIENCE, || are_ready(&cluster)).unwrap();
    peers[1].leave(&cluster.etcd).unwrap();
    eventually(PATIENCE, || is_gone(&cluster, &peers[1])).unwrap();
    let grown = logged(&cluster).unwrap() - before;
    assert!(grown < 16 * 1024, "the logs of a start grew by {grown} bytes");
}

fn is_followed(cluster: &Cluster, subnet: &str, path: Path) -> Result<()> {
    let peers = json(&cluster.daemons[0], "peers")?;
    let known = peers.as_array().context("no list")?.iter().any(|peer| peer["subnet"] == subnet);
    ensure!(known, "{subnet} is not among {peers}");
    ensure!(cluster.nodes[0].path_to(subnet)? == path, "{subnet}: not {path}");
    Ok(())
}

/// A lease that must be rejected: key, value, and a part of the reason.
type Hostile = (String, String, &'static str);

/// Leases that would divert packets of the first node, or of its peer.
fn hostile_leases(victim: &Node, peer: &Node) -> Result<Vec<Hostile>> {
    let (ours, theirs) = (subnet(victim)?, subnet(peer)?);
    let mac_of =
        |node: &Node| Ok::<_, anyhow::Error>(node.link("flannel.1")?.context("no link")?.mac);
    let (our_mac, their_mac) = (mac_of(victim)?, mac_of(peer)?);
    let our_ip = victim.address(Family::V4)?;
    let good =
        |number: u8| vxlan(format!("10.99.1.{number}"), &format!("02:00:00:00:03:{number:x}"));
    let half = |subnet: IpNetwork| format!("{}/25", subnet.network());
    let inside = |subnet: IpNetwork| subnet.iter().nth(5);
    let mut leases: Vec<Hostile> = vec![
        (half(ours), good(201), "overlaps our own subnet"),
        (half(theirs), good(202), "conflicts with lease"),
        ("10.244.0.0/16".to_owned(), good(203), "too short or too long"),
        ("10.244.60.4/31".to_owned(), good(204), "too short or too long"),
        ("10.245.1.0/24".to_owned(), good(205), "not inside the network"),
        ("10.0.0.0/8".to_owned(), good(206), "not inside the network"),
        ("0.0.0.0/0".to_owned(), good(207), ""),
    ];
    let mut number = 60;
    let mut add = |value: String, word: &'static str| {
        number += 1;
        leases.push((format!("10.244.{number}.0/24"), value, word));
    };
    for mac in ["01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00"] {
        add(vxlan("10.99.1.210", mac), "is not a unicast address");
    }
    add(vxlan("10.99.1.210", &our_mac), "is that of this node");
    add(vxlan("10.99.1.210", &their_mac), "conflicts with lease");
    add(vxlan("10.99.1.210", "nonsense"), "");
    let in_pods = [inside(ours), inside(theirs)].into_iter().flatten();
    add(vxlan("0.0.0.0", "02:00:00:00:04:00"), "PublicIP is missing");
    let implausible = ["0.1.2.3", "127.0.0.1", "169.254.3.4", "224.0.0.5", "240.0.0.1"];
    // No node can have the first or the last address of the link.
    let on_link = ["10.99.1.0", "10.99.1.255", "255.255.255.255", "10.244.80.9"];
    let implausible = implausible.iter().chain(&on_link).map(|it| it.parse().unwrap());
    for (address, number) in implausible.chain(in_pods).zip(1..) {
        let value = vxlan(address, &format!("02:00:00:00:04:{number:02x}"));
        add(value, "is not a valid address of a node");
        add(host_gw(address), "is not a valid address of a node");
    }
    add(host_gw(our_ip), "is an address of this node");
    Ok(leases)
}

fn subnet(node: &Node) -> Result<IpNetwork> {
    node.subnet_env()?.subnet(Family::V4).context("no IPv4 subnet")
}

fn hostile_leases_change_nothing(config: &str, path: Path) -> Result<()> {
    let mut cluster = Cluster::start(2, config)?;
    cluster.wait_for_paths(|_, _| path)?;
    let (near, far) = (cluster.nodes[0].pod()?, cluster.nodes[1].pod()?);
    // Its address would divert no packets that its own leases could not.
    let peer = cluster.nodes[1].clone();
    let hostile = hostile_leases(&cluster.nodes[0], &peer)?;
    let before = cluster.nodes[0].snapshot()?;
    for (subnet, value, _) in &hostile {
        cluster.etcd.put(&key(subnet), value)?;
    }
    let is_set_aside = |(subnet, value, word): &Hostile| {
        let id = subnet.replace('/', "-");
        let reason = lease_reason(&cluster.daemons[0], &id)?;
        ensure!(reason.starts_with("rejected: "), "{subnet} {value} was accepted: {reason:?}");
        ensure!(reason.contains(word), "{subnet} {value}: {reason:?} without {word:?}");
        Ok(())
    };
    hostile.iter().try_for_each(|lease| eventually(PATIENCE, || is_set_aside(lease)).map(drop))?;
    let unchanged = |cluster: &Cluster| {
        let changes = before.changes(&cluster.nodes[0].snapshot()?);
        ensure!(changes.is_empty(), "{changes:?}");
        Ok(())
    };
    unchanged(&cluster)?;
    eventually(PATIENCE, || is_ready_with(&cluster.daemons[0], "conflicts with this node"))?;
    near.reaches(far.address(Family::V4)?, 56)?;
    far.reaches(near.address(Family::V4)?, 56)?;
    // The same, with all records present from the start.
    cluster.daemons[0].restart()?;
    unchanged(&cluster)?;
    near.reaches(far.address(Family::V4)?, 56)?;
    far.reaches(near.address(Family::V4)?, 56)
}

#[test]
fn hostile_leases_change_nothing_with_vxlan() {
    hostile_leases_change_nothing(VXLAN, Path::Tunnel).unwrap();
}

#[test]
fn hostile_leases_change_nothing_with_mixed() {
    hostile_leases_change_nothing(MIXED, Path::Direct).unwrap();
}

#[test]
fn hostile_ipv6_leases_change_nothing() {
    let lab = tweed_lab::Lab::new(binaries()).unwrap();
    let etcd = lab.etcd().unwrap();
    let config = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48",
        "Backend":{"Type":"vxlan"}}"#;
    etcd.put(CONFIG, config).unwrap();
    let segment = lab.segment(SegmentPlan::new("10.99.1.0/24").and("fd99:1::/64")).unwrap();
    let node = lab.node("n1", &segment).unwrap();
    let daemon = node.daemon(&etcd).start().unwrap();
    daemon.wait_ready().unwrap();
    let before = node.snapshot().unwrap();
    let ours = node.address(Family::V6).unwrap().to_string();
    let addresses =
        ["::", "::1", "fe80::5", "ff02::1", "::ffff:10.99.1.7", "fd00:244:0:5::9", &ours];
    for (number, address) in (150..).zip(addresses) {
        let id = format!("10.244.{number}.0-24&fd00:244:0:{number}::-64");
        let data = |mac: u8| format!(r#"{{"VNI":1,"VtepMAC":"02:00:00:00:{mac:02x}:{number:x}"}}"#);
        let value = format!(
            r#"{{"PublicIP":"10.99.1.{number}","PublicIPv6":"{address}","BackendType":"vxlan","BackendData":{},"BackendV6Data":{}}}"#,
            data(5),
            data(6)
        );
        let id = id.replace("0:155::", "0:5::");
        etcd.put(&format!("{SUBNETS}/{id}"), &value).unwrap();
        eventually(PATIENCE, || {
            let reason = lease_reason(&daemon, &id)?;
            ensure!(reason.starts_with("rejected: "), "{id} {value}: {reason:?}");
            Ok(())
        })
        .unwrap();
    }
    let subnets = ["10.244.160.0-24&fd00:245::-64", "10.244.161.0-24&fd00:244::-48"];
    for (host, id) in (97..).zip(subnets.into_iter().chain(["10.244.162.0-24"])) {
        let ips = format!(r#""PublicIP":"10.99.1.{host}","PublicIPv6":"fd99:1::{host}""#);
        let value = format!(r#"{{{ips},"BackendType":"host-gw"}}"#);
        etcd.put(&format!("{SUBNETS}/{id}"), &value).unwrap();
    }
    throughout(Duration::from_secs(1), || {
        let changes = before.changes(&node.snapshot()?);
        // The last one is a peer without a path: only the tunnel's guard accepts its packets.
        let is_admitted =
            |it: &String| it.ends_with("set peers { type ipv4_addr elements = { 10.99.1.99 }");
        let is_guards = |it: &String| {
            it.starts_with("- nftables ") && it.ends_with("set peers { type ipv4_addr")
        };
        ensure!(changes.iter().all(|it| is_admitted(it) || is_guards(it)), "{changes:?}");
        Ok(())
    })
    .unwrap();
    let sentence = format!("another node announces our public IP {ours}");
    eventually(PATIENCE, || is_ready_with(&daemon, &sentence)).unwrap();
}

#[test]
fn an_accepted_peer_with_a_garbled_record_keeps_its_route() {
    let mut cluster = Cluster::start(1, VXLAN).unwrap();
    let (node, daemon, etcd) = (&cluster.nodes[0], &mut cluster.daemons[0], &cluster.etcd);
    let peer = Peer::numbered(1);
    peer.is_followed_by(&cluster.nodes, etcd).unwrap();
    let monitor = node.monitor().unwrap();
    for garbage in ["{", "", r#"{"PublicIP":false}"#] {
        etcd.put(&peer.key(), garbage).unwrap();
        eventually(PATIENCE, || {
            let reason = lease_reason(daemon, "10.244.101.0-24")?;
            ensure!(reason.starts_with("the last valid version is used: "), "{reason:?}");
            Ok(())
        })
        .unwrap();
        peer.is_tunnelled_by(node).unwrap();
    }
    // The checkpoint has the last state that was read.
    eventually(PATIENCE, || has_saved(node, "10.244.101.0")).unwrap();
    daemon.kill().unwrap();
    daemon.start().unwrap();
    daemon.wait_ready().unwrap();
    throughout(Duration::from_secs(1), || peer.is_tunnelled_by(node)).unwrap();
    peer.join(etcd).unwrap();
    eventually(PATIENCE, || {
        Ok::<_, anyhow::Error>(lease_reason(daemon, "10.244.101.0-24")?.is_empty())
    })
    .unwrap();
    let changes = monitor.finish().unwrap();
    assert!(changes.is_empty(), "{changes:?}");
}

#[test]
fn a_mass_removal_is_delayed_until_the_leases_return() {
    let cluster = Cluster::start(1, VXLAN).unwrap();
    let (node, daemon, etcd) = (&cluster.nodes[0], &cluster.daemons[0], &cluster.etcd);
    let peers: Vec<Peer> = (1..=6).map(Peer::numbered).collect();
    for peer in &peers {
        peer.is_followed_by(&cluster.nodes, etcd).unwrap();
    }
    let monitor = node.monitor().unwrap();
    let (gone, stays) = peers.split_at(4);
    // At once, as by one transaction.
    let removed = etcd.etcdctl(&["del", "--", &gone[0].key(), &stays[0].key()]).unwrap();
    assert_eq!(removed.trim(), "4");
    let held = "4 of 6 leases vanished at once: their routes are kept";
    eventually(PATIENCE, || is_ready_with(daemon, held)).unwrap();
    throughout(Duration::from_secs(2), || {
        peers.iter().try_for_each(|peer| peer.is_tunnelled_by(node))
    })
    .unwrap();
    assert_eq!(json(daemon, "status").unwrap()["peers"]["missing"], 4);
    gone.iter().try_for_each(|peer| peer.join(etcd)).unwrap();
    eventually(PATIENCE, || is_ready(daemon)).unwrap();
    let changes = monitor.finish().unwrap();
    assert!(changes.is_empty(), "{changes:?}");

    // A single peer that leaves is withdrawn at once.
    stays[0].leave(etcd).unwrap();
    let took = eventually(PATIENCE, || stays[0].is_unknown_to(node)).unwrap();
    println!("a peer that is gone was withdrawn after {took:?}");
    let rest = [gone, &stays[1..]].concat();
    throughout(Duration::from_secs(1), || {
        rest.iter().try_for_each(|peer| peer.is_tunnelled_by(node))
    })
    .unwrap();
    eventually(PATIENCE, || is_ready(daemon)).unwrap();
}

#[test]
fn an_operator_can_allow_a_mass_removal() {
    let mut cluster = Cluster::start(0, VXLAN).unwrap();
    let node = cluster.lab.node("n1", &cluster.segment).unwrap();
    let peers: Vec<Peer> = (1..=6).map(Peer::numbered).collect();
    peers.iter().try_for_each(|peer| peer.join(&cluster.etcd)).unwrap();
    cluster.add(node.clone()).unwrap();
    cluster.daemons[0].stop().unwrap();
    let daemon = node.daemon(&cluster.etcd).argument("--max-withdraw=100").start().unwrap();
    daemon.wait_ready().unwrap();
    peers[..4].iter().try_for_each(|peer| peer.leave(&cluster.etcd)).unwrap();
    eventually(PATIENCE, || peers[..4].iter().try_for_each(|peer| peer.is_unknown_to(&node)))
        .unwrap();
    peers[4..].iter().try_for_each(|peer| peer.is_tunnelled_by(&node)).unwrap();
    eventually(PATIENCE, || is_ready(&daemon)).unwrap();
}

#[test]
fn a_lease_for_the_whole_address_space_diverts_nothing() {
    let cluster = Cluster::start(1, VXLAN).unwrap();
    let way = || cluster.nodes[0].ip("route get 172.31.0.11").unwrap();
    let before = way();
    for id in ["0.0.0.0-0", "0.0.0.0-1", "172.31.0.0-16"] {
        cluster.etcd.put(&format!("{SUBNETS}/{id}"), &host_gw("10.99.1.66")).unwrap();
        eventually(PATIENCE, || {
            let reason = lease_reason(&cluster.daemons[0], id)?;
            ensure!(reason.starts_with("rejected: "), "{id}: {reason:?}");
            Ok(())
        })
        .unwrap();
    }
    assert_eq!(way(), before);
}
