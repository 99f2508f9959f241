//! Conflicting programs: daemons that keep the same routes, and programs that use the same UDP
//! ports.

use super::facts::{Host, Needs, OtherDaemon, Owner, Place, Port, Process, Socket};
use super::{Finding, Level};

/// Reports other daemons that keep the same routes.
pub(super) fn other_daemons(other_daemons: &[OtherDaemon]) -> Vec<Finding> {
    other_daemons.iter().map(other_daemon).collect()
}

fn other_daemon(other_daemon: &OtherDaemon) -> Finding {
    let keeps = |name: &str| format!("{name} manages the routes of this host");
    let (level, what, place, fix) = match other_daemon {
        OtherDaemon::Process(Process { pid, name, place }) => {
            let (level, what) = match place {
                Place::Ours => (Level::Fatal, keeps(name)),
                Place::Unknown => {
                    (Level::Warning, format!("{name} may manage the routes of this host"))
                }
            };
            let process = format!("process {pid}");
            let fix = format!("stop {name} ({process}) and disable it");
            (level, what, process, fix)
        }
        OtherDaemon::Health(port) => (
            Level::Fatal,
            keeps("flanneld"),
            format!("TCP port {port}"),
            format!(
                "stop flanneld and disable it (it answers on TCP port \
                 {port}; on the host, ss -ltnp names its process)"
            ),
        ),
    };
    let why = "two daemons revert each other's routes, and each takes the other's lease".to_owned();
    Finding { id: "other-daemon", level, what, place, why, fix, drop_in: None }
}

pub(super) fn ports(needs: &Needs, host: &Host) -> Vec<Finding> {
    needs.ports.iter().filter_map(|port| port_taken(*port, needs, host)).collect()
}

fn port_taken(port: Port, needs: &Needs, host: &Host) -> Option<Finding> {
    let mut sockets = host.sockets.iter().filter(|socket| socket.port == port.number());
    let Socket { owner, .. } = sockets.find(|socket| is_foreign(port, socket, needs, host))?;
    let number = port.number();
    let place = format!("UDP port {number}");
    let holder = match owner {
        Owner::Process(pid, name) => format!("{name} (process {pid})"),
        Owner::Tweed | Owner::Unknown => {
            format!("the program that uses port {number} (ss -lunp shows it)")
        }
    };
    let (key, why) = match port {
        Port::Tunnel(_) => (
            "Backend.Port",
            "the tunnel device cannot be brought up: peers behind it are unreachable",
        ),
        Port::Probes(_) => (
            "Probe.Port",
            "paths are not probed: a direct path that fails is not replaced by the tunnel",
        ),
    };
    Some(Finding {
        id: "port-taken",
        level: Level::Warning,
        what: format!("{place} is taken"),
        place,
        why: why.to_owned(),
        fix: format!("stop {holder}, or set {key} of the network config on all nodes"),
        drop_in: None,
    })
}

/// The kernel owns a tunnel's socket, so a socket without a process is foreign only while our
/// device is down.
fn is_foreign(port: Port, socket: &Socket, needs: &Needs, host: &Host) -> bool {
    let is_up = |device| host.link(device).is_some_and(|link| link.up);
    match (&socket.owner, port) {
        (Owner::Process(..), _) => true,
        (Owner::Tweed, _) | (Owner::Unknown, Port::Probes(_)) => false,
        (Owner::Unknown, Port::Tunnel(_)) => !needs.tunnels.iter().any(|(device, _)| is_up(device)),
    }
}
