//! Faults have the effect that they name, and the records of the kernel show it.

mod cluster;

use anyhow::Result;
use cluster::{Cluster, direct, env, islands, subnet};
use tweed_lab::{Family, Files, PATIENCE, Path, eventually};

#[test]
fn a_snapshot_shows_what_changed_and_nothing_else() -> Result<()> {
    let it = tunnelled()?;
    let node = &it.nodes[0];
    let rules = "table ip other {
        chain forward { type filter hook forward priority 0; ip saddr 10.244.1.2 counter; }
    }";
    node.namespace().run("nft", &[rules])?;
    let before = node.snapshot()?;
    it.pods[0].reaches(it.pods[1].address(Family::V4)?, 56)?;
    assert_eq!(before.changes(&node.snapshot()?), [""; 0]);
    node.ip(format!("route del {}", subnet(1)))?;
    node.bridge(format!("fdb del {} dev flannel.1", cluster::mac(1)))?;
    node.namespace().run("nft", &["add rule ip other forward drop"])?;
    node.namespace().run("sh", &["-c", "echo 2 >/proc/sys/net/ipv4/conf/flannel.1/rp_filter"])?;
    let changes = before.changes(&node.snapshot()?);
    let rules = "nftables table ip other { chain forward { type filter hook forward priority filter; \
                 policy accept; ip saddr 10.244.1.2 counter";
    let expected = [
        "- fdb 02:00:00:00:00:02 dev flannel.1 dst 10.99.1.12",
        &format!("- {rules}"),
        "- route unicast 10.244.2.0/24 via 10.244.2.0 dev flannel.1",
        "- setting ipv4/conf/flannel.1/rp_filter:",
        &format!("+ {rules} drop"),
        "+ setting ipv4/conf/flannel.1/rp_filter:2",
    ];
    assert_eq!(changes.len(), expected.len(), "{changes:#?}");
    for (change, expected) in changes.iter().zip(expected) {
        assert!(change.starts_with(expected), "{change} instead of {expected}");
    }
    Ok(())
}

#[test]
fn a_monitor_records_also_changes_that_were_reverted() -> Result<()> {
    let it = tunnelled()?;
    let monitor = it.nodes[0].monitor()?;
    it.pods[0].reaches(it.pods[1].address(Family::V4)?, 56)?;
    it.nodes[0].ip(format!("route del {}", subnet(1)))?;
    it.route_through_tunnel(0, 1);
    let changes = monitor.finish()?;
    let texts: Vec<_> = changes.iter().map(|it| (it.kind.as_str(), it.text.as_str())).collect();
    let route = "10.244.2.0/24 via 10.244.2.0 dev flannel.1 proto 241 onlink";
    assert_eq!(texts, [("ROUTE", format!("Deleted {route}").as_str()), ("ROUTE", route)]);
    Ok(())
}

#[test]
fn a_monitor_of_a_quiet_node_is_empty() -> Result<()> {
    let it = direct(2);
    let monitor = it.nodes[0].monitor()?;
    it.nodes[1].ip(format!("route del {}", subnet(0)))?;
    assert_eq!(monitor.finish()?, []);
    Ok(())
}

#[test]
fn a_wipe_removes_what_a_reboot_removes_except_for_pods() -> Result<()> {
    let it = tunnelled()?;
    let node = &it.nodes[0];
    node.ip("route add 10.244.77.0/24 via 10.99.1.12")?;
    node.ip("route add 192.0.2.0/24 via 10.99.1.12 proto 241")?;
    node.wipe(Files::Kept)?;
    assert_eq!(node.link("flannel.1")?, None);
    assert_eq!(node.route_to("10.244.77.0/24")?, None);
    assert!(node.route_to("192.0.2.0/24")?.is_some());
    assert_eq!(node.route_to(subnet(0))?.unwrap().dev.as_deref(), Some("cni0"));
    assert!(node.subnet_file().exists());
    node.wipe(Files::Lost)?;
    assert!(!node.subnet_file().exists());
    it.route_directly(0, 1);
    it.route_directly(1, 0);
    it.pods[0].reaches(it.pods[1].address(Family::V4)?, 56)
}

#[test]
fn a_renumbered_node_answers_at_its_new_address() -> Result<()> {
    let it = direct(2);
    let node = &it.nodes[1];
    node.renumber("10.99.1.99".parse()?)?;
    assert_eq!(node.address(Family::V4)?.to_string(), "10.99.1.99");
    assert_eq!(node.addresses("eth0")?.iter().filter(|it| it.address.is_ipv4()).count(), 1);
    node.ip("route get 10.99.1.11 from 10.99.1.99")?;
    it.route_directly(0, 1);
    assert_eq!(node.path_to(subnet(0))?, Path::Direct);
    it.pods[0].reaches(it.pods[1].address(Family::V4)?, 56)
}

#[test]
fn a_device_changes_its_hardware_address() -> Result<()> {
    let it = tunnelled()?;
    it.nodes[0].change_mac("flannel.1", "02:00:00:00:00:77")?;
    assert_eq!(it.nodes[0].link("flannel.1")?.unwrap().mac, "02:00:00:00:00:77");
    it.pods[1].ping(it.pods[0].address(Family::V4)?, 56).unwrap_err();
    Ok(())
}

#[test]
fn blocked_encapsulation_does_not_affect_direct_paths() -> Result<()> {
    let it = tunnelled()?;
    let to = it.pods[1].address(Family::V4)?;
    it.nodes[0].namespace().block("ipproto udp dport 8472")?;
    it.pods[0].ping(to, 56).unwrap_err();
    it.route_directly(0, 1);
    it.pods[0].reaches(to, 56)?;
    it.route_through_tunnel(0, 1);
    it.nodes[0].namespace().unblock("ipproto udp dport 8472")?;
    eventually(PATIENCE, || it.pods[0].ping(to, 56)).map(drop)
}

/// Two nodes that reach each other through a tunnel, with a `subnet.env` each.
fn tunnelled() -> Result<Cluster> {
    let it = islands(2);
    it.prepare_tunnels();
    it.route_through_tunnel(0, 1);
    it.route_through_tunnel(1, 0);
    for (number, node) in (1..).zip(&it.nodes) {
        std::fs::write(node.subnet_file(), env(number).to_string())?;
    }
    Ok(it)
}
