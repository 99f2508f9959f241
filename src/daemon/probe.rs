//! The task that probes paths, and the loop's ear for it.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::Shared;
use crate::probe::{Counts, Desk, Exchange, Findings, Local, News, Pause, Targets};
use crate::reconciler::Event;
use crate::subnet::SubnetManager;

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
    tell(&shared, News::Desk(Desk { targets, findings: read })).await?;
    loop {
        let wish = wanted.wait_for(|targets| targets.local.is_some()).await;
        let local = wish.context("the loop has ended")?.local.clone();
        let Some(local) = local else { continue };
        match open(&*manager, local.clone(), epoch).await {
            Ok(exchange) => {
                tell(&shared, News::On).await?;
                probe(exchange, &mut wanted, &findings, &shared).await?;
            }
            Err(reason) => {
                tracing::warn!(%reason, "paths are not probed");
                tell(&shared, News::Off(reason)).await?;
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

/// Probes until this node's own part changes.
async fn probe(
    mut exchange: Exchange,
    wanted: &mut watch::Receiver<Targets>,
    findings: &watch::Sender<Findings>,
    shared: &Shared,
) -> anyhow::Result<()> {
    loop {
        match exchange.run(wanted, findings).await {
            Pause::Judged(judgements) => tell(shared, News::Judged(judgements)).await?,
            Pause::Changed => return Ok(()),
            Pause::Closed => anyhow::bail!("the loop has ended"),
        }
    }
}

async fn tell(shared: &Shared, news: News) -> anyhow::Result<()> {
    shared.send(Event::Probe(news)).await
}
