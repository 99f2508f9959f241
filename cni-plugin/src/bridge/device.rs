//! The bridge itself: made if it is not there, and never removed.

use std::io;

use nix::errno::Errno;

use super::settings::Settings;
use crate::error::Error;
use crate::mac::Mac;
use crate::netlink::link::{self, Link};
use crate::netlink::{Refusal, Socket};
use crate::sysctl;

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
    let _ = sysctl::ensure(&format!("ipv6/conf/{name}/accept_ra"), "0");
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
    let mac = Mac::random().map_err(|error| failure(name, &error))?;
    let created = host.execute(vec![link::create_bridge(name, mac, settings.mtu)]);
    match created.map_err(|error| failure(name, &error))?.first() {
        // Somebody else was faster.
        None | Some(Refusal { errno: Errno::EEXIST, .. }) => {}
        Some(refusal) => return Err(failure(name, refusal)),
    }
    let missing = || failure(name, &io::Error::from(io::ErrorKind::NotFound));
    find(host, name)?.ok_or_else(missing)
}

fn failure(name: &str, cause: &impl std::fmt::Display) -> Error {
    Error::failed(format!("could not set up the bridge {name:?}: {cause}"))
}
