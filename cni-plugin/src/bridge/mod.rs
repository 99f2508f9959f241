//! What the plugins `bridge` and `host-local` do together, done in this process.

mod check;
mod device;
mod identity;
mod inside;
mod masquerade;
mod plan;
pub mod pods;
mod port;
mod settings;
mod teardown;

use std::collections::HashSet;

use tweed_netlink::rtnl::link::Link;
use tweed_netlink::{Protocol, Socket};

use crate::delegate;
use crate::disk;
use crate::host_local::{self, Allocation};
use crate::netns::Netns;
use crate::protocol::error::Error;
use crate::protocol::json::Object;
use crate::protocol::request::{Request, Sandbox};
use crate::protocol::result::{AddResult, Interface};
use crate::protocol::version::Version;
pub(crate) use identity::Identity;
use plan::Plan;
use settings::Settings;
pub(crate) use teardown::Teardown;

/// A network of a bridge and host-local addresses.
pub(crate) struct Bridge {
    settings: Settings,
    /// Where containers get their addresses from.
    pub(crate) pool: host_local::Config,
}

/// A container that is about to be connected.
struct Connection<'a> {
    sandbox: &'a Sandbox,
    netns: &'a Netns,
    identity: Identity,
    plan: Plan,
}

/// Whether `config` needs neither another plugin nor what only the plugin `bridge` can do.
pub(crate) fn is_native(config: &Object) -> bool {
    let is_usual = delegate::kind(config) == delegate::BRIDGE
        && delegate::ipam_kind(config) == Some(delegate::HOST_LOCAL);
    is_usual && !settings::is_beyond_us(config)
}

impl Bridge {
    /// # Errors
    /// The config is wrong.
    pub(crate) fn parse(request: &Request, config: &Object) -> Result<Self, Error> {
        Ok(Self {
            settings: Settings::parse(config, request)?,
            pool: host_local::Config::parse(config, request.argument("IP")?)?,
        })
    }

    /// Gives the container its interface with the addresses of `allocation`; returns the result.
    /// On an error, the link and rules that it made are removed, and no others.
    pub(crate) fn connect(
        &self,
        sandbox: &Sandbox,
        netns: &Netns,
        allocation: Allocation,
        version: Version,
    ) -> Result<String, Error> {
        let identity = Identity::new(&self.settings.network, &sandbox.attachment);
        let plan = Plan::of(&self.settings, allocation);
        let connection = Connection { sandbox, netns, identity, plan };
        let mut host = open()?;
        let bridge = device::ensure(&mut host, &self.settings)?;
        device::ensure_gateways(&mut host, &self.settings, &bridge, &connection.plan)?;
        let port = port::create(&mut host, &self.settings, &connection.identity, &bridge, netns)?;
        let connected = self.configure(&mut host, &bridge, &port, &connection);
        let rendered = connected.and_then(|outcome| outcome.render(version));
        if rendered.is_err() {
            // What cannot be taken back now is left to the runtime's DEL.
            let _ = self.disconnect(&mut host, &port, &connection.identity);
        }
        rendered
    }

    fn configure(
        &self,
        host: &mut Socket,
        bridge: &Link,
        port: &Link,
        connection: &Connection<'_>,
    ) -> Result<AddResult, Error> {
        let Connection { sandbox, netns, identity, plan } = connection;
        let inside = inside::configure(netns, identity, &self.settings, plan)?;
        masquerade::ensure(&self.settings, identity, plan)?;
        port::wait(host, port)?;
        let mac = inside.wait()?;
        let sandbox_path = sandbox.netns.to_string_lossy().into_owned();
        let interface = |name: &str, mac: &str, sandbox| Interface {
            name: name.to_owned(),
            mac: mac.to_owned(),
            sandbox,
        };
        Ok(plan.outcome(vec![
            interface(&bridge.name, &bridge.mac.to_string(), None),
            interface(&port.name, &port.mac.to_string(), None),
            interface(&sandbox.attachment.interface, &mac.to_string(), Some(sandbox_path)),
        ]))
    }

    fn disconnect(&self, host: &mut Socket, port: &Link, identity: &Identity) -> Result<(), Error> {
        port::delete(host, port)?;
        if self.settings.masquerade.is_none() { Ok(()) } else { masquerade::remove(identity) }
    }

    /// # Errors
    /// Something is not as in `previous`.
    pub(crate) fn check(
        &self,
        sandbox: &Sandbox,
        netns: &Netns,
        previous: &AddResult,
    ) -> Result<(), Error> {
        host_local::check(&self.pool.location, &sandbox.attachment)?;
        check::check(&mut open()?, &self.settings, sandbox, netns, previous)
    }

    /// # Errors
    /// No address can be reserved: none is left, or nothing can be written.
    pub(crate) fn status(&self) -> Result<(), Error> {
        disk::check_room(&self.pool.location.directory())?;
        host_local::status(&self.pool)
    }
}

/// The containers of all ports that were made here.
pub(crate) fn connected() -> Result<HashSet<String>, Error> {
    port::identities(&mut open()?)
        .map(|all| all.into_iter().map(|identity| identity.attachment.container_id).collect())
}

fn open() -> Result<Socket, Error> {
    Socket::open(Protocol::Route)
        .map_err(|error| Error::failed(format!("opening netlink: {error}")))
}
