//! DEL: an interface goes, with everything that was made for it.

use std::net::IpAddr;
use std::path::Path;

use super::{Call, Remover};
use crate::bridge::Teardown;
use crate::delegate;
use crate::delegate::exec::{Delegate, Failure};
use crate::disk::lock::Sharing;
use crate::host_local;
use crate::protocol::error::Error;
use crate::protocol::json::Object;
use crate::protocol::request::{Attachment, Command};
use crate::state::StoredConfig;
use crate::subnet_env::SubnetEnv;

/// Works by the record of the ADD; without that, by the config.
///
/// The record is removed last, so that the runtime can retry; if that fails, the next GC removes it.
pub(super) fn del(
    call: &Call<'_>,
    attachment: &Attachment,
    netns: Option<&Path>,
) -> Result<(), Error> {
    let states = call.states();
    let _among_others = states.lock(Sharing::Shared)?;
    let mut gone = Deletion { call, attachment, netns, reserved: None };
    match states.recall(attachment)? {
        StoredConfig::Config(config) => {
            gone.reserved = host_local::reserved(&config);
            match call.remover(&config) {
                Some(remover) => gone.by(remover)?,
                None => gone.by_presumed_config()?,
            }
        }
        StoredConfig::Damaged => gone.by_presumed_config()?,
        // The other plugin may have made nothing: its error is no reason to retry.
        StoredConfig::Absent => match call.remover(&presumed(call)) {
            Some(Remover::Plugin(plugin)) => drop(plugin.run(Command::Del, &[])),
            Some(remover) => gone.by(remover)?,
            None => {}
        },
    }
    let _ = states.forget(attachment);
    Ok(())
}

/// An attachment that is removed, with the namespace that the runtime names.
pub(super) struct Deletion<'a> {
    pub(super) call: &'a Call<'a>,
    pub(super) attachment: &'a Attachment,
    pub(super) netns: Option<&'a Path>,
    /// The addresses that its record names.
    pub(super) reserved: Option<Vec<IpAddr>>,
}

impl Deletion<'_> {
    pub(super) fn by(&self, remover: Remover<'_>) -> Result<(), Error> {
        match remover {
            Remover::Native(teardown) => self.natively(&teardown),
            Remover::Plugin(plugin) => match self.run(&plugin) {
                Err(Failure::NotInstalled(error)) => self.without(&plugin, error),
                done => done.map_err(Error::from),
            },
        }
    }

    fn by_presumed_config(&self) -> Result<(), Error> {
        let config = presumed(self.call);
        self.call.remover(&config).map_or(Ok(()), |remover| self.by(remover))
    }

    fn natively(&self, teardown: &Teardown) -> Result<(), Error> {
        let reserved = self.reserved.as_deref();
        teardown.del(self.attachment, reserved, self.netns, self.call.request.netns_rule)
    }

    /// Does the work of a plugin that is not installed any more, except for its address management.
    fn without(&self, plugin: &Delegate<'_>, missing: Error) -> Result<(), Error> {
        let teardown = Teardown::parse(plugin.config).ok_or(missing)?;
        self.natively(&teardown)?;
        match delegate::ipam_kind(plugin.config) {
            None | Some(delegate::HOST_LOCAL) => Ok(()),
            Some(kind) => self.run(&Delegate { kind, ..*plugin }).map_err(Error::from),
        }
    }

    fn run(&self, plugin: &Delegate<'_>) -> Result<(), Failure> {
        let netns = self.netns.map(Path::to_string_lossy).unwrap_or_default();
        let environment = [
            ("CNI_CONTAINERID", self.attachment.container_id.as_str()),
            ("CNI_IFNAME", &self.attachment.interface),
            ("CNI_NETNS", &netns),
        ];
        plugin.run(Command::Del, &environment).map(drop)
    }
}

/// The delegate's config as an ADD would build it now.
pub(super) fn presumed(call: &Call<'_>) -> Object {
    let built = SubnetEnv::read(&call.config.subnet_file)
        .ok()
        .and_then(|env| delegate::build(&call.config, &env).ok());
    built.unwrap_or_else(|| delegate::build_without_subnets(&call.config))
}
