//! GC: whatever belongs to no attachment that the runtime knows goes.

use serde_json::{Value, json};

use super::{Call, Worker, del};
use crate::attachment::Attachment;
use crate::error::Error;
use crate::json::{self, Object};
use crate::request::Command;
use crate::state::{Owner, Record, States, Use};

/// So an interface is called that only flannel's own record of a container tells of.
const USUAL_INTERFACE: &str = "eth0";

/// Goes on after an error, and tells all of them.
pub(super) fn gc(call: &Call<'_>) -> Result<(), Error> {
    // A runtime that does not say what lives does not say that nothing does.
    let Some(valid) = &call.config.valid else { return Ok(()) };
    let states = call.states();
    let alone = states.lock(Use::Exclusive)?;
    let mut errors: Vec<_> = states.sweep(&alone).err().into_iter().collect();
    let whole = by_config(call, valid);
    let may_forget = whole.is_ok();
    errors.extend(whole.err());
    for (owner, record) in stale(&states, &call.config.name, valid)? {
        let gone = collect(call, &owner, &record);
        // While something is left, so is the record of it.
        let done = if may_forget { gone.and_then(|()| states.drop_record(&owner)) } else { gone };
        errors.extend(done.err());
    }
    joined(errors)
}

/// What the network as a whole holds that is not `valid`.
fn by_config(call: &Call<'_>, valid: &[Attachment]) -> Result<(), Error> {
    let mut config = del::presumed(call);
    config.insert("cni.dev/valid-attachments".into(), listed(valid));
    match call.worker(&config)? {
        Worker::Native(bridge) => bridge.gc(valid),
        Worker::Plugin(plugin) => plugin.run(Command::Gc, &[]).map(drop),
    }
}

/// Records of this network whose attachment is not `valid`.
fn stale(
    states: &States,
    network: &str,
    valid: &[Attachment],
) -> Result<Vec<(Owner, Record)>, Error> {
    let is_valid = |owner: &Owner| {
        valid.iter().any(|attachment| {
            let interface = owner.interface.as_ref();
            attachment.container_id == owner.container_id
                && interface.is_none_or(|interface| *interface == attachment.interface)
        })
    };
    let mut all = states.all()?;
    // A damaged record does not say whose it is: it stays for the DEL of its attachment.
    all.retain(|(owner, record)| match record {
        Record::Kept(config) => is_of(network, config) && !is_valid(owner),
        Record::Damaged | Record::Absent => false,
    });
    Ok(all)
}

fn is_of(network: &str, config: &Object) -> bool {
    json::get(config, "name").and_then(Value::as_str) == Some(network)
}

/// As a DEL whose namespace is gone.
fn collect(call: &Call<'_>, owner: &Owner, record: &Record) -> Result<(), Error> {
    let Record::Kept(config) = record else { return Ok(()) };
    let attachment = Attachment {
        container_id: owner.container_id.clone(),
        interface: owner.interface.clone().unwrap_or_else(|| USUAL_INTERFACE.to_owned()),
    };
    let gone = match call.worker(config)? {
        Worker::Native(bridge) => bridge.del(&attachment, None),
        Worker::Plugin(plugin) => {
            let environment = [
                ("CNI_CONTAINERID", attachment.container_id.as_str()),
                ("CNI_IFNAME", &attachment.interface),
                ("CNI_NETNS", ""),
            ];
            plugin.run(Command::Del, &environment).map(drop)
        }
    };
    gone.map_err(|error| error.context(&attachment))
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
