//! The task that probes paths and reports to the loop.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use super::Shared;
use crate::control::Event;
use crate::model::probe_secret::Secret;
use crate::plan::paths::{LocalProber, Targets};
use crate::probe::{self, Exchange, Keyring, Orders, Pause, ProbeEvent};
use crate::random::random;
use crate::store::Documents;

/// The pause before probing is started again after a failure.
const RETRY: Duration = Duration::from_secs(30);

/// Probes the paths to all peers while the loop requests it.
pub(super) async fn probe_paths<S: Documents>(manager: Arc<S>, shared: Shared) -> Result<()> {
    let (channels, mut orders) = probe::channels();
    report(&shared.events, ProbeEvent::Channels(channels)).await?;
    let read = async || manager.probe_secret().await;
    let mut known = None;
    loop {
        if orders.targets.borrow().local.is_none() {
            // It may be replaced before probing begins again.
            known = None;
        }
        let requested = orders.targets.wait_for(|targets| targets.local.is_some()).await;
        let local = requested.context("the loop has ended")?.local.clone();
        let Some(local) = local else { continue };
        match open(local.clone(), known.take(), &read).await {
            Ok((exchange, mut secret)) => {
                report(&shared.events, ProbeEvent::On).await?;
                run(exchange, &mut secret, &read, &mut orders, &shared.events).await?;
                known = Some(secret);
            }
            Err(reason) => {
                report(&shared.events, ProbeEvent::Off(reason)).await?;
                // The port may become free, or the config may name another.
                let is_other = |targets: &Targets| targets.local.as_ref() != Some(&local);
                if let Ok(ended) = timeout(RETRY, orders.targets.wait_for(is_other)).await {
                    ended.context("the loop has ended")?;
                }
            }
        }
    }
}

/// The secret of the store.
struct KnownSecret {
    secret: Secret,
    /// When it is read again.
    until: Instant,
}

/// After a random time, so that not all nodes read at once.
fn next_read() -> Instant {
    Instant::now() + Keyring::READ.mul_f64(0.8 + 0.2 * random::<f64>())
}

/// With the secret that was read last: when this node's settings change, the store may be unreachable.
async fn open(
    local: LocalProber,
    known: Option<KnownSecret>,
    read: &impl AsyncFn() -> Result<Secret, String>,
) -> Result<(Exchange, KnownSecret), String> {
    let known = match known {
        Some(known) => known,
        None => KnownSecret { secret: read().await?, until: next_read() },
    };
    let exchange = Exchange::open(local, known.secret.clone());
    Ok((exchange.map_err(|error| error.to_string())?, known))
}

/// Probes until this node's own settings change, and reads the secret of the store again.
async fn run(
    mut exchange: Exchange,
    known: &mut KnownSecret,
    read_secret: &impl AsyncFn() -> Result<Secret, String>,
    orders: &mut Orders,
    events: &mpsc::Sender<Event>,
) -> Result<()> {
    // The new exchange needs the deadline of the previous one, too.
    orders.due.mark_changed();
    let next_secret = async |at| {
        sleep_until(at).await;
        read_secret().await
    };
    let mut secret = pin!(next_secret(known.until));
    let mut reported = None;
    loop {
        let pause = tokio::select! {
            // Rare, and not delayed by a constant stream of probes.
            biased;
            read = &mut secret => {
                known.until = next_read();
                secret.set(next_secret(known.until));
                let failed = match read {
                    Ok(read) => {
                        exchange.take_secret(read.clone());
                        known.secret = read;
                        None
                    }
                    Err(reason) => Some(reason),
                };
                if let Some(reason) = failed.as_ref().filter(|_| failed != reported) {
                    tracing::warn!(%reason, "reading the probe secret failed: the previous one stays valid");
                }
                reported = failed;
                continue;
            }
            pause = exchange.run(orders) => pause,
        };
        match pause.context("the loop has ended")? {
            Pause::Reports(reports) => {
                for event in reports {
                    report(events, event).await?;
                }
            }
            Pause::Changed => return Ok(()),
        }
    }
}

async fn report(events: &mpsc::Sender<Event>, event: ProbeEvent) -> Result<()> {
    events.send(Event::Probe(event)).await.context("the loop has ended")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;
    use std::future::pending;

    use super::*;
    use crate::model::config::Probe;

    #[tokio::test(start_paused = true)]
    async fn the_secret_of_the_store_is_read_again_while_paths_are_probed() {
        let local =
            LocalProber { probe: Probe::default(), addresses: BTreeMap::new(), pod_mtu: 1450 };
        let secret = Secret::new(&[1; Secret::LENGTH]);
        let exchange = Exchange::open(local.clone(), secret.clone()).unwrap();
        let (channels, mut orders) = probe::channels();
        channels.targets.send_modify(|targets| targets.local = Some(local));
        let (events, _inbox) = mpsc::channel(1);
        let reads = Cell::new(0);
        let read = async || {
            reads.set(reads.get() + 1);
            Ok(Secret::new(&[2; Secret::LENGTH]))
        };
        let mut known = KnownSecret { secret, until: next_read() };
        let probing = run(exchange, &mut known, &read, &mut orders, &events);
        timeout(Keyring::READ * 3, probing).await.unwrap_err();
        assert_eq!(reads.get(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn other_settings_do_not_need_the_store() {
        let local =
            LocalProber { probe: Probe::default(), addresses: BTreeMap::new(), pod_mtu: 1450 };
        let secret = Secret::new(&[1; Secret::LENGTH]);
        let known = Some(KnownSecret { secret, until: next_read() });
        let unreachable = async || pending().await;
        let opened = timeout(RETRY, open(local, known, &unreachable)).await;
        assert!(opened.unwrap().is_ok());
    }
}
