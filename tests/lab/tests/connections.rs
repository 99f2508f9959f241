//! Broken connections are reported by kind and node, with every kind of rules for services.

mod cluster;

use std::time::Duration;

use anyhow::Result;
use cluster::{Cluster, env, islands, ordered_pairs};
use tweed_lab::{Connections, Kind, Outcome, Proxy, Worker};

const PROXIES: [Proxy; 4] =
    [Proxy::Plain, Proxy::KubeIptables, Proxy::KubeIptablesLegacy, Proxy::KubeNftables];

/// The rules of a route daemon for packets that enter or leave the network of the pods.
const MASQUERADE: &str = "table ip lab {
        chain postrouting { type nat hook postrouting priority srcnat;
            meta mark & 0x4000 != 0 return
            ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 masquerade
            ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade; }
    }";

/// A node for each kind of rules, all in one tunnel, and a machine outside.
fn start() -> Result<(Cluster, Connections)> {
    let it = islands(PROXIES.len());
    it.prepare_tunnels();
    for (from, to) in ordered_pairs(it.nodes.len()) {
        it.route_through_tunnel(from, to);
    }
    for (number, node) in (1..).zip(&it.nodes) {
        std::fs::write(node.subnet_file(), env(number).to_string())?;
        node.namespace().run("nft", &[MASQUERADE])?;
    }
    let outside = it.lab.node("outside", &it.segment)?;
    let workers = it.nodes.iter().cloned().zip(it.pods.iter().cloned()).zip(PROXIES);
    let workers = workers.map(|((node, pod), proxy)| Worker { node, pod, proxy }).collect();
    let connections = Connections::prepare(workers, [(0, 1), (1, 2), (2, 3), (3, 0)], &outside)?;
    Ok((it, connections))
}

#[test]
fn on_a_quiet_network_no_connection_breaks_also_while_rules_are_rewritten() -> Result<()> {
    let (it, mut connections) = start()?;
    connections.open()?;
    connections.sync_services()?;
    connections.open()?;
    let outcomes = connections.take()?;
    assert_eq!(outcomes.len(), Kind::ALL.len() * it.nodes.len());
    for (key, Outcome { open, broken, worst }) in outcomes {
        assert_eq!((open, broken), (2, vec![]), "{key:?}");
        assert!(worst > Duration::ZERO, "{key:?}");
    }
    Ok(())
}

#[test]
fn masqueraded_connections_break_on_another_device_and_are_counted_once() -> Result<()> {
    let (it, mut connections) = start()?;
    connections.open()?;
    for (from, to) in ordered_pairs(it.nodes.len()) {
        it.route_directly(from, to);
    }
    for ((kind, node), Outcome { open, broken, .. }) in connections.take()? {
        let is_masqueraded = [Kind::OutsideToPod, Kind::HostToService].contains(&kind);
        assert_eq!((open, broken.len()), (1, usize::from(is_masqueraded)), "{kind:?} {node}");
    }
    connections.open()?;
    for ((kind, node), Outcome { broken, .. }) in connections.take()? {
        assert!(broken.is_empty(), "{kind:?} {node}: {broken:?}");
    }
    Ok(())
}

#[test]
fn without_a_path_a_new_connection_counts_as_broken() -> Result<()> {
    let (it, mut connections) = start()?;
    let lost = cluster::subnet(1);
    it.nodes[0].ip(format!("route replace blackhole {lost}"))?;
    connections.open()?;
    let outcomes = connections.take()?;
    let broken = |kind| outcomes[&(kind, "n1".to_owned())].broken.len();
    assert_eq!(Kind::ALL.map(broken), [1, 1, 1, 0, 0]);
    Ok(())
}
