//! Another daemon that keeps the same routes.

use super::facts::{Place, Process, Rival};
use super::{Finding, Level};

pub(super) fn findings(rivals: &[Rival]) -> Vec<Finding> {
    rivals.iter().map(finding).collect()
}

fn finding(rival: &Rival) -> Finding {
    let keeps = |name: &str| format!("{name} keeps the routes of this host");
    let (level, what, place, cure) = match rival {
        Rival::Process(Process { pid, name, place }) => {
            let (level, what) = match place {
                Place::Ours => (Level::Fatal, keeps(name)),
                Place::Unknown => {
                    (Level::Warning, format!("{name} may keep the routes of this host"))
                }
            };
            let process = format!("process {pid}");
            let cure = format!("stop {name} ({process}) and keep it from being started again");
            (level, what, process, cure)
        }
        Rival::Health(port) => (
            Level::Fatal,
            keeps("flanneld"),
            format!("TCP port {port}"),
            format!(
                "stop flanneld and keep it from being started again (it answers on TCP port \
                 {port}; on the host, ss -ltnp names its process)"
            ),
        ),
    };
    let why = "two daemons undo each other's routes, and each takes the other's lease".to_owned();
    Finding { id: "other-daemon", level, what, place, why, cure, drop_in: None }
}
