//! GC: whatever belongs to no attachment that the runtime knows goes.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::del::{Deletion, presumed};
use super::{Call, Remover};
use crate::bridge::Teardown;
use crate::delegate::exec::Delegate;
use crate::disk::lock::Sharing;
use crate::protocol::error::Error;
use crate::protocol::json::{self, Object};
use crate::protocol::request::{Attachment, Command};
use crate::state::{Owner, States, StoredConfig};

/// Continues after an error, and returns all of them.
pub(super) fn gc(call: &Call<'_>) -> Result<(), Error> {
    // Without a list, nothing is known about what is in use.
    let Some(listed) = &call.config.valid else { return Ok(()) };
    let states = call.states();
    let begun = states.now();
    let alone = states.lock(Sharing::Exclusive)?;
    let mut errors: Vec<_> = states.sweep().err().into_iter().collect();
    // What was added since the runtime made its list cannot be in it.
    let added = begun.map(|begun| states.kept_since(begun)).transpose()?;
    let valid = [listed.as_slice(), &added.unwrap_or_default()].concat();
    let stale = stale(&states, &call.config.name, &valid)?;
    let presumed = presumed(call);
    let whole = call.remover(&presumed);
    let (native, others): (Vec<_>, Vec<_>) = stale
        .iter()
        .map(|(owner, config)| (owner, call.remover(config)))
        .partition(|(_, remover)| !matches!(remover, Some(Remover::Plugin(_))));
    let swept = sweep(whole.as_ref(), &native, &valid);
    // While something is left, so is the record of it.
    let mut may_forget = swept.is_ok();
    errors.extend(swept.err());
    if may_forget {
        errors.extend(native.iter().filter_map(|(owner, _)| states.drop_record(owner).err()));
    }
    drop(alone);
    // Other plugins take their time, and what is stale stays so: an ADD need not wait for them.
    let _among_others = states.lock(Sharing::Shared)?;
    if let Some(Remover::Plugin(plugin)) = &whole {
        let collected = collect_by(plugin, &valid);
        may_forget &= collected.is_ok();
        errors.extend(collected.err());
    }
    for (owner, remover) in others {
        let gone = remover.map_or(Ok(()), |remover| collect(call, owner, remover));
        let done = if may_forget { gone.and_then(|()| states.drop_record(owner)) } else { gone };
        errors.extend(done.err());
    }
    joined(errors)
}

/// Removes what the network holds that is not `valid`, and what was made by the configs of `native`
/// records, once for all equal ones.
fn sweep(
    whole: Option<&Remover<'_>>,
    native: &[(&Owner, Option<Remover<'_>>)],
    valid: &[Attachment],
) -> Result<(), Error> {
    let stale: Vec<_> = native.iter().map(|(owner, _)| owner.attachment()).collect();
    let mut teardowns: Vec<&Teardown> = Vec::new();
    let removers =
        whole.into_iter().chain(native.iter().filter_map(|(_, remover)| remover.as_ref()));
    for remover in removers {
        match remover {
            Remover::Native(teardown) if !teardowns.contains(&teardown) => teardowns.push(teardown),
            Remover::Native(_) | Remover::Plugin(_) => {}
        }
    }
    let by_teardown = teardowns.into_iter().filter_map(|one| one.gc(valid, &stale).err());
    joined(by_teardown.collect())
}

fn collect_by(plugin: &Delegate<'_>, valid: &[Attachment]) -> Result<(), Error> {
    let mut config = plugin.config.clone();
    config.insert("cni.dev/valid-attachments".into(), listed(valid));
    let collector = Delegate { config: &config, ..*plugin };
    collector.run(Command::Gc, &[]).map(drop).map_err(Error::from)
}

/// Records of this network whose attachment is not `valid`, with what was kept.
fn stale(
    states: &States,
    network: &str,
    valid: &[Attachment],
) -> Result<Vec<(Owner, Object)>, Error> {
    let containers: HashSet<_> = valid.iter().map(|one| one.container_id.as_str()).collect();
    let attachments: HashSet<_> = valid.iter().collect();
    let is_valid = |owner: &Owner| match owner.interface {
        Some(_) => attachments.contains(&owner.attachment()),
        None => containers.contains(owner.container_id.as_str()),
    };
    let is_its = |config: &Object| json::lenient_text(config, "name") == Some(network);
    let kept = states.all()?.into_iter().filter_map(|(owner, record)| match record {
        StoredConfig::Config(config) if is_its(&config) && !is_valid(&owner) => {
            Some((owner, config))
        }
        // A damaged record does not name its owner: it stays for the DEL of its attachment.
        StoredConfig::Config(_) | StoredConfig::Damaged | StoredConfig::Absent => None,
    });
    Ok(kept.collect())
}

/// As a DEL whose namespace is gone.
fn collect(call: &Call<'_>, owner: &Owner, remover: Remover<'_>) -> Result<(), Error> {
    let attachment = owner.attachment();
    let gone = Deletion { call, attachment: &attachment, netns: None, reserved: None };
    gone.by(remover).map_err(|error| error.context(&attachment))
}

fn listed(valid: &[Attachment]) -> Value {
    let entry = |attachment: &Attachment| json!({"containerID": attachment.container_id, "ifname": attachment.interface});
    valid.iter().map(entry).collect()
}

fn joined(errors: Vec<Error>) -> Result<(), Error> {
    let mut errors = errors.into_iter();
    let Some(first) = errors.next() else { return Ok(()) };
    let join = |all: Error, one: Error| Error { msg: format!("{}; {}", all.msg, one.msg), ..all };
    Err(errors.fold(first, join))
}
