//! CHECK: an interface is still as ADD made it.

use super::{Call, Worker};
use crate::disk::lock::Sharing;
use crate::netns::Netns;
use crate::protocol::error::Error;
use crate::protocol::request::{Command, Sandbox};
use crate::protocol::result::AddResult;
use crate::state::StoredConfig;

/// By what ADD kept: later chained plugins may have changed the rest, and their result is given.
pub(super) fn check(call: &Call<'_>, sandbox: &Sandbox) -> Result<(), Error> {
    let previous = call.config.previous.as_ref();
    let previous = previous.ok_or_else(|| Error::invalid_config("Required prevResult missing"))?;
    let netns = Netns::of_container(&sandbox.netns, call.request.netns_rule)?;
    let states = call.states();
    let _among_others = states.lock(Sharing::Shared)?;
    let StoredConfig::Config(mut config) = states.recall(&sandbox.attachment)? else {
        let attachment = &sandbox.attachment;
        return Err(Error::failed(format!("no record of {attachment}: recreate the container")));
    };
    // The result that the runtime gives now counts, not the one that was kept.
    config.insert("prevResult".into(), previous.clone().into());
    match call.worker(&config)? {
        Worker::Native(bridge) => bridge.check(sandbox, &netns, &AddResult::parse(previous)?),
        Worker::Plugin(plugin) => plugin.run(Command::Check, &[]).map(drop).map_err(Error::from),
    }
}
