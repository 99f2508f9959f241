//! `tweedctl trace`: what happens to a packet on this node, hop by hop. Changes nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use clap::Args;
use serde::Serialize;

use super::layout::{Tone, Toned, wrap};
use super::node::{self, Files};
use super::{Answer, Error, ExitStatus};
use crate::kernel::Kernel;
use crate::model::entry::KernelState;
use crate::model::status::PeerStatus;
use crate::plan::trace::{
    Delivery, Hop, HopState, HostState, Planned, Question, Trace, TracedPacket, Untraceable,
};

const STATES: &str = "\
One of the two addresses must be a pod of this node, or this node itself. What
happens on other hosts is computed from their leases: planned, not seen.
Whether the peer answers probes by the path in use is asked from the daemon.
Firewall rules of other programs are not examined: see tweedctl doctor.

Exit codes:
  0  delivered, as far as this node sees
  2  the command line is invalid, or such a packet does not pass this node
  3  unknown: no daemon and no checkpoint, no permission, it depends on what
     tweed does not read, or probes of the peer are lost
  5  dropped; the last hop has the reason";

#[derive(Debug, Args)]
#[command(after_help = STATES)]
pub(super) struct TraceOptions {
    /// Source address
    #[arg(value_name = "SRC")]
    source: IpAddr,
    /// Destination address
    #[arg(value_name = "DST")]
    destination: IpAddr,
    /// Size with the IP header, in bytes; a packet is not fragmented
    #[arg(long, value_name = "N", default_value_t = 84)]
    size: u32,
}

/// The hops, and where the plan's inputs were read.
#[derive(Serialize)]
pub(super) struct Traced {
    #[serde(flatten)]
    trace: Trace,
    read_from: String,
}

pub(super) async fn answer<K: Kernel>(
    files: &Files,
    options: &TraceOptions,
    open: impl FnOnce() -> Result<K, Error>,
) -> Result<Traced, Error> {
    let TraceOptions { source, destination, size } = *options;
    let packet = TracedPacket::parse(source, destination, size)?;
    let inputs = node::read_inputs(files).await?;
    let (desired, scope) = (inputs.desired(), inputs.scope());
    let (local, leases) = (&inputs.checkpoint.local, inputs.checkpoint.leases.as_slice());
    let question = Question::of(packet, Planned { local, leases, desired: &desired })?;
    let mut kernel = open()?;
    let unread = |error| Error::Unavailable(format!("the kernel cannot be read: {error}"));
    let known = KernelState::default();
    let read = kernel.read(Some(destination), &scope, &known).await;
    let (facts, actual) = read.map_err(unread)?;
    let mut lookups = BTreeMap::from([(destination, facts.reach)]);
    for address in question.lookups().filter(|address| *address != destination) {
        lookups.insert(address, kernel.facts(Some(address)).await.map_err(unread)?.reach);
    }
    // Without a daemon, nothing is probed.
    let peers: Vec<PeerStatus> = node::ask(&files.socket(), "/peers").await.unwrap_or_default();
    let subnet = question.peer().map(|peer| peer.subnet);
    let peer = peers.into_iter().find(|peer| subnet.is_some() && peer.subnet == subnet);
    let probes = peer.and_then(|peer| peer.reachability);
    let (actual, interfaces, lookups) = (&actual, &facts.interfaces, &lookups);
    let trace = question.answer(&HostState { actual, interfaces, lookups, probes });
    Ok(Traced { trace, read_from: inputs.source })
}

impl From<Untraceable> for Error {
    fn from(reason: Untraceable) -> Self {
        match reason {
            Untraceable::NoOwnLease(_) => Self::Unavailable(reason.to_string()),
            _ => Self::Usage(reason.to_string()),
        }
    }
}

impl Answer for Traced {
    fn exit_status(&self) -> ExitStatus {
        match self.trace.delivery {
            Delivery::Delivered => ExitStatus::Done,
            Delivery::Dropped => ExitStatus::Failing,
            Delivery::Unknown => ExitStatus::Unexamined,
        }
    }
}

impl fmt::Display for Traced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Trace { packet, hops, delivery, .. } = &self.trace;
        let TracedPacket { source, destination, size } = packet;
        writeln!(f, "{source} to {destination}, {size} bytes\n")?;
        for Hop { hop, state, text } in hops {
            let (tone, mark) = match state {
                HopState::Passed => (Tone::Plain, ""),
                HopState::Planned => (Tone::Plain, "planned, not seen: "),
                HopState::Dropped => (Tone::Bad, "dropped: "),
                HopState::Unknown => (Tone::Warning, "unknown: "),
            };
            let text = wrap(&format!("{:12}{mark}{text}", hop.as_str()), 14);
            Toned(tone, text).fmt(f)?;
            writeln!(f)?;
        }
        let is_planned = hops.iter().any(|hop| hop.state == HopState::Planned);
        let last = hops.last().map_or("", |hop| hop.hop.as_str());
        let verdict = match delivery {
            Delivery::Delivered if is_planned => "delivered, as far as this node sees".to_owned(),
            Delivery::Delivered => "delivered".to_owned(),
            Delivery::Dropped => format!("dropped: {last}"),
            Delivery::Unknown => format!("unknown: {last}"),
        };
        let summary = format!("{verdict}; examined with the plan of {}", self.read_from);
        writeln!(f, "\n{}", wrap(&summary, 2))
    }
}
