//! UDP ports that others listen on.

use super::facts::{Host, Needs, Owner, Port, Socket};
use super::{Finding, Level};

pub(super) fn findings(needs: &Needs, host: &Host) -> Vec<Finding> {
    needs.ports.iter().filter_map(|port| finding(*port, needs, host)).collect()
}

fn finding(port: Port, needs: &Needs, host: &Host) -> Option<Finding> {
    let mut sockets = host.sockets.iter().filter(|socket| socket.port == port.number());
    let Socket { owner, .. } = sockets.find(|socket| is_foreign(port, socket, needs, host))?;
    let number = port.number();
    let (place, key) = (format!("UDP port {number}"), key(port));
    let holder = match owner {
        Owner::Process(pid, name) => format!("{name} (process {pid})"),
        Owner::Tweed | Owner::Unknown => format!("whoever holds {number} (ss -lunp says more)"),
    };
    let why = match port {
        Port::Tunnel(_) => "the tunnel's device cannot be brought up: its peers are not reached",
        Port::Probes(_) => "paths are not probed: one that fails is not left for the tunnel",
    };
    Some(Finding {
        id: "port-taken",
        level: Level::Warning,
        what: format!("{place} is taken"),
        place,
        why: why.to_owned(),
        cure: format!("stop {holder}, or set {key} of the network config on all nodes"),
        drop_in: None,
    })
}

/// A tunnel's socket is the kernel's: it is ours if our device is up.
fn is_foreign(port: Port, socket: &Socket, needs: &Needs, host: &Host) -> bool {
    let is_up = |device| host.link(device).is_some_and(|link| link.up);
    match (&socket.owner, port) {
        (Owner::Process(..), _) => true,
        (Owner::Tweed, _) | (Owner::Unknown, Port::Probes(_)) => false,
        (Owner::Unknown, Port::Tunnel(_)) => !needs.tunnels.iter().any(|(device, _)| is_up(device)),
    }
}

const fn key(port: Port) -> &'static str {
    match port {
        Port::Tunnel(_) => "Backend.Port",
        Port::Probes(_) => "Probe.Port",
    }
}
