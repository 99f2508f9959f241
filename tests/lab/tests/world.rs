//! Namespaces, wires, pods and the facts read from the kernel.

mod cluster;

use std::time::Duration;

use anyhow::Result;
use cluster::{base, direct, islands, mac, subnet};
use tweed_lab::{
    Family, Host, Lab, NodePlan, PATIENCE, Path, ReversePath, SegmentPlan, SubnetEnv, eventually,
};

#[test]
fn pods_reach_each_other_over_a_direct_path() -> Result<()> {
    let it = direct(2);
    it.pods[0].reaches(it.pods[1].address(Family::V4)?, 56)?;
    let route = it.nodes[0].route_to(subnet(1))?.unwrap();
    assert_eq!(route.gateway, Some(it.nodes[1].address(Family::V4)?));
    assert_eq!(route.protocol.as_deref(), Some("241"));
    assert!(!route.onlink());
    assert_eq!(it.nodes[0].path_to(subnet(1))?, Path::Direct);
    Ok(())
}

#[test]
fn pods_reach_each_other_through_a_tunnel() -> Result<()> {
    let it = islands(2);
    it.prepare_tunnels();
    it.route_through_tunnel(0, 1);
    it.route_through_tunnel(1, 0);
    it.pods[0].reaches(it.pods[1].address(Family::V4)?, 1422)?;
    it.pods[0].ping(it.pods[1].address(Family::V4)?, 1423).unwrap_err();
    assert!(it.nodes[0].route_to(subnet(1))?.unwrap().onlink());
    assert_eq!(it.nodes[0].path_to(subnet(1))?, Path::Tunnel);
    Ok(())
}

#[test]
fn the_devices_of_a_node_are_listed_in_full() -> Result<()> {
    let it = islands(2);
    it.prepare_tunnels();
    let link = it.nodes[0].link("flannel.1")?.unwrap();
    assert_eq!((link.mac.as_str(), link.mtu, link.up), (mac(0).as_str(), 1450, true));
    let vxlan = link.vxlan.unwrap();
    assert_eq!((vxlan.id, vxlan.port, vxlan.learning), (1, 8472, false));
    assert_eq!(vxlan.link.as_deref(), Some("eth0"));
    assert_eq!(vxlan.local, Some(it.nodes[0].address(Family::V4)?));
    let neighbours = it.nodes[0].neighbours("flannel.1")?;
    assert_eq!(neighbours.len(), 1);
    assert_eq!(neighbours[0].address.to_string(), base(1));
    assert!(neighbours[0].is_permanent());
    let fdb = it.nodes[0].fdb("flannel.1")?;
    assert_eq!((fdb.len(), fdb[0].mac.as_str()), (1, mac(1).as_str()));
    assert_eq!(fdb[0].remote, Some(it.nodes[1].address(Family::V4)?));
    let addresses = it.nodes[0].addresses("flannel.1")?;
    assert!(addresses.iter().any(|it| it.address.to_string() == format!("{}/32", base(0))));
    assert_eq!(it.nodes[0].link("flannel.2")?, None);
    assert_eq!(it.nodes[0].path_to("10.244.77.0/24")?, Path::None);
    Ok(())
}

#[test]
fn a_router_joins_two_segments_in_both_families() -> Result<()> {
    let lab = Lab::bare()?;
    let near = lab.segment(SegmentPlan::new("10.99.1.0/24").and("fd99:1::/64").mtu(9000))?;
    let far = lab.segment(SegmentPlan::new("10.99.2.0/24").and("fd99:2::/64").mtu(9000))?;
    let before = lab.node("before", &near)?;
    lab.router("router", &[&near, &far])?;
    let after = lab.node("after", &far)?;
    for family in [Family::V4, Family::V6] {
        let address = after.address(family)?.to_string();
        let words = ["-n", "-c1", "-W1", "-s", "8900", "-Mdo", &address];
        eventually(PATIENCE, || before.namespace().run("ping", &words).map(drop))?;
    }
    assert_eq!(before.link("eth0")?.unwrap().mtu, 9000);
    Ok(())
}

#[test]
fn a_dual_stack_pod_has_an_address_of_each_family() -> Result<()> {
    let it = islands(1);
    let node = it.lab.node("dual", &it.segment)?;
    let env: SubnetEnv = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.9.1/24\n\
        FLANNEL_IPV6_NETWORK=fd00:244::/48\nFLANNEL_IPV6_SUBNET=fd00:244:0:9::1/64\n\
        FLANNEL_MTU=1430\nFLANNEL_IPMASQ=false\n"
        .parse()?;
    std::fs::write(node.subnet_file(), env.to_string())?;
    let (pod, other) = (node.pod()?, node.pod()?);
    assert_eq!(pod.address(Family::V4)?.to_string(), "10.244.9.2");
    assert_eq!(other.address(Family::V6)?.to_string(), "fd00:244:0:9::3");
    assert_eq!(node.subnet_env()?.subnet(Family::V6).unwrap().to_string(), "fd00:244:0:9::/64");
    pod.reaches(other.address(Family::V4)?, 1402)?;
    pod.reaches(other.address(Family::V6)?, 1382)
}

#[test]
fn a_cut_wire_drops_packets_and_keeps_its_carrier() -> Result<()> {
    let it = direct(2);
    let to = it.pods[1].address(Family::V4)?;
    it.nodes[1].underlay().cut()?;
    it.pods[0].ping(to, 56).unwrap_err();
    assert!(it.nodes[1].ip("link show eth0")?.contains("LOWER_UP"));
    it.nodes[1].underlay().restore()?;
    eventually(PATIENCE, || it.pods[0].ping(to, 56)).map(drop)
}

#[test]
fn an_unplugged_wire_has_no_carrier() -> Result<()> {
    let it = direct(2);
    it.nodes[1].underlay().unplug()?;
    assert!(it.nodes[1].ip("link show eth0")?.contains("NO-CARRIER"));
    it.nodes[1].underlay().restore()?;
    let to = it.pods[1].address(Family::V4)?;
    eventually(PATIENCE, || it.pods[0].ping(to, 56)).map(drop)
}

#[test]
fn isolated_wires_are_cut_off_only_from_each_other() -> Result<()> {
    let it = direct(3);
    it.nodes[0].underlay().isolate()?;
    it.nodes[1].underlay().isolate()?;
    it.pods[0].ping(it.pods[1].address(Family::V4)?, 56).unwrap_err();
    it.pods[0].reaches(it.pods[2].address(Family::V4)?, 56)?;
    it.nodes[1].underlay().restore()?;
    let to = it.pods[1].address(Family::V4)?;
    eventually(PATIENCE, || it.pods[0].ping(to, 56)).map(drop)
}

#[test]
fn a_strict_node_filters_by_reverse_path_on_every_device() -> Result<()> {
    let it = islands(1);
    let strict = NodePlan::new("strict", &it.segment).reverse_path(ReversePath::Strict);
    let strict = it.lab.node_with(&strict)?;
    assert_eq!(strict.namespace().sysctl("net.ipv4.conf.all.rp_filter")?, "1");
    assert_eq!(strict.namespace().sysctl("net.ipv4.conf.eth0.rp_filter")?, "1");
    assert_eq!(it.nodes[0].namespace().sysctl("net.ipv4.conf.eth0.rp_filter")?, "0");
    Ok(())
}

#[test]
fn a_lab_removes_its_namespaces_and_files() -> Result<()> {
    let it = islands(1);
    let namespace = it.nodes[0].namespace().clone();
    let folder = it.nodes[0].folder();
    drop(it.lab);
    let left = std::process::Command::new("ip").args(["netns", "list"]).output()?;
    assert!(!String::from_utf8(left.stdout)?.contains(&format!("{} ", namespace.name())));
    assert!(namespace.ip("link").is_err());
    assert!(!folder.exists());
    Ok(())
}

#[test]
fn a_wait_that_times_out_reports_the_last_state() {
    let error = eventually(Duration::from_millis(20), || -> Result<()> {
        anyhow::bail!("the route is missing")
    });
    assert!(error.unwrap_err().to_string().ends_with("not within 20ms: the route is missing"));
}

#[test]
fn a_host_has_its_own_files_and_loses_its_processes_in_a_power_cut() -> Result<()> {
    let it = islands(2);
    let [left, right] = [Host::boot(&it.nodes[0])?, Host::boot(&it.nodes[1])?];
    left.run("touch", &["/var/lib/kept", "/run/lost", "/run/flannel/of-the-node"])?;
    left.run("sh", &["-c", "sleep 1000 >/dev/null 2>&1 & echo $! >/var/lib/pid"])?;
    assert!(right.list("/var/lib")?.is_empty());
    assert!(it.nodes[0].folder().join("of-the-node").exists());
    left.cut_power()?;
    assert_eq!(left.list("/var/lib")?, ["kept", "pid"]);
    assert!(!left.list("/run")?.contains(&"lost".to_owned()));
    assert_eq!(left.list("/run/flannel")?, ["of-the-node"]);
    let is_gone = "! kill -0 $(cat /var/lib/pid) 2>/dev/null";
    eventually(PATIENCE, || left.run("sh", &["-c", is_gone]).map(drop))?;
    Ok(())
}
