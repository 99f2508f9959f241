//! What the plugins `bridge` and `host-local` do together, done in this process.

mod check;
mod device;
mod gateway;
mod identity;
mod inside;
mod masquerade;
mod plan;
mod port;
mod settings;

use std::path::Path;

use crate::attachment::Attachment;
use crate::delegate;
use crate::error::Error;
use crate::host_local::{self, Allocation};
use crate::json::Object;
use crate::netlink::{Protocol, Socket};
use crate::netns::{Found, Netns};
use crate::request::{Command, Request, Sandbox};
use crate::result::{Interface, Outcome};
pub(crate) use identity::Identity;
use plan::Plan;
use settings::Settings;

/// A network of a bridge and host-local addresses.
pub(crate) struct Bridge<'a> {
    settings: Settings,
    pool: host_local::Config,
    request: &'a Request,
}

impl<'a> Bridge<'a> {
    /// None if `config` asks for another plugin, or for what only the plugin `bridge` can do.
    ///
    /// # Errors
    /// The config is for us, and is wrong.
    pub(crate) fn parse(request: &'a Request, config: &Object) -> Result<Option<Self>, Error> {
        let is_usual = delegate::kind(config) == delegate::BRIDGE
            && delegate::ipam_kind(config) == Some(delegate::HOST_LOCAL);
        if !is_usual || settings::is_beyond_us(config) {
            return Ok(None);
        }
        Ok(Some(Self {
            settings: Settings::parse(config, request)?,
            pool: pool(request, config)?,
            request,
        }))
    }

    pub(crate) fn allocate(&self, attachment: &Attachment) -> Result<Allocation, Error> {
        host_local::allocate(&self.pool, attachment)
    }

    /// Gives the container its interface, with the addresses of `allocation`.
    ///
    /// # Errors
    /// The kernel refused something. What was made until then is gone after [`del`](Self::del)
    /// without a namespace, which takes nothing that somebody else has made.
    pub(crate) fn connect(
        &self,
        sandbox: &Sandbox,
        netns: &Netns,
        allocation: Allocation,
    ) -> Result<Outcome, Error> {
        let identity = self.identity(&sandbox.attachment);
        let plan = Plan::of(&self.settings, allocation);
        let mut host = open()?;
        let bridge = device::ensure(&mut host, &self.settings)?;
        gateway::ensure(&mut host, &self.settings, &bridge, &plan)?;
        let port = port::create(&mut host, &self.settings, &identity, &bridge, netns)?;
        let mac = inside::configure(netns, &identity, &self.settings, &plan)?;
        masquerade::ensure(&self.settings, &identity, &plan)?;
        port::wait(&mut host, &port)?;
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

    /// Takes the interface away, then what let it through, and frees its addresses last: nobody
    /// gets them while it is there. What is gone already is no error.
    pub(crate) fn del(&self, attachment: &Attachment, netns: Option<&Path>) -> Result<(), Error> {
        let identity = self.identity(attachment);
        let found =
            netns.map_or(Ok(Found::Gone), |path| Netns::find(path, self.request.netns_rule))?;
        let was_inside = match found {
            Found::Foreign(netns) => inside::remove(&netns, &attachment.interface)?,
            Found::Own | Found::Gone => false,
        };
        if !was_inside {
            port::remove(&mut open()?, &identity)?;
        }
        masquerade::remove(&self.settings, &identity)?;
        host_local::release(&self.pool, attachment)
    }

    /// # Errors
    /// Something is not as `previous` says.
    pub(crate) fn check(
        &self,
        sandbox: &Sandbox,
        netns: &Netns,
        previous: &Outcome,
    ) -> Result<(), Error> {
        host_local::check(&self.pool, &sandbox.attachment)?;
        check::check(&mut open()?, &self.settings, sandbox, netns, previous)
    }

    /// Takes away what belongs to no attachment of `valid`.
    pub(crate) fn gc(&self, valid: &[Attachment]) -> Result<(), Error> {
        port::collect(&mut open()?, &self.settings.network, valid)?;
        masquerade::collect(&self.settings, valid)?;
        host_local::collect(&self.pool, valid).map(drop)
    }

    /// # Errors
    /// There is no address left.
    pub(crate) fn status(&self) -> Result<(), Error> {
        host_local::status(&self.pool).map_err(|error| Error { code: 50, ..error })
    }

    fn identity(&self, attachment: &Attachment) -> Identity {
        Identity { network: self.settings.network.clone(), attachment: attachment.clone() }
    }
}

fn pool(request: &Request, config: &Object) -> Result<host_local::Config, Error> {
    match request.verb.command() {
        Command::Del | Command::Gc => host_local::Config::parse_store(config),
        Command::Add | Command::Check | Command::Status | Command::Version => {
            host_local::Config::parse(config, request.argument("IP")?)
        }
    }
}

fn open() -> Result<Socket, Error> {
    Socket::open(Protocol::Route)
        .map_err(|error| Error::failed(format!("opening netlink: {error}")))
}
