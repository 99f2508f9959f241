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
use std::io;

use nix::errno::Errno;
use tweed_netlink::mac::MacAddr;
use tweed_netlink::rtnl::link::Link;
use tweed_netlink::{Message, Protocol, Socket};

use crate::delegate;
use crate::disk;
use crate::host_local;
use crate::netns::Netns;
use crate::protocol::error::Error;
use crate::protocol::json::Object;
use crate::protocol::request::{Request, Sandbox};
use crate::protocol::result::{AddResult, Interface};
use crate::protocol::version::Version;
use device::Device;
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
    settings: &'a Settings,
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
    /// Fails if the config is wrong.
    pub(crate) fn parse(request: &Request, config: &Object) -> Result<Self, Error> {
        Ok(Self {
            settings: Settings::parse(config, request)?,
            pool: host_local::Config::parse(config, request.argument("IP")?)?,
        })
    }

    /// Gives the container its interface with what was `allocated`; returns the result.
    /// On an error, the link and rules that it made are removed, and no others.
    pub(crate) fn connect(
        &self,
        sandbox: &Sandbox,
        netns: &Netns,
        allocated: AddResult,
        version: Version,
    ) -> Result<String, Error> {
        let settings = &self.settings;
        let identity = Identity::new(&settings.network, &sandbox.attachment);
        identity.check()?;
        let plan = Plan::of(settings, allocated);
        let connection = Connection { settings, sandbox, netns, identity, plan };
        let mut device = Device::ensure(open()?, settings)?;
        device.ensure_gateways(&connection.plan)?;
        let port = port::create(&mut device, &connection)?;
        let connected = connection.complete(&mut device, &port);
        let rendered = connected.and_then(|result| result.render(version));
        if rendered.is_err() {
            // What cannot be taken back now is left to the runtime's DEL.
            let _ = connection.undo(&mut device.host, &port);
        }
        rendered
    }

    /// Fails if no address can be reserved because nothing can be written.
    pub(crate) fn status(&self) -> Result<(), Error> {
        disk::check_room(&self.pool.location.directory())?;
        host_local::status(&self.pool)
    }
}

impl Connection<'_> {
    fn complete(&self, device: &mut Device<'_>, port: &Link) -> Result<AddResult, Error> {
        let Self { settings, sandbox, identity, plan, .. } = self;
        let inside = inside::configure(self)?;
        masquerade::ensure(settings, identity, plan)?;
        port::wait(&mut device.host, port)?;
        let mac = inside.wait(plan)?;
        let interface = |name: &str, mac: MacAddr, sandbox| {
            let (name, mac) = (name.to_owned(), mac.to_string());
            Interface { name, mac, sandbox }
        };
        let sandbox_path = sandbox.netns.to_string_lossy().into_owned();
        let interfaces = vec![
            interface(&device.link.name, device.link.mac, None),
            interface(&port.name, port.mac, None),
            interface(&sandbox.attachment.interface, mac, Some(sandbox_path)),
        ];
        Ok(AddResult { interfaces, ..plan.result.clone() })
    }

    fn undo(&self, host: &mut Socket, port: &Link) -> Result<(), Error> {
        port::delete(host, port)?;
        self.settings.masquerade.map_or(Ok(()), |_| masquerade::remove(&self.identity))
    }
}

/// The containers of all ports that were made here.
pub(crate) fn connected() -> Result<HashSet<String>, Error> {
    port::identities(&mut open()?)
        .map(|all| all.into_iter().map(|identity| identity.attachment.container_id).collect())
}

/// Carries out `message`; false if the kernel refuses it with `expected`.
fn carried_out(host: &mut Socket, message: Message, expected: Errno) -> io::Result<bool> {
    match host.execute(vec![message])?.pop() {
        None => Ok(true),
        Some(refusal) if refusal.errno == expected => Ok(false),
        Some(refusal) => Err(refusal.into()),
    }
}

fn open() -> Result<Socket, Error> {
    Socket::open(Protocol::Route)
        .map_err(|error| Error::failed(format!("opening netlink: {error}")))
}
