//! `tweedctl trace`: what happens to a packet on this node and on the peer, hop by hop. Changes
//! nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use clap::Args;
use serde::Serialize;

use super::layout::{Tone, Toned, wrap};
use super::node::{self, Files, Unanswered};
use super::{Answer, Error, ExitStatus};
use crate::daemon::trace_path;
use crate::kernel::Kernel;
use crate::model::entry::KernelState;
use crate::model::status::PeerStatus;
use crate::plan::trace::{
    Delivery, Hop, HopState, HostState, PeerHops, PeerQuestion, PeerRole, PeerTrace, Planned,
    Question, TracedPacket, Untraceable, WholeTrace,
};

const STATES: &str = "\
One of the two addresses must be a pod of this node, or this node itself. The
daemon of this node asks the daemon of the peer for the hops there, by the port
of probes, and waits for 1 s. Without an answer, they are computed from the
lease of the peer: planned, not seen.
Firewall rules of other programs are not examined: see tweedctl doctor.

Exit codes:
  0  delivered; without an answer of the peer, as far as this node sees
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
    whole: WholeTrace,
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
    let peer = question.peer().cloned();
    let ask = async |role: PeerRole, question: Option<PeerQuestion>| {
        let (peer, question) = peer.as_ref().zip(question)?;
        let (subnet, public_ip) = (peer.subnet, peer.public_ip);
        let path = trace_path(subnet.base(), question);
        let hops = node::ask(&files.socket(), &path).await;
        let hops = hops.unwrap_or_else(|why| match why {
            Unanswered::Absent(_) => PeerHops::Unseen("no daemon runs on this node".to_owned()),
            other => PeerHops::Unseen(other.to_string()),
        });
        Some(PeerTrace { subnet, public_ip, role, hops })
    };
    let sender = ask(PeerRole::Sender, question.for_sender()).await;
    let question = match &sender {
        Some(sender) => question.sent_as(&sender.hops),
        None => question,
    };
    let mut kernel = open()?;
    let unread = |error| Error::Unavailable(format!("the kernel cannot be read: {error}"));
    let known = KernelState::default();
    let read = kernel.read(Some(destination), &scope, &known).await;
    let (facts, actual) = read.map_err(unread)?;
    let mut lookups = BTreeMap::from([(destination, facts.reach)]);
    for address in question.lookups().filter(|address| *address != destination) {
        lookups.insert(address, kernel.look_up(address).await.map_err(unread)?);
    }
    // Without a daemon, nothing is probed.
    let peers: Vec<PeerStatus> = node::ask(&files.socket(), "/peers").await.unwrap_or_default();
    let subnet = question.peer().map(|peer| peer.subnet);
    let peer = peers.into_iter().find(|peer| subnet.is_some() && peer.subnet == subnet);
    let probes = peer.and_then(|peer| peer.reachability);
    let (actual, interfaces, lookups) = (&actual, &facts.interfaces, &lookups);
    let trace = question.answer(&HostState { actual, interfaces, lookups, probes });
    let receiver = ask(PeerRole::Receiver, question.for_receiver(&trace)).await;
    let whole = WholeTrace::new(packet, trace, sender.or(receiver));
    Ok(Traced { whole, read_from: inputs.source })
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
        match self.whole.trace.delivery {
            Delivery::Delivered => ExitStatus::Done,
            Delivery::Dropped => ExitStatus::Failing,
            Delivery::Unknown => ExitStatus::Unexamined,
        }
    }
}

impl fmt::Display for Traced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WholeTrace { trace, peer } = &self.whole;
        let TracedPacket { source, destination, size } = trace.packet;
        writeln!(f, "{source} to {destination}, {size} bytes")?;
        let is_sender = |peer: &&PeerTrace| peer.role == PeerRole::Sender;
        peer.iter().filter(is_sender).try_for_each(|peer| write_peer(f, peer))?;
        if peer.iter().any(|peer| is_sender(&peer)) && !trace.hops.is_empty() {
            writeln!(f, "\non this node:")?;
        } else {
            writeln!(f)?;
        }
        write_hops(f, &trace.hops)?;
        peer.iter().filter(|peer| !is_sender(peer)).try_for_each(|peer| write_peer(f, peer))?;
        let summary = format!("{}; examined with the plan of {}", self.verdict(), self.read_from);
        writeln!(f, "\n{}", wrap(&summary, 2))
    }
}

impl Traced {
    fn verdict(&self) -> String {
        let WholeTrace { trace, .. } = &self.whole;
        let is_planned = trace.hops.iter().any(|hop| hop.state == HopState::Planned);
        let verdict = match trace.delivery {
            Delivery::Delivered if is_planned => "delivered, as far as this node sees",
            Delivery::Delivered => "delivered",
            Delivery::Dropped => "dropped",
            Delivery::Unknown => "unknown",
        };
        match self.whole.last().filter(|_| trace.delivery != Delivery::Delivered) {
            Some((hop, Some(peer))) => format!("{verdict}: {} on {}", hop.hop.as_str(), name(peer)),
            Some((hop, None)) => format!("{verdict}: {}", hop.hop.as_str()),
            None => verdict.to_owned(),
        }
    }
}

/// As in `10.244.7.0/24 (172.16.0.7)`.
fn name(PeerTrace { subnet, public_ip, .. }: &PeerTrace) -> String {
    format!("{subnet} ({public_ip})")
}

fn write_peer(f: &mut fmt::Formatter<'_>, peer: &PeerTrace) -> fmt::Result {
    match &peer.hops {
        PeerHops::Seen(trace) => {
            writeln!(f, "\non {}, by its daemon:", name(peer))?;
            write_hops(f, &trace.hops)
        }
        PeerHops::Unseen(reason) => {
            let line = format!("on {}: planned, not seen: {reason}", name(peer));
            writeln!(f, "\n{}", wrap(&line, 2))
        }
    }
}

fn write_hops(f: &mut fmt::Formatter<'_>, hops: &[Hop]) -> fmt::Result {
    hops.iter().try_for_each(|Hop { hop, state, text }| {
        let (tone, mark) = match state {
            HopState::Passed => (Tone::Plain, ""),
            HopState::Planned => (Tone::Plain, "planned, not seen: "),
            HopState::Dropped => (Tone::Bad, "dropped: "),
            HopState::Unknown => (Tone::Warning, "unknown: "),
        };
        let text = wrap(&format!("{:12}{mark}{text}", hop.as_str()), 14);
        // The alternate form has colours.
        fmt::Display::fmt(&Toned(tone, text), f)?;
        writeln!(f)
    })
}
