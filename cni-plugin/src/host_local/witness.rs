//! Who may still use an address, as far as this machine can tell.

mod namespaces;
mod processes;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

pub(super) use processes::in_a_container;

use crate::runtime_cache::{self, Cache};

#[derive(Clone, Debug)]
pub(crate) struct Witnesses {
    /// What the runtime has added and not deleted.
    pub(crate) cached: Cache,
    /// Where each address is that any network namespace has.
    pub(crate) configured: HashMap<IpAddr, String>,
    /// Containers that a plugin is working on.
    pub(crate) busy: HashSet<String>,
    pub(crate) booted: SystemTime,
    pub(crate) now: SystemTime,
}

impl Witnesses {
    /// Fails if any of it cannot be seen: half of the witnesses prove nothing.
    pub(crate) fn gather(results: &Path) -> io::Result<Self> {
        let now = SystemTime::now();
        let processes = processes::all()?;
        // A command that ends in between has left its traces by then: look for those last.
        let busy = processes::busy_containers(&processes)?;
        let configured = namespaces::configured_addresses(&processes)?;
        Ok(Self {
            cached: Cache::of(runtime_cache::read(results)?),
            configured,
            busy,
            booted: booted(now)?,
            now,
        })
    }
}

/// Whether a network namespace has `address`; true as well where that cannot be seen.
pub(super) fn may_be_configured(address: IpAddr) -> bool {
    let processes = processes::all();
    let found = processes.and_then(|all| namespaces::configured_addresses(&all));
    found.map_or(true, |configured| configured.contains_key(&address))
}

/// When this machine was booted, by the clock that says `now`.
pub(super) fn booted(now: SystemTime) -> io::Result<SystemTime> {
    let text = fs::read_to_string("/proc/uptime")?;
    let seconds = text.split_whitespace().next().and_then(|word| word.parse().ok());
    let uptime = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    uptime
        .and_then(|uptime| now.checked_sub(uptime))
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/uptime has no number"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn processes_that_come_and_go_are_no_error() {
        let crowd = std::thread::spawn(|| {
            for _ in 0..150 {
                Command::new("true").status().unwrap();
            }
        });
        while !crowd.is_finished() {
            Witnesses::gather(Path::new("/nonexistent")).unwrap();
        }
    }

    #[test]
    fn this_machine_was_booted_before_now_and_knows_its_own_addresses() {
        let witnesses = Witnesses::gather(Path::new("/nonexistent")).unwrap();
        assert!(witnesses.booted < witnesses.now);
        assert!(witnesses.configured.contains_key(&"127.0.0.1".parse::<IpAddr>().unwrap()));
        assert!(witnesses.cached.is_empty());
    }
}
