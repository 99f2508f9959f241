//! Another daemon that keeps the same routes.

use super::facts::{Place, Process};
use super::{Finding, Level};

pub(super) fn findings(rivals: &[Process]) -> Vec<Finding> {
    rivals.iter().map(finding).collect()
}

fn finding(rival: &Process) -> Finding {
    let Process { pid, name, place } = rival;
    let (level, what) = match place {
        Place::Ours => (Level::Fatal, format!("{name} keeps the routes of this host")),
        Place::Unknown => (Level::Warning, format!("{name} may keep the routes of this host")),
    };
    Finding {
        id: "other-daemon",
        level,
        what,
        place: format!("process {pid}"),
        why: "two daemons undo each other's routes, and each takes the other's lease".to_owned(),
        cure: format!("stop {name} (process {pid}) and keep it from being started again"),
        drop_in: None,
    }
}
