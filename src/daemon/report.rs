//! The tasks that publish what happens on this node: its report, when it changes and from time to
//! time, and the events that operators of Kubernetes read.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::OptionFuture;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, interval_at, sleep, sleep_until};
use tweed_client::backoff::Backoff;
use tweed_cni::bridge::pods;

use super::keep::OwnLease;
use super::{Blocking, Shared};
use crate::control::Query;
use crate::model::event::{EventDigest, EventKind, NodeEvent};
use crate::model::prefix::Prefix;
use crate::model::report::{DaemonState, NodeReport, OtherMtu, refresh_interval};
use crate::random::random;
use crate::store::{Documents, Unpublished};

/// Changes of the report within this time are published together.
const SETTLE: Duration = Duration::from_secs(1);
/// In a large cluster one change concerns all nodes: a longer time results in fewer reports.
const SETTLE_PER_PEER: Duration = Duration::from_millis(2);
/// The shortest time between two reports that differ only in what no migration waits for.
const PAUSE: Duration = Duration::from_secs(5);
/// The longest pause after a report that the store refuses: thousands of nodes may lack the right.
const REFUSED: Duration = Duration::from_secs(600);
/// The interval after which the report is published again: it may have been deleted.
const REPUBLISH: Duration = Duration::from_secs(3600);
/// The interval at which changed results of probes, and changed pods, are published.
const MEASURED: Duration = Duration::from_secs(15);
/// Changes within this time are one event: peers are found unreachable one after the other.
const GATHER: Duration = Duration::from_secs(5);
/// The number of events that may be sent at once.
const BURST: u32 = 10;
/// The time after which one more event may be sent.
const EVENT_INTERVAL: Duration = Duration::from_secs(60);
/// The maximum number of reasons that are logged.
const REASONS: usize = 10;

/// The last report that the store accepted.
struct SentReport {
    report: NodeReport,
    at: Instant,
}

/// Publishes the report soon after the loop notifies of a change, and next to each lease that was
/// acquired.
pub(super) async fn keep_report<S: Documents>(
    manager: Arc<S>,
    shared: Shared,
    (mut reported, mut own): (watch::Receiver<()>, watch::Receiver<OwnLease>),
) -> Result<()> {
    let started = whole_seconds(shared.now());
    let (mut published, mut held_back): (Option<SentReport>, Option<Instant>) = (None, None);
    // Whether the store may no longer have the published report.
    let mut is_lost = false;
    let mut retries = Retries::default();
    let (mut again, mut measured) = (every(REPUBLISH), every(MEASURED));
    let mut refresh = next_refresh(None);
    loop {
        tokio::select! {
            biased;
            // First: a refused report is always marked as changed, and the refresh also renews the lease
            // in etcd.
            () = sleep_until(refresh) => {
                let known = published.as_ref();
                refresh = next_refresh(known);
                let Some(SentReport { report, .. }) = known else { continue };
                match manager.refresh_report(report).await {
                    Ok(()) => continue,
                    Err(reason) => tracing::debug!(%reason, "the node's report is not refreshed"),
                }
                is_lost = true;
            }
            changed = reported.changed() => changed.context("the loop has ended")?,
            // The report is removed with the previous lease.
            held = own.changed() => {
                held.context("the task that keeps the lease has ended")?;
                is_lost = true;
            }
            _ = again.tick() => is_lost = true,
            // Results of probes and pods change without an event.
            _ = measured.tick() => {}
            Some(()) = OptionFuture::from(held_back.map(sleep_until)) => {}
        }
        sleep(settling(published.as_ref())).await;
        reported.mark_unchanged();
        let Some(report) = read_report(&shared, started, published.as_ref()).await? else {
            continue;
        };
        held_back = None;
        if let Some(known) = published.as_ref().filter(|_| !is_lost) {
            if known.report == report {
                continue;
            }
            held_back = Some(due(known, &report)).filter(|due| *due > Instant::now());
            if held_back.is_some() {
                continue;
            }
        }
        match manager.publish_report(&report).await {
            Ok(()) => {
                retries = Retries::default();
                is_lost = false;
                published = Some(SentReport { report, at: Instant::now() });
            }
            Err(reason) => {
                tracing::debug!(%reason, "the node's report is not published");
                sleep(retries.pause(&reason, random())).await;
                reported.mark_changed();
            }
        }
    }
}

/// The pauses between attempts to publish the report.
struct Retries {
    failed: Backoff,
    refused: Backoff,
}

impl Default for Retries {
    fn default() -> Self {
        Self { failed: Backoff::default(), refused: Backoff::up_to(REFUSED) }
    }
}

impl Retries {
    /// The pause after an attempt; `random` is from 0 to 1.
    fn pause(&mut self, unpublished: &Unpublished, random: f64) -> Duration {
        match unpublished {
            Unpublished::Refused(_) => self.refused.delay(random),
            Unpublished::Failed(_) => self.failed.delay(random),
        }
    }
}

/// Adds the changes of this node to the events of the store, at a limited rate: a change that must
/// wait is reported together with later ones of its kind.
pub(super) async fn forward_events<S: Documents>(
    manager: Arc<S>,
    shared: Shared,
    mut noted: watch::Receiver<()>,
) -> Result<()> {
    let mut waiting: BTreeMap<EventKind, EventDigest> = BTreeMap::new();
    let (mut allowance, mut sequence) = (Allowance::full(), 0);
    // Why events were dropped, each logged once.
    let mut reasons = BTreeSet::new();
    loop {
        let next = (!waiting.is_empty()).then(|| sleep(allowance.wait()));
        tokio::select! {
            biased;
            changed = noted.changed() => changed.context("the loop has ended")?,
            Some(()) = OptionFuture::from(next) => {}
        }
        sleep(GATHER).await;
        noted.mark_unchanged();
        let page = shared.wait_for(|reply| Query::Events(sequence, reply)).await?;
        for event in page.events {
            sequence = event.sequence;
            gather(&mut waiting, &event);
        }
        while !waiting.is_empty() && allowance.take() {
            let Some((_, event)) = waiting.pop_first() else { break };
            if let Err(reason) = manager.publish_event(&event).await
                && reasons.len() < REASONS
                && reasons.insert(reason.clone())
            {
                tracing::warn!(%reason, "an event about this node is dropped");
            }
        }
    }
}

fn gather(waiting: &mut BTreeMap<EventKind, EventDigest>, event: &NodeEvent) {
    match waiting.get_mut(&event.change.kind) {
        Some(digest) => digest.add(event),
        None => waiting.extend(EventDigest::of(event).map(|digest| (digest.kind, digest))),
    }
}

/// A token bucket that holds [`BURST`] events, and gets one per [`EVENT_INTERVAL`].
struct Allowance {
    /// When the bucket is full.
    full: Instant,
}

impl Allowance {
    fn full() -> Self {
        Self { full: Instant::now() }
    }

    /// The time until an event may be sent.
    fn wait(&self) -> Duration {
        let used = self.full.saturating_duration_since(Instant::now());
        (used + EVENT_INTERVAL).saturating_sub(EVENT_INTERVAL * BURST)
    }

    /// Takes the right to send an event, if there is one.
    fn take(&mut self) -> bool {
        let is_allowed = self.wait().is_zero();
        if is_allowed {
            self.full = self.full.max(Instant::now()) + EVENT_INTERVAL;
        }
        is_allowed
    }
}

/// The earliest time to publish `report` after `known`.
fn due(known: &SentReport, report: &NodeReport) -> Instant {
    if report.concerns_migration(&known.report) { known.at } else { known.at + PAUSE }
}

/// An interval of about `period`, random so that nodes do not publish together.
fn every(period: Duration) -> Interval {
    let period = period.mul_f64(0.5 + random::<f64>());
    interval_at(Instant::now() + period, period)
}

/// Never later than the interval that the report names; random likewise.
fn next_refresh(published: Option<&SentReport>) -> Instant {
    let named = published.and_then(|known| known.report.refresh_seconds);
    let interval = named.map_or_else(|| refresh_interval(0), Duration::from_secs);
    Instant::now() + interval.mul_f64(0.8 + 0.2 * random::<f64>())
}

/// The loop's report, with what only the tasks around the loop know.
async fn read_report(
    shared: &Shared,
    started: Timestamp,
    published: Option<&SentReport>,
) -> Result<Option<NodeReport>> {
    let Some(mut report) = shared.wait_for(Query::Report).await? else { return Ok(None) };
    if let Some(mtu) = report.pod_mtu {
        report.other_mtu = other_mtu(shared.blocking, report.subnets.clone(), mtu).await?;
    }
    let readiness = shared.readiness();
    let reason = readiness.reasons.into_iter().next().filter(|_| !readiness.ready);
    report.daemon = Some(DaemonState { started, ready: readiness.ready, reason });
    Ok(Some(report.dated(published.map(|known| &known.report), shared.now())))
}

/// The pods whose MTU is not `mtu`, as far as this node knows.
async fn other_mtu(blocking: Blocking, subnets: Vec<Prefix>, mtu: u32) -> Result<OtherMtu> {
    if blocking == Blocking::Inline {
        // A simulated node has no pods, and the machine that simulates it may have some.
        return Ok(OtherMtu::default());
    }
    let gateways: Vec<IpAddr> = subnets.into_iter().map(Prefix::gateway).collect();
    let found = blocking.run(move || pods::of_other_mtu(&gateways, mtu, Path::new(pods::RESULTS)));
    let pods = found.await.context("reading the MTU of the pods")?.unwrap_or_else(|error| {
        tracing::debug!(%error, "the pods of this node cannot be read");
        Vec::new()
    });
    Ok(pods.into())
}

fn settling(published: Option<&SentReport>) -> Duration {
    let peers = published.map_or(0, |known| known.report.peers.total());
    let settle = SETTLE_PER_PEER.saturating_mul(peers.try_into().unwrap_or(u32::MAX)) + SETTLE;
    settle.mul_f64(0.5 + random::<f64>())
}

fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> NodeReport {
        let json = r#"{"version": "1", "lease": "n1", "subnets": [], "backend": "vxlan",
            "mixed": true,
            "node": {"interface": "eth0", "mtu": 1500, "layer2": true, "on_link": [],
                "uplinks": []}}"#;
        NodeReport::decode(json.as_bytes()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn only_changes_for_which_a_migration_waits_are_published_at_once() {
        let published = SentReport { report: report(), at: Instant::now() };
        let mut other = report();
        other.reachability.unreachable = 1;
        assert_eq!(due(&published, &other), published.at + PAUSE);
        other.pending = Some("staying on vxlan".to_owned());
        assert_eq!(due(&published, &other), published.at);
    }

    #[test]
    fn a_refused_report_is_published_again_less_often_than_one_without_an_answer() {
        let mut retries = Retries::default();
        let mut longest = |unpublished: Unpublished| {
            let pauses = (0..20).map(|_| retries.pause(&unpublished, 1.0));
            pauses.max().unwrap()
        };
        assert_eq!(longest(Unpublished::Failed(String::new())), Backoff::LONGEST);
        assert_eq!(longest(Unpublished::Refused(String::new())), REFUSED);
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_of_events_is_followed_by_one_event_per_minute() {
        let mut allowance = Allowance::full();
        let mut sent = |count: u32| (0..count).filter(|_| allowance.take()).count();
        assert_eq!(sent(20), 10);
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(sent(20), 0);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(sent(20), 1);
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(sent(20), 10);
        assert_eq!(allowance.wait(), EVENT_INTERVAL);
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_is_refreshed_within_the_interval_that_it_names() {
        for (refresh_seconds, longest) in [(None, 60), (Some(250), 250)] {
            let report = NodeReport { refresh_seconds, ..report() };
            let published = SentReport { report, at: Instant::now() };
            for _ in 0..100 {
                let pause = next_refresh(Some(&published)) - Instant::now();
                assert!(pause <= Duration::from_secs(longest), "{pause:?}");
                assert!(pause >= Duration::from_secs(longest) / 2, "{pause:?}");
            }
        }
    }
}
