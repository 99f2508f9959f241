//! ADD: a container gets its interface.

use super::{Call, Worker};
use crate::bridge::Bridge;
use crate::delegate;
use crate::error::Error;
use crate::exec::Delegate;
use crate::json::Object;
use crate::netns::Netns;
use crate::request::{Command, Sandbox};
use crate::state::{Record, Use};
use crate::subnet_file;

/// Everything that can be refused is refused before anything is made.
pub(super) fn add(call: &Call<'_>, sandbox: &Sandbox) -> Result<String, Error> {
    let netns = Netns::of_container(&sandbox.netns, call.request.netns_rule)?;
    let env = subnet_file::wait(&call.config.subnet_file)?;
    let config = delegate::build(&call.config, &env)?;
    let worker = call.worker(&config)?;
    let _among_others = call.states().lock(Use::Shared)?;
    match worker {
        Worker::Native(bridge) => by_bridge(call, sandbox, &netns, &bridge, &config),
        Worker::Plugin(plugin) => by_plugin(call, sandbox, plugin),
    }
}

/// Whoever has an address already keeps it, and all that belongs to it: so that comes first.
///
/// What fails is taken back as far as this call has made it: the container may run since an
/// earlier one, whatever became of its reservation.
fn by_bridge(
    call: &Call<'_>,
    sandbox: &Sandbox,
    netns: &Netns,
    bridge: &Bridge,
    config: &Object,
) -> Result<String, Error> {
    let (attachment, states) = (&sandbox.attachment, call.states());
    let is_first = states.recall(attachment)? == Record::Absent;
    let allocation = bridge.allocate(attachment)?;
    let made = states
        .keep(attachment, config)
        .and_then(|()| bridge.connect(sandbox, netns, allocation.clone(), call.config.version));
    // What cannot be taken back now is left to the runtime's DEL, with the record of it.
    if made.is_err() && bridge.give_back(attachment, &allocation).is_ok() && is_first {
        let _ = states.forget(attachment);
    }
    made
}

/// What a plugin leaves behind when it fails is known to it alone: the runtime's DEL has it cleared.
/// One that is not installed leaves nothing.
fn by_plugin(call: &Call<'_>, sandbox: &Sandbox, plugin: Delegate<'_>) -> Result<String, Error> {
    plugin.find()?;
    call.states().keep(&sandbox.attachment, plugin.config)?;
    let printed = plugin.run(Command::Add, &[])?;
    Ok(String::from_utf8_lossy(&printed).into_owned())
}
