//! The bridge itself: made if it is not there, and never removed.

use std::fs::File;
use std::io::{self, Read};

use nix::errno::Errno;
use tweed_netlink::mac::MacAddr;
use tweed_netlink::rtnl::link::{self, Link};
use tweed_netlink::{Refusal, Socket};

use super::settings::Settings;
use crate::netns;
use crate::protocol::error::Error;

/// The bridge, up. MTU and the like of one that exists are left as they are.
pub(super) fn ensure(host: &mut Socket, settings: &Settings) -> Result<Link, Error> {
    let name = &settings.bridge;
    let bridge = match find(host, name)? {
        Some(bridge) => bridge,
        None => create(host, settings)?,
    };
    if bridge.kind != "bridge" {
        return Err(Error::failed(format!("{name:?} already exists but is not a bridge")));
    }
    // Without IPv6 there is nothing to accept.
    let _ = netns::ensure_setting(&format!("ipv6/conf/{name}/accept_ra"), "0");
    let up = (!bridge.is_up).then(|| link::set_up(bridge.index));
    let promiscuous = (settings.is_promiscuous && !bridge.is_promiscuous)
        .then(|| link::set_promiscuous(bridge.index));
    let changes: Vec<_> = up.into_iter().chain(promiscuous).collect();
    let refusals = host.execute(changes).map_err(|error| failure(name, &error))?;
    match refusals.first() {
        Some(refusal) => Err(failure(name, refusal)),
        None => Ok(bridge),
    }
}

/// The link called `name`; none if there is none.
pub(super) fn find(host: &mut Socket, name: &str) -> Result<Option<Link>, Error> {
    match host.get(link::get(name), link::read).map_err(|error| failure(name, &error))? {
        Ok(found) => Ok(found),
        Err(Refusal { errno: Errno::ENODEV, .. }) => Ok(None),
        Err(refusal) => Err(failure(name, &refusal)),
    }
}

/// Its MAC is its own from the start: one that is left to the kernel changes with the ports.
fn create(host: &mut Socket, settings: &Settings) -> Result<Link, Error> {
    let name = &settings.bridge;
    let mac = made_up_mac().map_err(|error| failure(name, &error))?;
    let created = host.execute(vec![link::create_bridge(name, mac, settings.mtu)]);
    match created.map_err(|error| failure(name, &error))?.first() {
        // Somebody else was faster.
        None | Some(Refusal { errno: Errno::EEXIST, .. }) => {}
        Some(refusal) => return Err(failure(name, refusal)),
    }
    let missing = || failure(name, &io::Error::from(io::ErrorKind::NotFound));
    find(host, name)?.ok_or_else(missing)
}

/// One that nobody else has, of those that anybody may make up.
fn made_up_mac() -> io::Result<MacAddr> {
    const LOCAL: u8 = 0b10;
    const MULTICAST: u8 = 0b01;
    let mut octets = [0; 6];
    File::open("/dev/urandom")?.read_exact(&mut octets)?;
    if let Some(first) = octets.first_mut() {
        *first = (*first | LOCAL) & !MULTICAST;
    }
    Ok(MacAddr::new(octets))
}

fn failure(name: &str, cause: &impl std::fmt::Display) -> Error {
    Error::failed(format!("could not set up the bridge {name:?}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_made_up_address_is_for_one_link_and_local() {
        for _ in 0..64 {
            assert_eq!(made_up_mac().unwrap().octets()[0] & 0b11, 0b10);
        }
    }
}
