//! Starts pods on a node, behind its bridge `cni0`.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use ipnetwork::IpNetwork;

use crate::network::address::nth;
use crate::network::namespace::Namespace;
use crate::network::pod::Pod;
use crate::node::Node;
use crate::node::subnet_env::SubnetEnv;
use crate::wait::{PATIENCE, eventually};

/// Number `number` of the pods of `node`.
pub(super) fn build(node: &Node, env: &SubnetEnv, number: u32) -> Result<Pod> {
    if number == 1 {
        bridge(node, env)?;
    }
    let namespace = node.world().namespace(&format!("{}-pod{number}", node.name()))?;
    namespace.set_sysctl("net.ipv6.conf.default.accept_dad", "0")?;
    connect(node, &namespace, env.mtu, number)?;
    let address = |gateway: &IpNetwork| nth(*gateway, number + 1);
    let addresses = env.gateways.iter().map(address).collect::<Result<Vec<_>>>()?;
    let mut lines = format!("link set eth0 mtu {} up\n", env.mtu);
    for (address, gateway) in addresses.iter().zip(&env.gateways) {
        writeln!(lines, "address add {address} dev eth0 nodad")?;
        writeln!(lines, "route add default via {}", gateway.ip())?;
    }
    namespace.ip_batch(&lines)?;
    wait_for_carrier(node, number)?;
    let pod = Pod::new(node.name(), number, namespace, addresses);
    // The first packet may wait for a neighbour, or the bridge may have no carrier yet.
    for gateway in &env.gateways {
        eventually(PATIENCE, || pod.ping(gateway.ip(), 0))
            .with_context(|| format!("{} to its gateway", pod.label()))?;
    }
    Ok(pod)
}

/// Without its own address, a bridge takes the lowest of its ports, so each new port could change
/// it.
fn bridge(node: &Node, env: &SubnetEnv) -> Result<()> {
    let mut lines = format!(
        "link add cni0 address 0a:58:0a:f4:00:01 type bridge forward_delay 0 mcast_snooping 0\n\
         link set cni0 mtu {} up\n",
        env.mtu
    );
    for gateway in &env.gateways {
        writeln!(lines, "address add {gateway} dev cni0 nodad")?;
    }
    node.namespace().ip_batch(&lines)
}

/// A port reflects packets, as by flannel's CNI config: a pod reaches itself by a service.
fn connect(node: &Node, pod: &Namespace, mtu: u32, number: u32) -> Result<()> {
    let port = format!("pod{number}");
    node.namespace().ip_batch(&format!(
        "link add {port} type veth peer name eth0 netns {}\n\
         link set {port} mtu {mtu} master cni0 up\n\
         link set {port} type bridge_slave hairpin on\n",
        pod.name()
    ))
}

fn wait_for_carrier(node: &Node, number: u32) -> Result<()> {
    let port = format!("pod{number}");
    // A bridge detects a carrier a moment later, and drops packets until then.
    let state = || node.bridge(format!("link show dev {port}"));
    eventually(PATIENCE, || Ok::<_, anyhow::Error>(state()?.contains("state forwarding")))
        .with_context(|| format!("{port} of {}", node.name()))?;
    Ok(())
}
