//! Processes on this host: other daemons that manage the same routes, and listeners on tweed's UDP
//! ports.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;

use super::{Places, names, text};
use crate::plan::preflight::facts::{Needs, OtherDaemon, Owner, Port, Socket};

const RIVAL: &str = "flanneld";
/// The file name of tweed's daemon, which is installed next to every program of tweed.
const DAEMON: &str = "tweedd";
/// The port of flanneld's health endpoint in flannel's manifests and chart.
const HEALTH_PORT: u16 = 8081;
/// The body of flanneld's response, which differs from tweed's.
const ANSWER: &str = "flanneld is running";
/// Short, because the endpoint is on loopback and the daemon waits for it at start-up.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum size of a response, in bytes; flanneld's is smaller.
const LONGEST: u64 = 4096;

/// Identifies tweed's own daemons by process instead of name: an image may name them flanneld.
struct OwnProcesses<'a> {
    proc: &'a Path,
    /// The process that listens on the control socket.
    listener: Option<u32>,
    /// Whether that may not be asked: only root may.
    is_hidden: bool,
    /// The executable of tweed's daemon.
    program: Option<FileId>,
}

/// The device and the inode of a file.
type FileId = (u64, u64);

impl<'a> OwnProcesses<'a> {
    fn find(places: &'a Places) -> Self {
        let daemon = std::env::current_exe().map(|program| program.with_file_name(DAEMON));
        let listener = places.control_socket.as_deref().map(listener);
        let is_hidden = matches!(&listener, Some(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied);
        Self {
            proc: &places.proc,
            listener: listener.and_then(Result::ok),
            is_hidden,
            program: daemon.ok().and_then(|daemon| file(&daemon)),
        }
    }

    fn include(&self, pid: u32) -> bool {
        let program = file(&self.proc.join(format!("{pid}/exe")));
        pid == std::process::id()
            || self.listener == Some(pid)
            || program.map_or(self.is_hidden, |program| self.program == Some(program))
    }
}

/// Other daemons that manage routes in this network namespace.
pub fn other_daemons(places: &Places) -> Vec<OtherDaemon> {
    let seen = processes(places);
    // In a container, the processes of the host are not visible.
    let answers = seen.is_empty().then(answering_flanneld).flatten().map(OtherDaemon::Health);
    seen.into_iter().chain(answers).collect()
}

fn processes(places: &Places) -> Vec<OtherDaemon> {
    let Some(own) = network(&places.proc.join("thread-self")) else {
        return Vec::new();
    };
    let ours = OwnProcesses::find(places);
    let is_rival = |pid: &u32| {
        name(&places.proc, *pid).as_deref() == Some(RIVAL)
            && network(&places.proc.join(pid.to_string())) == Some(own)
            && !ours.include(*pid)
    };
    all(&places.proc).filter(is_rival).map(OtherDaemon::Process).collect()
}

fn all(proc: &Path) -> impl Iterator<Item = u32> + use<> {
    names(proc).into_iter().filter_map(|name| name.parse().ok())
}

fn name(proc: &Path, pid: u32) -> Option<String> {
    Some(text(&proc.join(format!("{pid}/comm")))?.trim_end().to_owned())
}

/// Identifies the network namespace of a process; none for a process that is gone.
/// `ns/net` of a process with more capabilities than ours is not readable; the files of `net` are,
/// and each network namespace has its own.
fn network(process: &Path) -> Option<FileId> {
    file(&process.join("net/dev"))
}

/// The process that listens on the control socket, if a signal has stopped it.
pub fn stopped_listener(socket: &Path) -> Option<u32> {
    let pid = listener(socket).ok()?;
    let status = text(&Path::new("/proc").join(format!("{pid}/stat")))?;
    is_stopped(&status).then_some(pid)
}

/// The state follows the name, which may contain any character.
fn is_stopped(status: &str) -> bool {
    let state = status.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|state| state.starts_with(['T', 't']))
}

/// The process ID that the kernel reports; an error if it is not visible in this namespace.
fn listener(socket: &Path) -> io::Result<u32> {
    let stream = UnixStream::connect(socket)?;
    let pid = getsockopt(&stream, PeerCredentials)?.pid();
    u32::try_from(pid).ok().filter(|pid| *pid != 0).ok_or(io::ErrorKind::NotFound.into())
}

fn file(path: &Path) -> Option<FileId> {
    let file = fs::metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

/// The TCP port of flanneld's health endpoint in this network namespace, if it responds.
fn answering_flanneld() -> Option<u16> {
    let answer = ask(SocketAddr::from((Ipv4Addr::LOCALHOST, HEALTH_PORT))).ok()?;
    answer.trim_end().ends_with(ANSWER).then_some(HEALTH_PORT)
}

fn ask(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(LONGEST).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The listeners on the UDP ports that this node needs.
pub(super) fn sockets(needs: &Needs, places: &Places) -> Vec<Socket> {
    let (proc, ours) = (places.proc.as_path(), OwnProcesses::find(places));
    let wanted: Vec<u16> = needs.ports.iter().map(|port| Port::number(*port)).collect();
    let lists = ["udp", "udp6"].map(|list| text(&proc.join("thread-self/net").join(list)));
    let lines = lists.iter().flatten().flat_map(|list| list.lines().skip(1));
    let bound = lines.filter_map(bound).filter(|(port, _)| wanted.contains(port));
    bound.map(|(port, inode)| Socket { port, owner: owner(inode, proc, &ours) }).collect()
}

/// The port and the inode of a socket.
fn bound(line: &str) -> Option<(u16, &str)> {
    let mut words = line.split_whitespace();
    let (_, port) = words.nth(1)?.rsplit_once(':')?;
    Some((u16::from_str_radix(port, 16).ok()?, words.nth(7)?))
}

fn owner(inode: &str, proc: &Path, ours: &OwnProcesses<'_>) -> Owner {
    let link = format!("socket:[{inode}]");
    let Some(pid) = all(proc).find(|pid| holds(*pid, &link, proc)) else {
        return Owner::Unknown;
    };
    match name(proc, pid) {
        _ if ours.include(pid) => Owner::Tweed,
        Some(name) => Owner::Process(pid, name),
        None => Owner::Unknown,
    }
}

fn holds(pid: u32, link: &str, proc: &Path) -> bool {
    let folder = proc.join(format!("{pid}/fd"));
    let files = names(&folder).into_iter().filter_map(|name| fs::read_link(folder.join(name)).ok());
    files.into_iter().any(|file| file.as_os_str() == link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_contains_port_and_inode() {
        let line = " 2316: 00000000:2118 00000000:0000 07 00000000:00000000 00:00000000 00000000  \
                    0        0 51287 2 ffff8d2c4a1d0000 0";
        assert_eq!(bound(line), Some((8472, "51287")));
        assert_eq!(bound("  sl  local_address"), None);
    }

    #[test]
    fn a_stopped_process_is_recognised_by_its_state() {
        assert!(is_stopped("812 (tweedd) T 1 812 812 0"));
        assert!(is_stopped("812 (a) S b) t 1 812 812 0"));
        assert!(!is_stopped("812 (T) S 1 812 812 0"));
        assert!(!is_stopped(""));
    }
}
