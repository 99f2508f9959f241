//! Questions about packets: those of `tweedctl trace` to a peer, and those of peers to this node.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tokio::sync::oneshot;

use super::{Control, Probing};
use crate::control::Reconciler;
use crate::kernel::Kernel;
use crate::model::lease::Lease;
use crate::model::node::RouteLookup;
use crate::model::path::{PeerReachability, UnknownCause};
use crate::model::prefix::Family;
use crate::plan::trace::{HostState, PeerQuestion, Planned, Question, Trace};
use crate::probe::{AnsweredTrace, AskedTrace, TraceRequest};

/// The maximum number of questions that are answered in one pass.
const MOST: usize = 16;

impl<K: Kernel> Reconciler<K> {
    /// Answers the questions of peers. The notifications that arrived before them are read, and what
    /// they show is repaired.
    pub(in crate::control) async fn answer_traces(&mut self) {
        for asked in std::mem::take(&mut self.control.paths.asked) {
            if let Some(trace) = self.trace(&asked).await {
                self.control.paths.answer(AnsweredTrace { asked, trace });
            }
        }
    }

    /// The hops of the packet on this node, from the loop's copy of the kernel's state. The kernel is
    /// asked for one route and for the addresses of this host, of which there are few.
    async fn trace(&mut self, asked: &AskedTrace) -> Option<Trace> {
        let Self { kernel, control, .. } = self;
        let local = control.inputs.local().filter(|_| control.state.failure.is_none())?;
        let lease = &control.lease_at(asked.peer)?.id;
        let (packet, desired) = (asked.question.packet, &control.derived.desired);
        let planned = Planned { local: &local, leases: &[], desired };
        let question = Question::of_peer(asked.question, planned, lease)?;
        let found = kernel.look_up(packet.destination).await.ok()?;
        let mut lookups = BTreeMap::from([(packet.destination, found)]);
        // The underlay carried the question, and has to carry the answer.
        let underlay = RouteLookup { link: local.node.interface.clone(), source: None };
        lookups.extend(question.peer().map(|peer| (peer.public_ip, Some(underlay))));
        let interfaces = kernel.interfaces().await.ok()?;
        let (actual, interfaces, lookups) = (&control.state.actual, &interfaces, &lookups);
        let host = HostState { actual, interfaces, lookups, probes: None };
        Some(question.answer(&host).on_this_node())
    }
}

impl Control {
    /// Passes a question of a peer to the end of this pass.
    pub(in crate::control) fn take_question(&mut self, asked: AskedTrace) {
        if self.paths.asked.len() < MOST {
            self.paths.asked.push(asked);
        }
    }

    pub(in crate::control) fn has_questions(&self) -> bool {
        !self.paths.asked.is_empty()
    }

    /// Asks the peer whose subnet begins with `peer`; its answer comes through the receiver.
    ///
    /// # Errors
    /// Why the peer is not asked.
    pub(in crate::control) fn ask_peer(
        &self,
        peer: IpAddr,
        question: PeerQuestion,
    ) -> Result<oneshot::Receiver<Trace>, String> {
        if !self.is_probing() {
            return Err("probes are off in the network config".to_owned());
        }
        let channels = match (&self.paths.state, &self.paths.channels) {
            (Probing::Off(reason), _) => return Err(format!("probes are off: {reason}")),
            (Probing::On, Some(channels)) => channels,
            (Probing::Starting | Probing::On, _) => return Err("probes are starting".to_owned()),
        };
        let state = self.current_board().and_then(|board| board.state(peer));
        let (Some(state), Some(lease)) = (state, self.lease_at(peer)) else {
            return Err("this node sends it no probes".to_owned());
        };
        if let Some(cause) = self.lacks_answers(lease, peer) {
            return Err(format!("the peer runs no daemon that answers: {cause}"));
        }
        let plans = self.derived.desired.peers();
        let plan = plans.get(&lease.id).and_then(|planned| planned.as_ref().ok());
        let used = plan.and_then(|(_, plan)| plan.path(Family::of(peer))).map(|it| it.path);
        let Some(path) = question.arrives_by.or(used) else {
            return Err("this node has no path to it".to_owned());
        };
        let ((reply, answer), target) = (oneshot::channel(), state.target);
        let request = TraceRequest { peer, target, path, question, reply };
        let sent = channels.traces.try_send(request);
        sent.map(|()| answer).map_err(|_| "too many questions wait".to_owned())
    }

    /// Why no answer of the peer can be expected.
    fn lacks_answers(&self, lease: &Lease, peer: IpAddr) -> Option<UnknownCause> {
        let endpoint = lease.endpoint(Family::of(peer))?;
        let PeerReachability::Unknown { cause } = self.reachability(endpoint) else { return None };
        let is_silent = matches!(cause, UnknownCause::NeverAnswered | UnknownCause::DaemonSilent);
        is_silent.then_some(cause)
    }
}
