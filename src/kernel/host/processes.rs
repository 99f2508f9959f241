//! Processes on this host, and which of them run our own daemon.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;

use super::{Places, health, names, text};
use crate::plan::preflight::facts::{Place, Process, Rival};

const RIVAL: &str = "flanneld";
/// The name under which our daemon is installed next to each of our programs.
const DAEMON: &str = "tweedd";

/// Our own daemons, by whatever name they run: an image may call them flanneld.
pub(super) struct Ours<'a> {
    proc: &'a Path,
    /// The process that listens on the control socket.
    listener: Option<u32>,
    /// The file of our daemon.
    program: Option<File>,
}

/// The device and the inode of a file.
type File = (u64, u64);

impl<'a> Ours<'a> {
    pub(super) fn find(places: &'a Places) -> Self {
        let daemon = std::env::current_exe().map(|program| program.with_file_name(DAEMON));
        Self {
            proc: &places.proc,
            listener: places.control_socket.as_deref().and_then(listener),
            program: daemon.ok().and_then(|daemon| file(&daemon)),
        }
    }

    pub(super) fn include(&self, pid: u32) -> bool {
        let program = || file(&self.proc.join(format!("{pid}/exe")));
        pid == std::process::id()
            || self.listener == Some(pid)
            || self.program.is_some_and(|ours| program() == Some(ours))
    }
}

/// Daemons that would keep the routes of this network namespace as we do.
pub fn rivals(places: &Places) -> Vec<Rival> {
    let seen = processes(places);
    // In a container, the processes of the host cannot be seen.
    let answers = seen.is_empty().then(health::flanneld).flatten().map(Rival::Health);
    seen.into_iter().map(Rival::Process).chain(answers).collect()
}

fn processes(places: &Places) -> Vec<Process> {
    let own = network(&places.proc.join("thread-self"));
    let ours = Ours::find(places);
    let rivals = all(&places.proc).filter(|pid| name(&places.proc, *pid).as_deref() == Some(RIVAL));
    let rivals = rivals.filter(|pid| !ours.include(*pid));
    rivals
        .filter_map(|pid| {
            let place = place(network(&places.proc.join(pid.to_string())), own.as_ref().ok())?;
            Some(Process { pid, name: RIVAL.to_owned(), place })
        })
        .collect()
}

pub(super) fn all(proc: &Path) -> impl Iterator<Item = u32> + use<> {
    names(proc).into_iter().filter_map(|name| name.parse().ok())
}

pub(super) fn name(proc: &Path, pid: u32) -> Option<String> {
    Some(text(&proc.join(format!("{pid}/comm")))?.trim_end().to_owned())
}

fn network(process: &Path) -> io::Result<PathBuf> {
    fs::read_link(process.join("ns/net"))
}

/// None for one that lives elsewhere, or no longer.
fn place(theirs: io::Result<PathBuf>, ours: Option<&PathBuf>) -> Option<Place> {
    match theirs {
        Ok(theirs) => (ours? == &theirs).then_some(Place::Ours),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Some(Place::Unknown),
        Err(_) => None,
    }
}

/// As the kernel knows it; none if it cannot be seen from here.
fn listener(socket: &Path) -> Option<u32> {
    let stream = UnixStream::connect(socket).ok()?;
    let pid = getsockopt(&stream, PeerCredentials).ok()?.pid();
    u32::try_from(pid).ok().filter(|pid| *pid != 0)
}

fn file(path: &Path) -> Option<File> {
    let file = fs::metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}
