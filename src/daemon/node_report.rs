//! The task that publishes what this node reports to the operator. Nothing depends on it.

use std::net::IpAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, Interval, interval_at, sleep};
use tweed_cni::bridge::pods;

use super::Shared;
use crate::control::Question;
use crate::model::prefix::Prefix;
use crate::model::report::{NodeReport, OtherMtu};
use crate::store::Documents;
use crate::store::backoff::Backoff;

/// What changes within this time is told once.
const SETTLE: Duration = Duration::from_secs(1);
/// In a large cluster one change concerns everybody: all reports together are so many fewer.
const SETTLE_PER_PEER: Duration = Duration::from_millis(2);
/// Somebody may have deleted it.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);
/// What probes find, and which pods run, is told so often, if it has changed.
const MEASURED: Duration = Duration::from_secs(15);

/// Publishes the report soon after the loop says that it may have changed, and beside each lease
/// that was acquired.
pub(super) async fn keep_report<S: Documents>(
    manager: Rc<S>,
    shared: Shared,
    (mut reported, mut acquired): (watch::Receiver<()>, watch::Receiver<bool>),
) -> anyhow::Result<()> {
    let mut published = None;
    let mut backoff = Backoff::default();
    let (mut again, mut measured) = (every(LOOK_AGAIN), every(MEASURED));
    loop {
        tokio::select! {
            changed = reported.changed() => changed.context("the loop has ended")?,
            // With the lease before, its report may have vanished.
            held = acquired.changed() => {
                held.context("the lease is not kept any more")?;
                published = None;
            }
            _ = again.tick() => published = None,
            // How well packets travel changes without an event, and so do pods.
            _ = measured.tick() => {}
        }
        sleep(pause(published.as_ref())).await;
        reported.mark_unchanged();
        let Some(report) = read(&shared).await? else { continue };
        if published.as_ref() == Some(&report) {
            continue;
        }
        match manager.publish_report(&report).await {
            Ok(()) => {
                backoff.reset();
                published = Some(report);
            }
            Err(reason) => {
                tracing::debug!(%reason, "the node's report is not published");
                sleep(backoff.delay(rand::random())).await;
                reported.mark_changed();
            }
        }
    }
}

/// From now on, roughly.
fn every(period: Duration) -> Interval {
    let period = period.mul_f64(0.5 + rand::random::<f64>());
    interval_at(Instant::now() + period, period)
}

/// The loop's report, with the MTU of the pods.
async fn read(shared: &Shared) -> anyhow::Result<Option<NodeReport>> {
    let Some(mut report) = shared.wait_for(Question::Report).await? else { return Ok(None) };
    if let Some(mtu) = report.pod_mtu {
        report.other_mtu = other_mtu(report.subnets.clone(), mtu).await?;
    }
    Ok(Some(report))
}

/// The pods whose MTU is not `mtu`, as far as this node tells.
async fn other_mtu(subnets: Vec<Prefix>, mtu: u32) -> anyhow::Result<OtherMtu> {
    let gateways: Vec<IpAddr> = subnets.into_iter().map(Prefix::gateway).collect();
    let found =
        spawn_blocking(move || pods::of_other_mtu(&gateways, mtu, Path::new(pods::RESULTS)));
    let pods = found.await.context("looking at the pods")?.unwrap_or_else(|error| {
        tracing::debug!(%error, "the pods of this node cannot be looked at");
        Vec::new()
    });
    Ok(pods.into())
}

fn pause(published: Option<&NodeReport>) -> Duration {
    let peers = published.map_or(0, |report| report.peers.total());
    let settle = SETTLE_PER_PEER.saturating_mul(peers.try_into().unwrap_or(u32::MAX)) + SETTLE;
    settle.mul_f64(0.5 + rand::random::<f64>())
}
