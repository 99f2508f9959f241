//! The task that probes paths: it knows the verdicts beforehand.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tweed::control::Event;
use tweed::model::path::{Cause, Verdict};
use tweed::model::status::Counts;
use tweed::probe::{Findings, Judgement, ProbeChannels, ProbeEvent, Target, Targets};

use crate::notation::prefix;

pub(crate) struct Prober {
    targets: watch::Receiver<Targets>,
    /// Peers are as unresponsive as flannel is, or all answer; none while nothing is said of them.
    usual: Option<Verdict>,
    /// Of which peers something was said, as they were then.
    judged: BTreeMap<IpAddr, Target>,
    _findings: watch::Sender<Findings>,
}

impl Prober {
    pub(crate) fn start(events: &mpsc::Sender<Event>) -> Self {
        let (targets, wanted) = watch::channel(Targets::default());
        let (epoch, subjects, counts) = (Instant::now(), BTreeMap::new(), Counts::default());
        let (findings, read) = watch::channel(Findings { epoch, subjects, counts });
        let channels = ProbeEvent::Channels(ProbeChannels { targets, findings: read });
        for event in [channels, ProbeEvent::On] {
            events.try_send(Event::Probe(event)).expect("the loop takes no events");
        }
        let (usual, judged) = (Some(Verdict::Silent), BTreeMap::new());
        Self { targets: wanted, usual, judged, _findings: findings }
    }

    pub(crate) fn perform(&mut self, words: &str) -> ProbeEvent {
        let usual = match words {
            "silent" => Some(Some(Verdict::Silent)),
            "good" => Some(Some(Verdict::Good)),
            "awaited" => Some(None),
            _ => None,
        };
        if let Some(usual) = usual {
            self.usual = usual;
            return ProbeEvent::On;
        }
        let (word, rest) = words.split_once(' ').unwrap_or((words, ""));
        let verdict = match word {
            "off" => return ProbeEvent::Off(rest.to_owned()),
            "good" => Verdict::Good,
            "no-answer" => Verdict::Bad(Cause::NoAnswer),
            "large-lost" => Verdict::Bad(Cause::LargeLost),
            _ => panic!("probes are not {words}"),
        };
        ProbeEvent::Judged(vec![self.judgement(prefix(rest).base(), verdict)])
    }

    /// What is to be said of peers that are new.
    pub(crate) fn judge(&mut self) -> Option<ProbeEvent> {
        let verdict = self.usual?;
        let peers: Vec<IpAddr> = self.targets.borrow().peers.keys().copied().collect();
        let is_new = |peer: &IpAddr| {
            let targets = self.targets.borrow();
            self.judged.get(peer) != targets.peers.get(peer)
        };
        let new: Vec<IpAddr> = peers.into_iter().filter(is_new).collect();
        let judged: Vec<_> = new.into_iter().map(|peer| self.judgement(peer, verdict)).collect();
        (!judged.is_empty()).then_some(ProbeEvent::Judged(judged))
    }

    fn judgement(&mut self, peer: IpAddr, verdict: Verdict) -> Judgement {
        let target = self.targets.borrow().peers.get(&peer).copied();
        let target = target.unwrap_or_else(|| panic!("{peer} is not probed"));
        self.judged.insert(peer, target);
        Judgement { peer, public_ip: target.public_ip, verdict }
    }
}
