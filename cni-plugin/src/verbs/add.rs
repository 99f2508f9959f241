//! ADD: a container gets its interface.

use super::{Call, Worker};
use crate::delegate;
use crate::error::Error;
use crate::netns::Netns;
use crate::request::{Command, Sandbox};
use crate::state::Use;
use crate::subnet_file;

/// Everything that can be refused is refused before anything is made.
pub(super) fn add(call: &Call<'_>, sandbox: &Sandbox) -> Result<String, Error> {
    let netns = Netns::of_container(&sandbox.netns, call.request.netns_rule)?;
    let env = subnet_file::wait(&call.config.subnet_file)?;
    let delegate = delegate::build(&call.config, &env)?;
    let states = call.states();
    let keep = || states.keep(&sandbox.attachment, &delegate);
    match call.worker(&delegate)? {
        Worker::Native(bridge) => {
            let _among_others = states.lock(Use::Shared)?;
            let outcome = bridge.add(sandbox, &netns, &states, keep)?;
            outcome.render(call.config.version)
        }
        Worker::Plugin(plugin) => {
            let _among_others = states.lock(Use::Shared)?;
            keep()?;
            let printed = plugin.run(Command::Add, &[])?;
            Ok(String::from_utf8_lossy(&printed).into_owned())
        }
    }
}
