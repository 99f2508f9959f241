//! The task that probes paths, and its reports to the loop.

use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::Shared;
use crate::control::Event;
use crate::model::probe_secret::Secret;
use crate::model::status::Counts;
use crate::probe::{Exchange, Findings, Keyring, Local, Pause, ProbeChannels, ProbeEvent, Targets};
use crate::store::SubnetManager;

/// What did not work is tried again after so long.
const RETRY: Duration = Duration::from_secs(30);

/// Probes the paths to all peers whenever the loop wants it.
pub(super) async fn probe_paths<S: SubnetManager>(
    manager: Rc<S>,
    shared: Shared,
) -> anyhow::Result<()> {
    let (targets, mut wanted) = watch::channel(Targets::default());
    let epoch = Instant::now();
    let nothing = Findings { epoch, subjects: BTreeMap::new(), counts: Counts::default() };
    let (findings, read) = watch::channel(nothing);
    let channels = ProbeChannels { targets, findings: read };
    report(&shared, ProbeEvent::Channels(channels)).await?;
    loop {
        let wish = wanted.wait_for(|targets| targets.local.is_some()).await;
        let local = wish.context("the loop has ended")?.local.clone();
        let Some(local) = local else { continue };
        match open(&*manager, local.clone(), epoch).await {
            Ok(exchange) => {
                report(&shared, ProbeEvent::On).await?;
                probe(exchange, &*manager, (&mut wanted, &findings), &shared).await?;
            }
            Err(reason) => {
                tracing::warn!(%reason, "paths are not probed");
                report(&shared, ProbeEvent::Off(reason)).await?;
                // Somebody may free the port, or the config may name another.
                let changed = wanted.wait_for(|targets| targets.local.as_ref() != Some(&local));
                if let Ok(ended) = timeout(RETRY, changed).await {
                    ended.context("the loop has ended")?;
                }
            }
        }
    }
}

async fn open<S: SubnetManager>(
    manager: &S,
    local: Local,
    epoch: Instant,
) -> Result<Exchange, String> {
    let secret = manager.probe_secret().await?;
    Exchange::open(local, secret, epoch).map_err(|error| error.to_string())
}

/// Probes until this node's own part changes, and follows the secret of the store.
async fn probe<S: SubnetManager>(
    mut exchange: Exchange,
    manager: &S,
    (wanted, findings): (&mut watch::Receiver<Targets>, &watch::Sender<Findings>),
    shared: &Shared,
) -> anyhow::Result<()> {
    let mut secret = pin!(next_secret(manager));
    let mut told = None;
    loop {
        let pause = tokio::select! {
            pause = exchange.run(wanted, findings) => pause,
            read = &mut secret => {
                secret.set(next_secret(manager));
                let failed = read.map(|read| exchange.take_secret(read)).err();
                if let Some(reason) = failed.as_ref().filter(|_| failed != told) {
                    tracing::warn!(%reason, "the probe secret before stays valid");
                }
                told = failed;
                continue;
            }
        };
        match pause {
            Pause::Judged(judgements) => report(shared, ProbeEvent::Judged(judgements)).await?,
            Pause::Changed => return Ok(()),
            Pause::Closed => anyhow::bail!("the loop has ended"),
        }
    }
}

/// The secret of the store, some time later: not all nodes ask at once.
async fn next_secret<S: SubnetManager>(manager: &S) -> Result<Secret, String> {
    sleep(Keyring::READ.mul_f64(0.8 + 0.2 * rand::random::<f64>())).await;
    manager.probe_secret().await
}

async fn report(shared: &Shared, event: ProbeEvent) -> anyhow::Result<()> {
    shared.send(Event::Probe(event)).await
}
