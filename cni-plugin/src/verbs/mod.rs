//! What each command of the protocol does.

mod add;
mod check;
mod del;
mod gc;
mod status;

use std::io::Read;

use crate::bridge::{self, Bridge, Teardown};
use crate::delegate;
use crate::delegate::exec::Delegate;
use crate::protocol::error::Error;
use crate::protocol::json::Object;
use crate::protocol::network_config::NetworkConfig;
use crate::protocol::request::{Request, Verb};
use crate::protocol::result::render_error;
use crate::protocol::version::Version;
use crate::state::States;

/// Carries out `request` by the config that `stdin` holds; returns what is to be printed.
pub fn carry_out(request: &Request, stdin: impl Read) -> Result<String, String> {
    if request.verb == Verb::Version {
        return Ok(Version::report());
    }
    let config = read(stdin).and_then(|json| NetworkConfig::parse(&json, request.verb.command()));
    let config = config.map_err(|error| render_error(&error, Version::V1_1_0))?;
    let version = config.version;
    Call { request, config }.answer().map_err(|error| render_error(&error, version))
}

fn read(mut stdin: impl Read) -> Result<Vec<u8>, Error> {
    let mut json = Vec::new();
    stdin
        .read_to_end(&mut json)
        .map_err(|error| Error::io(format!("error reading from stdin: {error}")))?;
    Ok(json)
}

/// A request and the config that came with it.
struct Call<'a> {
    request: &'a Request,
    config: NetworkConfig,
}

/// What does the work for a delegate's config: this process, or another plugin.
enum Worker<'a, T = Box<Bridge>> {
    Native(T),
    Plugin(Delegate<'a>),
}

/// The program that removes what was created by a delegate's config.
type Remover<'a> = Worker<'a, Teardown>;

impl Call<'_> {
    fn answer(&self) -> Result<String, Error> {
        match &self.request.verb {
            Verb::Add(sandbox) => return add::add(self, sandbox),
            Verb::Check(sandbox) => check::check(self, sandbox)?,
            Verb::Del { attachment, netns } => del::del(self, attachment, netns.as_deref())?,
            Verb::Gc => gc::gc(self)?,
            Verb::Status => status::status(self)?,
            Verb::Version => return Ok(Version::report()),
        }
        Ok(String::new())
    }

    fn states(&self) -> States {
        States::at(&self.config.data_dir)
    }

    fn worker<'a>(&'a self, config: &'a Object) -> Result<Worker<'a>, Error> {
        if !self.is_native(config) {
            return Ok(Worker::Plugin(self.plugin(config)));
        }
        Ok(Worker::Native(Box::new(Bridge::parse(self.request, config)?)))
    }

    /// As [`worker`](Self::worker), for what is to be removed; none if `config` names no network.
    fn remover<'a>(&'a self, config: &'a Object) -> Option<Remover<'a>> {
        if !self.is_native(config) {
            return Some(Remover::Plugin(self.plugin(config)));
        }
        Teardown::parse(config).map(Remover::Native)
    }

    fn is_native(&self, config: &Object) -> bool {
        self.config.is_native && bridge::is_native(config)
    }

    fn plugin<'a>(&'a self, config: &'a Object) -> Delegate<'a> {
        Delegate { kind: delegate::kind(config), path: &self.request.path, config }
    }
}
