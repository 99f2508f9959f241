//! ADD: a container gets its interface.

use std::cell::Cell;
use std::net::IpAddr;

use super::{Call, Worker};
use crate::bridge::Bridge;
use crate::daemon;
use crate::delegate;
use crate::delegate::exec::Delegate;
use crate::disk::lock::Sharing;
use crate::host_local;
use crate::netns::Netns;
use crate::protocol::error::Error;
use crate::protocol::json::Object;
use crate::protocol::request::{Command, Sandbox};
use crate::state::StoredConfig;

/// Everything that can be refused is refused before anything is made.
pub(super) fn add(call: &Call<'_>, sandbox: &Sandbox) -> Result<String, Error> {
    let netns = Netns::of_container(&sandbox.netns, call.request.netns_rule)?;
    let env = daemon::wait_for_subnets(&call.config.subnet_file)?;
    let config = delegate::build(&call.config, &env)?;
    let worker = call.worker(&config)?;
    let _among_others = call.states().lock(Sharing::Shared)?;
    match worker {
        Worker::Native(bridge) => by_bridge(call, sandbox, &netns, &bridge, &config),
        Worker::Plugin(plugin) => by_plugin(call, sandbox, plugin),
    }
}

/// An attachment that holds an address keeps it and its link: so the address comes first.
///
/// A call that fails removes only what it made: the container may run since an earlier call.
fn by_bridge(
    call: &Call<'_>,
    sandbox: &Sandbox,
    netns: &Netns,
    bridge: &Bridge,
    config: &Object,
) -> Result<String, Error> {
    let (attachment, states) = (&sandbox.attachment, call.states());
    let (was_absent, is_kept) = (Cell::new(false), Cell::new(false));
    let recall = || {
        let record = states.recall(attachment)?;
        was_absent.set(record == StoredConfig::Absent);
        Ok(match &record {
            StoredConfig::Config(kept) => host_local::reserved(kept),
            // The record is written first: without it, nothing is reserved.
            StoredConfig::Absent => Some(Vec::new()),
            StoredConfig::Damaged => None,
        })
    };
    let keep = |held: &[IpAddr]| {
        is_kept.set(true);
        states.keep(attachment, &host_local::with_reserved(config, held))
    };
    let allocation = host_local::allocate(&bridge.pool, attachment, recall, keep);
    let allocated = allocation.as_ref().map_or(Vec::new(), |it| it.addresses.clone());
    let made = allocation.and_then(|it| bridge.connect(sandbox, netns, it, call.config.version));
    if made.is_err() && is_kept.get() {
        let forget = || {
            if was_absent.get() {
                let _ = states.forget(attachment);
            }
        };
        // What cannot be taken back now is left to the runtime's DEL, with its record.
        let _ = host_local::give_back(&bridge.pool.location, attachment, &allocated, forget);
    }
    made
}

/// Only the plugin itself can remove what it left when it failed: the record stays for the DEL.
fn by_plugin(call: &Call<'_>, sandbox: &Sandbox, plugin: Delegate<'_>) -> Result<String, Error> {
    plugin.find()?;
    call.states().keep(&sandbox.attachment, plugin.config)?;
    let printed = plugin.run(Command::Add, &[])?;
    Ok(String::from_utf8_lossy(&printed).into_owned())
}
