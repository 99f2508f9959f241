//! Rules that masquerade containers, where the daemon does not.

mod iptables;
mod names;
mod table;

use self::table::Refused;
use super::identity::Identity;
use super::plan::Plan;
use super::settings::{Backend, Settings};
use crate::protocol::error::Error;
use crate::protocol::request::Attachment;

/// There are rules for the addresses of `plan`, if the config asks for them.
pub(super) fn ensure(settings: &Settings, identity: &Identity, plan: &Plan) -> Result<(), Error> {
    let addresses: Vec<_> = plan.result.addresses.iter().map(|one| one.address).collect();
    match settings.masquerade {
        None => Ok(()),
        Some(Backend::Iptables) => iptables::ensure(identity, &addresses),
        Some(backend) => match table::ensure(identity, &addresses) {
            Err(Refused::Lacking(_)) if backend == Backend::Any => {
                iptables::ensure(identity, &addresses)
            }
            Err(Refused::Lacking(error) | Refused::Other(error)) => Err(error),
            Ok(()) => Ok(()),
        },
    }
}

/// Removes the rules of `identity`, also those of other plugins, whatever addresses it has now.
pub(super) fn remove(identity: &Identity) -> Result<(), Error> {
    // Rules of one kind mean that there are none of the other.
    if table::remove(identity)? { Ok(()) } else { iptables::remove(identity) }
}

/// Removes the rules of this network that belong to none of `valid`.
pub(super) fn collect(network: &str, valid: &[Attachment]) -> Result<(), Error> {
    table::collect(network, valid)?;
    iptables::collect(network, valid)
}
