//! STATUS: whether an ADD would be served.

use super::{Call, Worker};
use crate::daemon;
use crate::delegate;
use crate::disk;
use crate::protocol::error::Error;
use crate::protocol::request::Command;

pub(super) fn status(call: &Call<'_>) -> Result<(), Error> {
    if let Some(words) = daemon::stuck(&call.config.subnet_file) {
        return Err(Error::not_available_and_limited(words));
    }
    let unavailable = |error: Error| Error { code: 50, ..error };
    let env = daemon::subnets(&call.config.subnet_file).map_err(unavailable)?;
    let config = delegate::build(&call.config, &env).map_err(unavailable)?;
    disk::check_room(&call.config.data_dir)?;
    match call.worker(&config).map_err(unavailable)? {
        Worker::Native(bridge) => bridge.status(),
        Worker::Plugin(plugin) => plugin.run(Command::Status, &[]).map(drop).map_err(Error::from),
    }
}
