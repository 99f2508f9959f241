//! The processes of this machine: in which network namespace they are, and for whom plugins run.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

/// Where the kernel's first process namespace has this inode, on every machine.
const FIRST_NAMESPACE: &str = "pid:[4026531836]";

/// The directory in /proc of each process.
pub(super) fn all() -> io::Result<Vec<PathBuf>> {
    let mut processes = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()) {
            processes.push(entry.path());
        }
    }
    Ok(processes)
}

/// The containers of all plugins that run, by their environment.
pub(super) fn busy_containers(processes: &[PathBuf]) -> io::Result<HashSet<String>> {
    let mut busy = HashSet::new();
    for process in processes {
        let environment = ignoring_the_dead(process, fs::read(process.join("environ")))?;
        busy.extend(environment.and_then(|environment| container_of(&environment)));
    }
    Ok(busy)
}

fn container_of(environment: &[u8]) -> Option<String> {
    let mut variables = environment.split(|byte| *byte == 0);
    let id = variables.find_map(|variable| variable.strip_prefix(b"CNI_CONTAINERID="))?;
    (!id.is_empty()).then(|| String::from_utf8_lossy(id).into_owned())
}

/// `None` if `process` has ended in the meantime, or is about to; or is the kernel's own.
pub(super) fn ignoring_the_dead<T>(process: &Path, read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => Ok(None),
        Err(_) if !process.join("ns/net").exists() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether processes outside of this one's container may go unseen.
pub(in super::super) fn in_a_container() -> bool {
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let first = fs::read_to_string("/proc/1/comm").unwrap_or_default();
    namespace != Path::new(FIRST_NAMESPACE) && !["systemd", "init"].contains(&first.trim())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_plugin_is_known_by_its_environment() {
        let mut plugin = Command::new("cat")
            .env("CNI_CONTAINERID", "busy-one")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Until it speaks it may still be on its way to an environment of its own.
        plugin.stdin.as_mut().unwrap().write_all(b"!").unwrap();
        plugin.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        assert!(busy_containers(&all().unwrap()).unwrap().contains("busy-one"));
        drop(plugin.stdin.take());
        plugin.wait().unwrap();
        assert!(!busy_containers(&all().unwrap()).unwrap().contains("busy-one"));
    }

    #[test]
    fn an_empty_name_is_nobody() {
        assert_eq!(container_of(b"A=1\0CNI_CONTAINERID=abc\0B=2\0").as_deref(), Some("abc"));
        assert_eq!(container_of(b"CNI_CONTAINERID=\0"), None);
        assert_eq!(container_of(b""), None);
    }
}
