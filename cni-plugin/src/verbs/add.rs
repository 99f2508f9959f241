//! ADD: a container gets its interface.

use super::{Call, Worker};
use crate::bridge::Bridge;
use crate::delegate;
use crate::error::Error;
use crate::exec::Delegate;
use crate::json::Object;
use crate::netns::Netns;
use crate::request::{Command, Sandbox};
use crate::state::Use;
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
fn by_bridge(
    call: &Call<'_>,
    sandbox: &Sandbox,
    netns: &Netns,
    bridge: &Bridge<'_>,
    config: &Object,
) -> Result<String, Error> {
    let attachment = &sandbox.attachment;
    let allocation = bridge.allocate(attachment)?;
    let made = call
        .states()
        .keep(attachment, config)
        .and_then(|()| bridge.connect(sandbox, netns, allocation))
        .and_then(|outcome| outcome.render(call.config.version));
    if made.is_err() {
        // What cannot be taken back now is left to the runtime's DEL, with the record of it.
        let _ = bridge.del(attachment, None).and_then(|()| call.states().forget(attachment));
    }
    made
}

/// What a plugin leaves behind when it fails is known to it alone: the runtime's DEL has it cleared.
fn by_plugin(call: &Call<'_>, sandbox: &Sandbox, plugin: Delegate<'_>) -> Result<String, Error> {
    call.states().keep(&sandbox.attachment, plugin.config)?;
    let printed = plugin.run(Command::Add, &[])?;
    Ok(String::from_utf8_lossy(&printed).into_owned())
}
