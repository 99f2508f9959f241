//! The addresses of every network namespace: those of processes, and those that are only mounted.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;

use nix::sched::{CloneFlags, setns};

use super::processes::ignoring_the_dead;

/// Each address with the name of a namespace that has it.
pub(super) fn configured_addresses(processes: &[PathBuf]) -> io::Result<HashMap<IpAddr, String>> {
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

/// Those of namespaces that no process is in.
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
    // Entering a namespace is for one thread, and there is no way back: let it end there.
    let visit = thread::Builder::new().name("namespaces".into()).spawn(move || visit(&unseen))?;
    visit.join().map_err(|_| io::Error::other("looking into the network namespaces broke off"))?
}

fn visit(mounts: &[(String, PathBuf)]) -> io::Result<Vec<(IpAddr, String)>> {
    let mut found = Vec::new();
    for (namespace, path) in mounts {
        // Gone since, or hidden by a mount on top: whatever is there now has its own entry.
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

/// What the files of the namespace below `net` say.
fn addresses_in(net: &Path) -> io::Result<Vec<IpAddr>> {
    let v4 = parse_trie(&fs::read_to_string(net.join("fib_trie"))?);
    let v6 = match fs::read_to_string(net.join("if_inet6")) {
        // A kernel without IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound && net.exists() => String::new(),
        text => text?,
    };
    Ok(v4.into_iter().chain(parse_inet6(&v6)).collect())
}

/// Every address is a leaf of the trie, and below it stands that it is local.
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
mod tests {
    use std::process::{Command, Stdio};

    use super::super::processes;
    use super::*;

    fn run(line: &str) {
        let mut words = line.split(' ');
        let status = Command::new(words.next().unwrap()).args(words).status().unwrap();
        assert!(status.success(), "{line}");
    }

    #[test]
    fn an_address_is_found_in_a_namespace_without_processes_and_in_one_with() {
        for line in [
            "ip netns add witness",
            "ip -n witness link set lo up",
            "ip -n witness address add 10.77.0.9/24 dev lo",
            "ip -n witness address add fd77::9/64 dev lo",
        ] {
            run(line);
        }
        let found = || configured_addresses(&processes::all().unwrap()).unwrap();
        for address in ["10.77.0.9", "fd77::9"] {
            let name = found().remove(&address.parse::<IpAddr>().unwrap());
            assert_eq!(name.as_deref(), Some("/run/netns/witness"));
        }
        let mut inside = Command::new("ip")
            .args(["netns", "exec", "witness", "cat"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let address: IpAddr = "10.77.0.9".parse().unwrap();
        let by_process = |name: &String| name.starts_with("net:[");
        while !found().get(&address).is_some_and(by_process) {}
        run("ip netns delete witness");
        assert!(found().get(&address).is_some_and(by_process));
        drop(inside.stdin.take());
        inside.wait().unwrap();
        assert!(!found().contains_key(&address));
    }

    #[test]
    fn local_leaves_of_the_trie_are_addresses() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n\
                    \x20    +-- 10.244.7.0/24 2 0 2\n        |-- 10.244.7.0\n           /24 link UNICAST\n\
                    \x20       |-- 10.244.7.9\n           /32 host LOCAL\n\
                    \x20    |-- 10.244.7.255\n        /32 link BROADCAST\n";
        assert_eq!(parse_trie(trie), ["10.244.7.9".parse::<IpAddr>().unwrap()]);
    }

    #[test]
    fn nonsense_has_no_addresses() {
        assert_eq!(parse_trie("/32 host LOCAL\n|-- x\n/32 host LOCAL\n"), Vec::<IpAddr>::new());
        assert_eq!(parse_inet6("\n zz 1 2\n"), Vec::<IpAddr>::new());
        assert_eq!(parse_mount(""), None);
    }
}
