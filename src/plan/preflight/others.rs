//! Conflicting programs: daemons that keep the same routes, and programs that use the same UDP
//! ports. Parts of the host that could not be examined.

use super::facts::{Host, Needs, Obstacle, OtherDaemon, Owner, Port, Socket, Unread};
use super::{Finding, Level};

/// Reports another daemon that keeps the same routes.
pub(super) fn other_daemon(other_daemon: &OtherDaemon) -> Finding {
    let (place, fix) = match other_daemon {
        OtherDaemon::Process(pid) => {
            (format!("process {pid}"), format!("stop flanneld (process {pid}) and disable it"))
        }
        OtherDaemon::Health(port) => (
            format!("TCP port {port}"),
            format!(
                "stop flanneld and disable it (it answers on TCP port \
                 {port}; on the host, ss -ltnp names its process)"
            ),
        ),
    };
    Finding {
        what: "flanneld manages the routes of this host".to_owned(),
        why: "two daemons revert each other's routes, and each takes the other's lease".to_owned(),
        fix,
        ..Finding::of(Level::Fatal, "other-daemon", place)
    }
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
        what: format!("{place} is taken"),
        why: why.to_owned(),
        fix: format!("stop {holder}, or set {key} of the network config on all nodes"),
        ..Finding::of(Level::Warning, "port-taken", place)
    })
}

/// The kernel owns a tunnel's socket, so a socket without a process is foreign only while our
/// device is down.
fn is_foreign(port: Port, socket: &Socket, needs: &Needs, host: &Host) -> bool {
    let is_up = |device| host.link(device).is_some_and(|link| link.up);
    match (&socket.owner, port) {
        (Owner::Process(..), _) => true,
        (Owner::Tweed, _) | (Owner::Unknown, Port::Probes(_)) => false,
        (Owner::Unknown, Port::Tunnel(_)) => !needs.tunnels.iter().any(is_up),
    }
}

/// In a pod, it is the normal state that parts of the host are not visible.
pub(super) fn not_examined(unread: &Unread) -> Finding {
    let Unread { what, place, obstacle } = unread;
    let (level, why, fix) = match obstacle {
        Obstacle::Forbidden => {
            (Level::Unknown, "only root may read them", "run tweedctl doctor as root")
        }
        Obstacle::Pod => (
            Level::Note,
            "this pod does not share them with the host",
            "run tweedctl doctor on the host, or mount the host's files and name the folder with \
             --root",
        ),
        Obstacle::Failed(reason) => {
            (Level::Unknown, reason.as_str(), "run tweedctl doctor again as root on the host")
        }
    };
    Finding {
        what: format!("{what} were not examined"),
        why: format!("{why}: packets of pods may be lost without a finding here"),
        fix: fix.to_owned(),
        ..Finding::of(level, "not-examined", place.clone())
    }
}
