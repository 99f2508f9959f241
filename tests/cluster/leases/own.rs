//! Leases as flannel writes them, maintained only by the node that holds them.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ipnetwork::IpNetwork;
use tweed_lab::{
    Change, Daemon, Entry, Etcd, Family, Lab, Monitor, Node, Path, SegmentPlan, SubnetEnv,
    eventually,
};

use crate::fixture::ask::{exit_code, is_confirmed, json, throughout};
use crate::fixture::cluster::{CONFIG, Cluster, PATIENCE, SUBNETS, binaries};
use crate::fixture::peer::{Peer, host_gw, key, key_of, vxlan};

const VXLAN: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
const A_WHILE: Duration = Duration::from_secs(1);
const ATTEMPTS: usize = 5;

/// Starts a daemon with its own network config and returns its only lease.
fn lease_of(lab: &Lab, etcd: &Etcd, node: &Node, config: &str) -> Result<Entry> {
    let prefix = format!("/{}", node.name());
    etcd.put(&format!("{prefix}/config"), config)?;
    let daemon = node.daemon(etcd).argument(format!("--etcd-prefix={prefix}")).start()?;
    daemon.wait_ready()?;
    let mut leases = etcd.list(&format!("{prefix}/subnets"))?;
    ensure!(leases.len() == 1, "{leases:?} in a lab of {} pods", lab.pods().len());
    leases.pop().context("no lease")
}

/// The subnet in the form of a key, from the node's subnet file.
fn subnet_in_key(node: &Node) -> Result<String> {
    let text = |subnet: IpNetwork| subnet.to_string().replace('/', "-");
    let env = node.subnet_env()?;
    let v4 = env.subnet(Family::V4).map_or_else(|| "0.0.0.0-0".to_owned(), text);
    let v6 = env.subnet(Family::V6).map(text);
    Ok(v6.map_or(v4.clone(), |v6| format!("{v4}&{v6}")))
}

fn mac(node: &Node, device: &str) -> Result<String> {
    Ok(node.link(device)?.with_context(|| format!("no {device}"))?.mac)
}

#[test]
fn leases_are_written_byte_for_byte_as_flannel_writes_them() {
    let lab = Lab::new(binaries()).unwrap();
    let etcd = lab.etcd().unwrap();
    let segment = lab.segment(SegmentPlan::new("10.99.1.0/24").and("fd99:1::/64")).unwrap();
    let v4 = r#""Network":"10.244.0.0/16""#;
    let v6 = r#""EnableIPv6":true,"IPv6Network":"fd00:244::/48""#;
    let data = |name: &str, mac: &str| format!(r#""{name}":{{"VNI":1,"VtepMAC":"{mac}"}}"#);

    let check = |name: &str, config: String, value: &dyn Fn(&Node) -> Result<String>| {
        let node = lab.node(name, &segment).unwrap();
        let lease = lease_of(&lab, &etcd, &node, &config).unwrap();
        assert_eq!(lease.key, format!("/{name}/subnets/{}", subnet_in_key(&node).unwrap()));
        let public_ip = node.address(Family::V4).unwrap();
        let expected = value(&node).unwrap().replace("IP4", &public_ip.to_string());
        let public_ip = node.address(Family::V6).unwrap();
        assert_eq!(lease.value, expected.replace("IP6", &public_ip.to_string()));
        let term = etcd.etcdctl(&["lease", "timetolive", &format!("{:x}", lease.lease)]).unwrap();
        assert!(term.contains("granted with TTL(86400s)"), "{term}");
    };
    check("vxlan", format!(r#"{{{v4},"Backend":{{"Type":"vxlan"}}}}"#), &|node| {
        let data = data("BackendData", &mac(node, "flannel.1")?);
        Ok(format!(r#"{{"PublicIP":"IP4","PublicIPv6":null,"BackendType":"vxlan",{data}}}"#))
    });
    check("hostgw", format!(r#"{{{v4},"Backend":{{"Type":"host-gw"}}}}"#), &|_| {
        Ok(r#"{"PublicIP":"IP4","PublicIPv6":null,"BackendType":"host-gw"}"#.to_owned())
    });
    check("mixed", format!(r#"{{{v4},"Mixed":true,"Backend":{{"Type":"host-gw"}}}}"#), &|node| {
        let data = data("BackendData", &mac(node, "flannel.1")?);
        Ok(format!(r#"{{"PublicIP":"IP4","PublicIPv6":null,"BackendType":"host-gw",{data}}}"#))
    });
    check("dual", format!(r#"{{{v4},{v6},"Backend":{{"Type":"vxlan"}}}}"#), &|node| {
        let both = [
            data("BackendData", &mac(node, "flannel.1")?),
            data("BackendV6Data", &mac(node, "flannel-v6.1")?),
        ];
        let both = both.join(",");
        Ok(format!(r#"{{"PublicIP":"IP4","PublicIPv6":"IP6","BackendType":"vxlan",{both}}}"#))
    });
    check("six", format!(r#"{{"EnableIPv4":false,{v6},"Backend":{{"Type":"vxlan"}}}}"#), &|node| {
        let data = data("BackendV6Data", &mac(node, "flannel-v6.1")?);
        Ok(format!(r#"{{"PublicIP":"0.0.0.0","PublicIPv6":"IP6","BackendType":"vxlan",{data}}}"#))
    });
}

/// All begin with the same candidate, and the number of subnets is just sufficient.
#[test]
fn twenty_daemons_race_for_twenty_subnets_and_each_gets_one() {
    const DAEMONS: u32 = 20;
    const ROUNDS: usize = 10;
    let config = r#"{"Network":"10.244.0.0/16","SubnetMin":"10.244.1.0","SubnetMax":"10.244.20.0",
        "Backend":{"Type":"host-gw"}}"#;
    let mut cluster = Cluster::start(0, config).unwrap();
    for number in 0..DAEMONS {
        let node = cluster.lab.node(&format!("n{number}"), &cluster.segment).unwrap();
        let public_ip = Ipv4Addr::from_bits(0x0a32_0000 + number * DAEMONS);
        let daemon = node.daemon(&cluster.etcd).argument(format!("--public-ip={public_ip}"));
        cluster.daemons.push(daemon.start().unwrap());
        cluster.nodes.push(node);
    }
    for round in 1..=ROUNDS {
        race_is_fair(&cluster).with_context(|| format!("in round {round}")).unwrap();
        cluster.daemons.iter().try_for_each(|daemon| daemon.kill().map(|_| ())).unwrap();
        cluster.etcd.etcdctl(&["del", "--prefix", SUBNETS]).unwrap();
        if round < ROUNDS {
            for (node, daemon) in cluster.nodes.iter().zip(&mut cluster.daemons) {
                std::fs::remove_dir_all(node.folder()).unwrap();
                std::fs::create_dir(node.folder()).unwrap();
                daemon.start().unwrap();
            }
        }
    }
}

fn race_is_fair(cluster: &Cluster) -> Result<()> {
    let took: Vec<_> = cluster.daemons.iter().map(Daemon::wait_ready).collect::<Result<_>>()?;
    let leases = cluster.etcd.list(SUBNETS)?;
    let keys: BTreeSet<&str> = leases.iter().map(|lease| lease.key.as_str()).collect();
    let values: BTreeSet<&str> = leases.iter().map(|lease| lease.value.as_str()).collect();
    ensure!((keys.len(), values.len()) == (20, 20), "{leases:?}");
    let held = cluster.nodes.iter().map(key_of).collect::<Result<BTreeSet<_>>>()?;
    ensure!(held.iter().map(String::as_str).collect::<BTreeSet<_>>() == keys, "{held:?}");
    println!("all were ready after {:?}", took.iter().sum::<Duration>());
    Ok(())
}

/// Removes the lease of the first of three nodes; only its holder reacts. Peers withdraw their
/// routes after two seconds: a busy machine may need longer than that, but not each time.
fn is_claimed_again(take: impl Fn(&Etcd, &Entry) -> Result<()>) -> Result<()> {
    let cluster = Cluster::start(3, VXLAN)?;
    for _ in 0..ATTEMPTS {
        let (took, changes) = changes_at_a_loss(&cluster, &take)?;
        if changes.is_empty() {
            return Ok(());
        }
        ensure!(took > Duration::from_secs(1), "{changes:?}");
    }
    bail!("the peers withdrew their routes {ATTEMPTS} times")
}

/// How long it took until the lease was there again, and what changed on all nodes.
fn changes_at_a_loss(
    cluster: &Cluster,
    take: impl Fn(&Etcd, &Entry) -> Result<()>,
) -> Result<(Duration, Vec<Change>)> {
    cluster.wait_for_paths(|_, _| Path::Tunnel)?;
    let (etcd, key) = (&cluster.etcd, key_of(&cluster.nodes[0])?);
    let lease = etcd.get(&key)?.context("no lease")?;
    let monitors = cluster.nodes.iter().map(Node::monitor).collect::<Result<Vec<_>>>()?;
    take(etcd, &lease)?;
    let took = eventually(PATIENCE, || {
        let again = etcd.get(&key)?.context("the lease is gone")?;
        ensure!(again.value == lease.value && again.mod_revision > lease.mod_revision, "{again:?}");
        Ok(())
    })?;
    println!("claimed again after {took:?}");
    // Longer than it takes until the routes to a lost peer are withdrawn.
    throughout(Duration::from_secs(3), || {
        ensure!(cluster.nodes.iter().all(|node| key_of(node).is_ok()));
        Ok(())
    })?;
    let changes = monitors.into_iter().map(Monitor::finish).collect::<Result<Vec<_>>>()?;
    Ok((took, changes.concat()))
}

#[test]
fn a_lease_that_was_deleted_is_claimed_again_at_once() {
    is_claimed_again(|etcd, lease| etcd.delete(&lease.key)).unwrap();
}

#[test]
fn a_lease_whose_term_ended_is_claimed_again_at_once() {
    is_claimed_again(|etcd, lease| etcd.revoke(lease.lease)).unwrap();
}

#[test]
fn a_daemon_whose_subnet_was_taken_ends_and_names_the_holder() {
    let cluster = Cluster::start(2, VXLAN).unwrap();
    cluster.wait_for_paths(|_, _| Path::Tunnel).unwrap();
    let (node, daemon) = (&cluster.nodes[0], &cluster.daemons[0]);
    let kernel = node.snapshot().unwrap();
    let subnet = node.subnet_env().unwrap().subnets()[0];
    let taken = vxlan("10.99.1.77", "02:00:00:00:00:77");
    let key = key_of(node).unwrap();
    cluster.etcd.put(&key, &taken).unwrap();
    assert_eq!(exit_code(daemon, PATIENCE).unwrap(), 1);
    let words = daemon.process().last_words();
    let sentence =
        format!("subnet {subnet} of this node is held by the node with public IP 10.99.1.77");
    assert!(words.contains(&sentence), "{words}");
    assert_eq!(kernel.changes(&node.snapshot().unwrap()), Vec::<String>::new());
    assert!(!node.subnet_file().exists(), "pods may get addresses of the other node");
    let held = cluster.etcd.get(&key).unwrap().unwrap();
    assert_eq!(held.value, taken);
}

/// A garbled record belongs to no node, so the daemon need not yield.
#[test]
fn a_daemon_repairs_its_own_garbled_lease() {
    let cluster = Cluster::start(1, VXLAN).unwrap();
    let key = key_of(&cluster.nodes[0]).unwrap();
    let lease = cluster.etcd.get(&key).unwrap().unwrap();
    cluster.etcd.put(&key, "{").unwrap();
    let restored = || Ok::<_, anyhow::Error>(cluster.etcd.get(&key)?.unwrap().value == lease.value);
    eventually(PATIENCE, restored).unwrap();
    assert!(cluster.daemons[0].process().is_running());
}

#[test]
fn a_reservation_stays_one() {
    let mut cluster = Cluster::start(0, VXLAN).unwrap();
    let node = cluster.lab.node("n1", &cluster.segment).unwrap();
    let reserved = key("10.244.50.0/24");
    cluster.etcd.put(&reserved, &host_gw(node.address(Family::V4).unwrap())).unwrap();
    cluster.add(node).unwrap();
    let is_reservation = |cluster: &Cluster| {
        ensure!(key_of(&cluster.nodes[0])? == reserved, "another subnet");
        let lease = cluster.etcd.get(&reserved)?.context("no lease")?;
        ensure!(lease.lease == 0 && lease.value.contains(r#""BackendType":"vxlan""#), "{lease:?}");
        let leases = json(&cluster.daemons[0], "leases")?;
        ensure!(leases[0]["own"] == true && leases[0]["reservation"] == true, "{leases}");
        Ok(())
    };
    eventually(PATIENCE, || is_reservation(&cluster)).unwrap();
    cluster.daemons[0].restart().unwrap();
    eventually(PATIENCE, || is_reservation(&cluster)).unwrap();
    // An operator turns a held lease into a reservation.
    let value = cluster.etcd.get(&reserved).unwrap().unwrap().value;
    cluster.etcd.delete(&reserved).unwrap();
    let with_term = || Ok::<_, anyhow::Error>(cluster.etcd.get(&reserved)?.is_some());
    eventually(PATIENCE, with_term).unwrap();
    cluster.etcd.put(&reserved, &value).unwrap();
    // The daemon is notified a moment later.
    eventually(PATIENCE, || is_reservation(&cluster)).unwrap();
    throughout(A_WHILE, || is_reservation(&cluster)).unwrap();
    cluster.daemons[0].kill().unwrap();
    cluster.daemons[0].start().unwrap();
    cluster.daemons[0].wait_ready().unwrap();
    eventually(PATIENCE, || is_reservation(&cluster)).unwrap();
}

fn write_previous(node: &Node, gateway: &str) -> Result<()> {
    let (networks, gateways) = (vec!["10.244.0.0/16".parse()?], vec![gateway.parse()?]);
    let env = SubnetEnv { networks, gateways, mtu: 1450, masquerade: false };
    Ok(std::fs::write(node.subnet_file(), env.to_string())?)
}

#[test]
fn the_subnet_of_running_pods_is_taken_again() {
    let mut cluster = Cluster::start(0, VXLAN).unwrap();
    let node = cluster.lab.node("n1", &cluster.segment).unwrap();
    write_previous(&node, "10.244.77.1/24").unwrap();
    cluster.add(node).unwrap();
    assert_eq!(key_of(&cluster.nodes[0]).unwrap(), key("10.244.77.0/24"));
}

#[test]
fn a_start_does_not_renumber_pods_whose_subnet_is_held_by_another() {
    let cluster = Cluster::start(0, VXLAN).unwrap();
    let node = cluster.lab.node("n1", &cluster.segment).unwrap();
    write_previous(&node, "10.244.101.1/24").unwrap();
    Peer::numbered(1).join(&cluster.etcd).unwrap();
    let (file, routes) = (std::fs::read(node.subnet_file()).unwrap(), node.routes(Family::V4));
    let daemon = node.daemon(&cluster.etcd).start().unwrap();
    assert_eq!(exit_code(&daemon, PATIENCE).unwrap(), 1);
    let words = daemon.process().last_words();
    let sentence = format!(
        "subnet 10.244.101.0/24 of this node is held by the node with public IP 10.99.1.101: \
         stop one of the two nodes, or remove {}",
        node.subnet_file().display()
    );
    assert!(words.contains(&sentence), "{words}");
    assert_eq!(std::fs::read(node.subnet_file()).unwrap(), file);
    assert_eq!(node.routes(Family::V4).unwrap(), routes.unwrap());
    assert_eq!(cluster.etcd.list(SUBNETS).unwrap().len(), 1);
}

#[test]
fn a_daemon_ends_when_no_subnet_is_free() {
    let config = r#"{"Network":"10.244.0.0/16","SubnetMin":"10.244.101.0",
        "SubnetMax":"10.244.102.0","Backend":{"Type":"host-gw"}}"#;
    let mut cluster = Cluster::start(0, config).unwrap();
    Peer::numbered(1).join(&cluster.etcd).unwrap();
    let node = cluster.lab.node("n1", &cluster.segment).unwrap();
    cluster.add(node).unwrap();
    assert_eq!(key_of(&cluster.nodes[0]).unwrap(), key("10.244.102.0/24"));
    let node = cluster.lab.node("n2", &cluster.segment).unwrap();
    let daemon = node.daemon(&cluster.etcd).start().unwrap();
    assert_eq!(exit_code(&daemon, PATIENCE).unwrap(), 1);
    let words = daemon.process().last_words();
    assert!(words.contains("no subnet is free in 10.244.0.0/16"), "{words}");
    assert!(!node.subnet_file().exists());
}

#[test]
fn a_config_that_is_written_while_leases_are_there_finds_the_one_of_this_node() {
    let mut cluster = Cluster::start(0, VXLAN).unwrap();
    let node = cluster.lab.node("n1", &cluster.segment).unwrap();
    let address: IpAddr = node.address(Family::V4).unwrap();
    // A lease of this node by flannel, and an older one that is outside the network's range now.
    let outdated = key("10.99.200.0/24");
    cluster.etcd.put(&outdated, &host_gw(address)).unwrap();
    let term = cluster.etcd.grant(3600).unwrap();
    let ours = key("10.244.9.0/24");
    cluster.etcd.put_with_lease(&ours, &vxlan(address, "02:00:00:00:00:09"), term).unwrap();
    cluster.etcd.put(CONFIG, VXLAN).unwrap();
    cluster.add(node).unwrap();
    assert_eq!(key_of(&cluster.nodes[0]).unwrap(), ours);
    let is_gone = || cluster.etcd.get(&outdated).map(|lease| lease.is_none());
    eventually(PATIENCE, is_gone).unwrap();
}

#[test]
fn a_lease_has_the_term_of_the_flag_and_is_given_back_on_request() {
    let lab = Lab::new(binaries()).unwrap();
    let etcd = lab.etcd().unwrap();
    etcd.put("/coreos.com/network/config", VXLAN).unwrap();
    let segment = lab.segment("10.99.1.0/24").unwrap();
    let [node, peer] = ["n1", "n2"].map(|name| lab.node(name, &segment).unwrap());
    peer.daemon(&etcd).start().unwrap().wait_ready().unwrap();
    let public_ip = node.address(Family::V4).unwrap().to_string();
    let lease = || etcd.list(SUBNETS).unwrap().into_iter().find(|it| it.value.contains(&public_ip));
    let mut before = None;
    for minutes in [90, 120] {
        let ttl = format!("--subnet-lease-ttl={minutes}");
        let daemon =
            node.daemon(&etcd).argument(ttl).argument("--release-on-exit").start().unwrap();
        daemon.wait_ready().unwrap();
        eventually(PATIENCE, || is_confirmed(&daemon)).unwrap();
        let held = lease().unwrap();
        let term = etcd.etcdctl(&["lease", "timetolive", &format!("{:x}", held.lease)]).unwrap();
        assert!(term.contains(&format!("granted with TTL({}s)", minutes * 60)), "{term}");
        assert_eq!(before.get_or_insert_with(|| held.key.clone()), &held.key);
        // Only a signal that can be caught gives the lease back.
        daemon.kill().unwrap();
        assert!(lease().is_some() && node.subnet_file().exists());
    }
    let subnet = node.subnet_env().unwrap().subnet(Family::V4).unwrap().to_string();
    let is_routed = || Ok::<_, anyhow::Error>(peer.ip("route")?.contains(&subnet));
    eventually(PATIENCE, is_routed).unwrap();
    let plan = node.daemon(&etcd).argument("--subnet-lease-ttl=120").argument("--release-on-exit");
    let mut daemon = plan.start().unwrap();
    daemon.wait_ready().unwrap();
    eventually(PATIENCE, || is_confirmed(&daemon)).unwrap();
    daemon.stop().unwrap();
    assert!(lease().is_none() && !node.subnet_file().exists());
    eventually(PATIENCE, || is_routed().map(|routed| !routed)).unwrap();
    // Another node may have the subnet now: it gets the one that is free.
    etcd.put(&before.unwrap(), r#"{"PublicIP":"10.99.1.99","BackendType":"vxlan"}"#).unwrap();
    daemon.start().unwrap();
    daemon.wait_ready().unwrap();
    assert!(lease().is_some() && node.subnet_env().unwrap().subnet(Family::V4).is_some());
}
