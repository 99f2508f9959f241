//! Who listens on the UDP ports that we need.

use std::fs;
use std::path::Path;

use super::processes::{self, Ours};
use super::{Places, names, text};
use crate::plan::preflight::facts::{Needs, Owner, Port, Socket};

pub(super) fn sockets(needs: &Needs, places: &Places) -> Vec<Socket> {
    let (proc, ours) = (places.proc.as_path(), Ours::find(places));
    let wanted: Vec<u16> = needs.ports.iter().map(|port| Port::number(*port)).collect();
    let lists = ["udp", "udp6"].map(|list| text(&proc.join("thread-self/net").join(list)));
    let lines = lists.iter().flatten().flat_map(|list| list.lines().skip(1));
    let bound = lines.filter_map(bound).filter(|(port, _)| wanted.contains(port));
    bound.map(|(port, inode)| Socket { port, owner: owner(inode, proc, &ours) }).collect()
}

/// The port and the number of a socket.
fn bound(line: &str) -> Option<(u16, &str)> {
    let mut words = line.split_whitespace();
    let (_, port) = words.nth(1)?.rsplit_once(':')?;
    Some((u16::from_str_radix(port, 16).ok()?, words.nth(7)?))
}

fn owner(inode: &str, proc: &Path, ours: &Ours<'_>) -> Owner {
    let link = format!("socket:[{inode}]");
    let Some(pid) = processes::all(proc).find(|pid| holds(*pid, &link, proc)) else {
        return Owner::Unknown;
    };
    match processes::name(proc, pid) {
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
    fn a_line_tells_port_and_number() {
        let line = " 2316: 00000000:2118 00000000:0000 07 00000000:00000000 00:00000000 00000000  \
                    0        0 51287 2 ffff8d2c4a1d0000 0";
        assert_eq!(bound(line), Some((8472, "51287")));
        assert_eq!(bound("  sl  local_address"), None);
    }
}
