//! Which containers and addresses are still in use, as far as this machine shows it.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};

use crate::disk;
use crate::host_local::runtime_cache::{self, Cache};
use crate::protocol::error::Error;

/// The kernel's first process namespace has this inode on every machine.
const FIRST_NAMESPACE: &str = "pid:[4026531836]";

/// Everything on this machine that shows that a container or its address is in use.
#[derive(Clone, Debug)]
pub(crate) struct Liveness {
    /// What the runtime has added and not deleted.
    pub(crate) cached: Cache,
    /// The addresses of all network namespaces, each with the name of one that has it.
    pub(crate) configured: HashMap<IpAddr, String>,
    /// Containers that a plugin is working on.
    pub(crate) busy: HashSet<String>,
    pub(crate) booted: SystemTime,
    pub(crate) now: SystemTime,
}

impl Liveness {
    /// Fails if any of it cannot be read: a part of it proves nothing.
    pub(crate) fn gather(results: &Path) -> Result<Self, Error> {
        Self::read(results).map_err(|cause| {
            let advice = "cannot read which addresses are in use, run this as root";
            Error::failed(format!("{advice}: {cause}"))
        })
    }

    fn read(results: &Path) -> io::Result<Self> {
        let now = SystemTime::now();
        let processes = processes()?;
        // A command that ends in between has left its traces by then: so these are read last.
        let busy = busy_containers(&processes)?;
        let configured = configured_addresses(&processes)?;
        Ok(Self {
            cached: Cache::of(runtime_cache::read(results)?),
            configured,
            busy,
            booted: booted(now)?,
            now,
        })
    }
}

/// Whether a network namespace has `address`; true as well where that cannot be read.
pub(super) fn may_be_configured(address: IpAddr) -> bool {
    let found = processes().and_then(|all| configured_addresses(&all));
    found.map_or(true, |configured| configured.contains_key(&address))
}

/// When this machine was booted, by the clock that shows `now`.
pub(super) fn booted(now: SystemTime) -> io::Result<SystemTime> {
    let text = fs::read_to_string("/proc/uptime")?;
    let seconds = text.split_whitespace().next().and_then(|word| word.parse().ok());
    let uptime = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    uptime
        .and_then(|uptime| now.checked_sub(uptime))
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/uptime has no number"))
}

/// The directory in /proc of each process.
fn processes() -> io::Result<Vec<PathBuf>> {
    let mut names = disk::names(Path::new("/proc"))?;
    names.retain(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    Ok(names.iter().map(|name| Path::new("/proc").join(name)).collect())
}

/// The containers of all plugins that run, by the environment of their processes.
fn busy_containers(processes: &[PathBuf]) -> io::Result<HashSet<String>> {
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

/// `None` if `process` has ended in the meantime, or is about to; or is a thread of the kernel.
fn ignoring_the_dead<T>(process: &Path, read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => Ok(None),
        Err(_) if !process.join("ns/net").exists() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether this process may be in a container, from which it cannot see what uses an address.
pub fn may_be_blind() -> bool {
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let first = fs::read_to_string("/proc/1/comm").unwrap_or_default();
    namespace != Path::new(FIRST_NAMESPACE) && !["systemd", "init"].contains(&first.trim())
}

/// Each address with the name of a namespace that has it.
fn configured_addresses(processes: &[PathBuf]) -> io::Result<HashMap<IpAddr, String>> {
    let mut seen = HashSet::new();
    let mut found = HashMap::new();
    for process in processes {
        let namespace = fs::read_link(process.join("ns/net"));
        let Some(namespace) = ignoring_the_dead(process, namespace)? else { continue };
        let name = namespace.to_string_lossy().into_owned();
        if seen.contains(&name) {
            continue;
        }
        let addresses = ignoring_the_dead(process, addresses_in(&process.join("net")))?;
        if let Some(addresses) = addresses {
            found.extend(addresses.into_iter().map(|address| (address, name.clone())));
            seen.insert(name);
        }
    }
    found.extend(mounted(&seen)?);
    Ok(found)
}

/// Those of namespaces without a process, such as `/run/netns/*`.
fn mounted(seen: &HashSet<String>) -> io::Result<Vec<(IpAddr, String)>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let unseen: Vec<_> = mounts
        .lines()
        .filter_map(parse_mount)
        .filter(|(namespace, _)| !seen.contains(namespace))
        .collect();
    if unseen.is_empty() {
        return Ok(Vec::new());
    }
    // A thread that enters a namespace does not come back: it ends there.
    let visit = thread::Builder::new().name("namespaces".into()).spawn(move || visit(&unseen))?;
    visit
        .join()
        .map_err(|_| io::Error::other("reading the addresses of the network namespaces failed"))?
}

fn visit(mounts: &[(String, PathBuf)]) -> io::Result<Vec<(IpAddr, String)>> {
    let mut found = Vec::new();
    for (namespace, path) in mounts {
        // Removed since, or hidden by a mount on top, which has its own entry.
        let Some(file) = open(namespace, path) else { continue };
        setns(file, CloneFlags::CLONE_NEWNET)?;
        let addresses = addresses_in(Path::new("/proc/thread-self/net"))?;
        let name = path.display().to_string();
        found.extend(addresses.into_iter().map(|address| (address, name.clone())));
    }
    Ok(found)
}

fn open(namespace: &str, path: &Path) -> Option<File> {
    let file = File::open(path).ok()?;
    let inode = file.metadata().ok()?.ino();
    (format!("net:[{inode}]") == namespace).then_some(file)
}

/// `36 25 0:4 net:[4026532341] /run/netns/blue rw shared:5 - nsfs nsfs rw`
fn parse_mount(line: &str) -> Option<(String, PathBuf)> {
    let mut words = line.split(' ').skip(3);
    let (root, path) = (words.next()?, words.next()?);
    root.starts_with("net:[").then(|| (root.to_owned(), path.replace("\\040", " ").into()))
}

/// The addresses in the files of the directory `net` of a process.
fn addresses_in(net: &Path) -> io::Result<Vec<IpAddr>> {
    let v4 = parse_trie(&fs::read_to_string(net.join("fib_trie"))?);
    let v6 = match fs::read_to_string(net.join("if_inet6")) {
        // A kernel without IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound && net.exists() => String::new(),
        text => text?,
    };
    Ok(v4.into_iter().chain(parse_inet6(&v6)).collect())
}

/// Every address is a leaf of the trie, followed by a line with `LOCAL`.
fn parse_trie(text: &str) -> Vec<IpAddr> {
    let mut local = Vec::new();
    let mut leaf: Option<IpAddr> = None;
    for line in text.lines().map(str::trim_start) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.trim_end().parse().ok();
        } else if line.trim_end() == "/32 host LOCAL" {
            local.extend(leaf);
        }
    }
    local
}

/// `fd000000000000000000000000000002 04 40 00 82     eth0`
fn parse_inet6(text: &str) -> Vec<IpAddr> {
    let words = text.lines().filter_map(|line| line.split_whitespace().next());
    let numbers = words.filter_map(|word| u128::from_str_radix(word, 16).ok());
    numbers.map(|number| Ipv6Addr::from_bits(number).into()).collect()
}

#[cfg(test)]
#[path = "tests/liveness.rs"]
mod tests;
