//! DEL: an interface goes, with everything that was made for it.

use std::path::Path;

use super::{Call, Worker};
use crate::attachment::Attachment;
use crate::delegate;
use crate::error::Error;
use crate::json::Object;
use crate::request::Command;
use crate::state::{Record, Use};
use crate::subnet_env::SubnetEnv;

/// Works by what ADD kept; without that, by what the config says.
///
/// The record goes last: as long as anything is left, the runtime can try again.
pub(super) fn del(
    call: &Call<'_>,
    attachment: &Attachment,
    netns: Option<&Path>,
) -> Result<(), Error> {
    let states = call.states();
    let _among_others = states.lock(Use::Shared)?;
    match states.recall(attachment)? {
        Record::Kept(config) => match call.worker(&config)? {
            Worker::Native(bridge) => bridge.del(attachment, netns)?,
            Worker::Plugin(plugin) => plugin.run(Command::Del, &[]).map(drop)?,
        },
        Record::Damaged | Record::Absent => by_config(call, attachment, netns)?,
    }
    states.forget(attachment)
}

/// Other plugins are asked too; but as nothing says that they have made something, a refusal is no
/// reason to ask again.
fn by_config(call: &Call<'_>, attachment: &Attachment, netns: Option<&Path>) -> Result<(), Error> {
    let config = presumed(call);
    match call.worker(&config) {
        Ok(Worker::Native(bridge)) => bridge.del(attachment, netns),
        Ok(Worker::Plugin(plugin)) => {
            let _ = plugin.run(Command::Del, &[]);
            Ok(())
        }
        // A config by which nothing can have been made.
        Err(_) => Ok(()),
    }
}

/// The delegate's config as an ADD would build it now.
pub(super) fn presumed(call: &Call<'_>) -> Object {
    let built = SubnetEnv::read(&call.config.subnet_file)
        .ok()
        .and_then(|env| delegate::build(&call.config, &env).ok());
    built.unwrap_or_else(|| delegate::build_without_subnets(&call.config))
}
