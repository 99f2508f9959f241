//! The end of a container's link that is a port of the bridge.

use std::collections::HashSet;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::errno::Errno;
use tweed_netlink::Socket;
use tweed_netlink::mac::MacAddr;
use tweed_netlink::rtnl::link::{self, Link, Pair};

use super::device::{self, Device};
use super::identity::Identity;
use super::{Connection, carried_out};
use crate::deadline::Deadline;
use crate::netns;
use crate::protocol::error::Error;
use crate::protocol::request::Attachment;

/// The number of names to try for a port.
const ATTEMPTS: usize = 10;

/// The timeout until frames pass.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The number of links to remove at once. The kernel waits for its processors once per batch, and
/// delays all other changes of links meanwhile.
const AT_ONCE: usize = 64;

/// The group of links that are about to be removed: a number that no other program is likely to choose.
const DOOMED: u32 = 0x7477_6364;

/// Makes both ends or none: this one a port of the bridge and up, the other in the container and down.
pub(super) fn create(device: &mut Device<'_>, connection: &Connection<'_>) -> Result<Link, Error> {
    let name = create_pair(device, connection)?;
    let port = bring_up(&mut device.host, connection, &name);
    if port.is_err() {
        // What cannot be taken back now is left to the runtime's DEL.
        let _ = device.host.execute(vec![link::delete(&name)]);
    }
    port
}

/// Removes what [`create`] has made.
pub(super) fn delete(host: &mut Socket, port: &Link) -> Result<(), Error> {
    let deleted = carried_out(host, link::delete_index(port.index), Errno::ENODEV);
    deleted.map(drop).map_err(|error| failure(&port.name, &error))
}

fn bring_up(host: &mut Socket, connection: &Connection<'_>, name: &str) -> Result<Link, Error> {
    let port = device::find(host, name)?.ok_or_else(|| gone(name))?;
    let _ = netns::ensure_setting(&format!("ipv6/conf/{name}/accept_ra"), "0");
    let changes = vec![
        link::set_up_with_alias(port.index, &connection.identity.alias()),
        link::set_port(port.index, connection.settings.rules),
    ];
    host.apply(changes).map_err(|error| failure(name, &error))?;
    Ok(port)
}

/// Returns the name of this end.
fn create_pair(device: &mut Device<'_>, connection: &Connection<'_>) -> Result<String, Error> {
    let Connection { settings, netns, identity, .. } = connection;
    let inner_name = &identity.attachment.interface;
    for attempt in 0..ATTEMPTS {
        let name = identity.port_name(attempt);
        let pair = link::create_pair(&Pair {
            name: &name,
            // Systemd's udev replaces a MAC that the kernel has chosen, while the ADD returns that one.
            mac: MacAddr::derived_from(&name),
            master: device.link.index,
            inner_name,
            inner_netns: netns.as_raw_fd(),
            inner_mac: settings.mac,
            mtu: settings.mtu,
        });
        let created = carried_out(&mut device.host, pair, Errno::EEXIST);
        if created.map_err(|error| failure(&name, &error))? {
            return Ok(name);
        }
        // The kernel does not report which of the two names is taken.
        if device::find(&mut device.host, &name)?.is_none() {
            return Err(Error::failed(format!(
                "container veth name ({inner_name:?}) peer provided ({name:?}) already exists"
            )));
        }
    }
    Err(Error::failed(format!("there is no free name for a port of {}", device.link.name)))
}

/// Waits until frames pass: an ADD that has returned is a container that is connected.
pub(super) fn wait(host: &mut Socket, port: &Link) -> Result<(), Error> {
    if is_operational(host, port)? {
        return Ok(());
    }
    let deadline = Deadline::after(TIMEOUT);
    let name = &port.name;
    let mut listener = Socket::listen().map_err(|error| failure(name, &error))?;
    // Asked after listening, so that no change falls between the two.
    while !is_operational(host, port)? {
        if !deadline.readable(&listener).map_err(|errno| failure(name, &errno))? {
            let silent = format!("bridge port in error state: {name} has no carrier");
            return Err(Error::failed(silent));
        }
        listener.drain().map_err(|error| failure(name, &error))?;
    }
    Ok(())
}

fn is_operational(host: &mut Socket, port: &Link) -> Result<bool, Error> {
    let found = link::find_index(host, port.index).map_err(|error| failure(&port.name, &error))?;
    found.map(|port| port.is_operational).ok_or_else(|| gone(&port.name))
}

/// Removes the link of `identity`, found from this side alone; there may be none.
pub(super) fn remove(host: &mut Socket, identity: &Identity) -> Result<(), Error> {
    let alias = identity.alias();
    let names = names_of(identity);
    remove_all(host, |port| port.alias == alias || is_half_made(port, &names))
}

/// Removes the links of `network` that belong to none of `valid`, and unfinished ones of `stale`.
pub(super) fn collect(
    host: &mut Socket,
    network: &str,
    valid: &HashSet<&Attachment>,
    stale: &[Identity],
) -> Result<(), Error> {
    let names = stale.iter().flat_map(names_of).collect();
    let is_stale =
        |identity: Identity| identity.network == network && !valid.contains(&identity.attachment);
    remove_all(host, |port| {
        is_half_made(port, &names) || Identity::of_alias(&port.alias).is_some_and(is_stale)
    })
}

/// Of all ports that are marked.
pub(super) fn identities(host: &mut Socket) -> Result<Vec<Identity>, Error> {
    let all = host.list(&link::list(), link::read).map_err(|error| failure("veth", &error))?;
    Ok(all.iter().filter_map(|port| Identity::of_alias(&port.alias)).collect())
}

fn names_of(identity: &Identity) -> HashSet<String> {
    (0..ATTEMPTS).map(|attempt| identity.port_name(attempt)).collect()
}

/// One that is not marked yet has not been brought up either.
fn is_half_made(port: &Link, names: &HashSet<String>) -> bool {
    port.alias.is_empty() && !port.is_up && names.contains(&port.name)
}

fn remove_all(host: &mut Socket, is_gone: impl Fn(&Link) -> bool) -> Result<(), Error> {
    let all = host.list(&link::list(), link::read);
    let all = all.map_err(|error| failure("veth", &error))?;
    let (gone, rest): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|port| port.kind == "veth" && is_gone(port));
    let may_group = rest.iter().all(|link| link.group != DOOMED);
    for ports in gone.chunks(AT_ONCE) {
        if may_group && ports.len() > 1 {
            remove_group(host, ports).map_err(|error| failure("veth", &error))?;
        }
        ports.iter().try_for_each(|port| delete(host, port))?;
    }
    Ok(())
}

/// What the kernel does not remove together is left.
fn remove_group(host: &mut Socket, ports: &[Link]) -> io::Result<()> {
    let into_group = ports.iter().map(|port| link::set_group(port.index, DOOMED));
    let _ = host.execute(into_group.collect())?;
    host.execute(vec![link::delete_group(DOOMED)]).map(drop)
}

fn gone(name: &str) -> Error {
    failure(name, &io::Error::other("another program removed it"))
}

fn failure(name: &str, cause: &impl std::fmt::Display) -> Error {
    Error::failed(format!("the link {name}: {cause}"))
}
