//! Whether an attachment is still as in its result.

use std::fmt::Display;

use tweed_netlink::rtnl::link::Link;
use tweed_netlink::rtnl::{address, route};
use tweed_netlink::{Family, Protocol, Socket};

use super::device;
use super::inside;
use super::settings::Settings;
use super::{Bridge, open};
use crate::host_local;
use crate::netns::Netns;
use crate::protocol::error::Error;
use crate::protocol::request::Sandbox;
use crate::protocol::result::{AddResult, Interface};
use crate::subnet_env::masked;

impl Bridge {
    /// Fails if something is not as in `previous`. Plugins later in the chain may have added to the
    /// result and to the container.
    pub(crate) fn check(
        &self,
        sandbox: &Sandbox,
        netns: &Netns,
        previous: &AddResult,
    ) -> Result<(), Error> {
        host_local::check(&self.pool.location, &sandbox.attachment)?;
        let mut host = open()?;
        let bridge = check_bridge(&mut host, &self.settings, previous)?;
        let path = sandbox.netns.to_string_lossy();
        let name = &sandbox.attachment.interface;
        let is_its = |one: &&Interface| one.name == *name && one.sandbox.as_deref() == Some(&*path);
        let container = previous.interfaces.iter().find(is_its).ok_or_else(|| {
            Error::failed(format!("prevResult has no interface {name} in {path}"))
        })?;
        let inside = netns.within(|| Socket::open(Protocol::Route))?;
        let mut inside = inside.map_err(|error| wrong(name, &error))?;
        let found = check_container(&mut inside, container)?;
        check_port(&mut host, previous, &bridge, &found)?;
        check_addresses(&mut inside, previous, &found)?;
        check_routes(&mut inside, previous, &found)
    }
}

fn check_bridge(
    host: &mut Socket,
    settings: &Settings,
    previous: &AddResult,
) -> Result<Link, Error> {
    let name = &settings.bridge;
    let bridge = device::find(host, name)?.ok_or_else(|| wrong(name, &"it is missing"))?;
    if bridge.kind != "bridge" {
        return Err(wrong(name, &"it is not a bridge"));
    }
    let added = previous.interfaces.iter().find(|one| one.name == *name && one.sandbox.is_none());
    let added = added.ok_or_else(|| wrong(name, &"prevResult does not have it"))?;
    check_mac(added, &bridge)?;
    if bridge.is_promiscuous != settings.is_promiscuous {
        return Err(wrong(name, &"its promiscuous mode is not as configured"));
    }
    Ok(bridge)
}

fn check_container(inside: &mut Socket, added: &Interface) -> Result<Link, Error> {
    let found = inside::find(inside, &added.name)?;
    let found = found.ok_or_else(|| wrong(&added.name, &"the container does not have it"))?;
    if found.kind != "veth" {
        return Err(wrong(&added.name, &"it is not a veth"));
    }
    check_mac(added, &found)?;
    Ok(found)
}

/// Of several host interfaces in a result, the container's peer is the port. Its MAC is not checked: that
/// of a port of before, or of another plugin, may be udev's.
fn check_port(
    host: &mut Socket,
    previous: &AddResult,
    bridge: &Link,
    container: &Link,
) -> Result<(), Error> {
    for added in previous.interfaces.iter().filter(|one| one.sandbox.is_none()) {
        let Some(found) = device::find(host, &added.name)? else { continue };
        if Some(found.index) != container.peer || found.kind != "veth" {
            continue;
        }
        return match found.master {
            Some(master) if master == bridge.index => Ok(()),
            _ => Err(wrong(&found.name, &format!("it is not a port of {}", bridge.name))),
        };
    }
    Err(wrong(&container.name, &"its peer is not in prevResult"))
}

fn check_mac(added: &Interface, found: &Link) -> Result<(), Error> {
    let is_same = added.mac.is_empty() || added.mac.eq_ignore_ascii_case(&found.mac.to_string());
    let (had, has) = (&added.mac, found.mac);
    if is_same { Ok(()) } else { Err(wrong(&found.name, &format!("its MAC is {has}, not {had}"))) }
}

fn check_addresses(
    inside: &mut Socket,
    previous: &AddResult,
    container: &Link,
) -> Result<(), Error> {
    let name = &container.name;
    let all = inside.list(&address::list(), address::read);
    let all = all.map_err(|error| wrong(name, &error))?;
    let is_there = |it| all.iter().any(|one| one.link == container.index && one.network == it);
    let mut added = previous.addresses.iter().map(|added| added.address);
    added.find(|address| !is_there(*address)).map_or(Ok(()), |address| {
        Err(wrong(name, &format!("it does not have the address {address}")))
    })
}

fn check_routes(inside: &mut Socket, previous: &AddResult, container: &Link) -> Result<(), Error> {
    let name = &container.name;
    for added in &previous.routes {
        let all = inside.list(&route::list(Family::of(added.destination.ip()), 0), route::read);
        let all = all.map_err(|error| wrong(name, &error))?;
        let is_there = all.iter().any(|one| {
            let is_by = added.gateway.is_none() || one.gateway == added.gateway;
            is_by && masked(one.destination) == masked(added.destination)
        });
        if !is_there {
            return Err(wrong(name, &format!("there is no route to {}", added.destination)));
        }
    }
    Ok(())
}

fn wrong(name: &str, what: &impl Display) -> Error {
    Error::failed(format!("{name} differs from the result of ADD: {what}"))
}
