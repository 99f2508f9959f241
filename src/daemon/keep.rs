//! The tasks that hold the lease, and forward the store's updates to the loop.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::{FutureExt, StreamExt};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::{Shared, files};
use crate::control::{Event, Progress};
use crate::model::config::NetworkConfig;
use crate::model::lease::{Lease, LeaseAttributes, LeaseId};
use crate::model::status::StoreState;
use crate::store::{Documents, Identity, Leases, Lost};

/// After this time without an answer of the store, the checkpoint is used.
const FIRST_ANSWER: Duration = Duration::from_secs(3);
/// The store has this long to grant the lease and to list all. A distant one needs some seconds.
const CONFIRMATION: Duration = Duration::from_secs(10);
/// Longer than a rival waits before it acquires our lease again.
const UNDISPUTED: Duration = Duration::from_secs(600);

/// What is known of the lease of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum OwnLease {
    Unknown,
    /// The loop can distinguish it from those of peers.
    Recognized,
    Acquired,
}

/// Acquires and holds a lease, again after each loss, and publishes this node's changes in it.
/// `remembered` is the lease in the checkpoint.
///
/// # Errors
/// A lease cannot be acquired, and waiting would not change that.
pub(super) async fn keep_lease<S: Leases + Documents>(
    manager: Arc<S>,
    shared: Shared,
    remembered: Option<LeaseId>,
    own: watch::Sender<OwnLease>,
) -> Result<()> {
    let mut progress = shared.progress.clone();
    let mut identities = manager.watch_identity();
    let identity = identities.next().await;
    let name = identity.as_ref().and_then(|identity| identity.name.clone());
    let (mut config, mut attributes) = identify(identity, &shared, &mut progress).await?;
    // If the store names nodes, each lease ID is the name of its node.
    let is_recognized =
        name.is_some() && name.as_deref() == remembered.as_ref().map(LeaseId::as_str);
    if is_recognized && manager.prepare_watch(&config) {
        own.send_replace(OwnLease::Recognized);
    }
    loop {
        manager.avoid(progress.borrow().occupied.clone());
        let lease = match manager.acquire(&config, &attributes).await {
            Ok(lease) => lease,
            Err(error) => {
                // The subnet file is removed only if the checkpoint has its subnet.
                files::save_at_stop(&shared).await;
                return Err(error.into());
            }
        };
        let subnets: BTreeSet<_> = lease.subnets().collect();
        tracing::info!(?subnets, "holding a lease");
        // The loop must be able to distinguish our lease from others before it sees all leases.
        shared.send(Event::LeaseAcquired(lease.clone())).await?;
        own.send_replace(OwnLease::Acquired);
        tokio::select! {
            biased;
            lost = hold(&*manager, &shared, &lease) => {
                let Lost { reason, rival } = lost?;
                tracing::warn!(%reason, "the lease was lost: claiming it again");
                if rival.is_some() {
                    shared.send(Event::Rival(rival)).await?;
                }
            }
            changed = next_attributes(&mut progress, Some(&attributes)) => (config, attributes) = changed?,
            identity = identities.next() => {
                (config, attributes) = identify(identity, &shared, &mut progress).await?;
            }
        }
    }
}

/// Holds `lease` until it is lost. After [`UNDISPUTED`], the lease has no rival.
async fn hold<S: Leases>(manager: &S, shared: &Shared, lease: &Lease) -> Result<Lost> {
    let mut held = pin!(manager.hold(lease));
    if let Ok(lost) = timeout(UNDISPUTED, &mut held).await {
        return Ok(lost);
    }
    shared.send(Event::Rival(None)).await?;
    Ok(held.await)
}

pub(super) async fn forward_config<S: Documents>(manager: Arc<S>, shared: Shared) -> Result<()> {
    let mut config = manager.watch_config();
    loop {
        let update = config.next().await.context("the watch on the network config ended")?;
        shared.send(Event::Config(update)).await?;
    }
}

/// Forwards each change to any lease, once ours is recognized; restarts with a snapshot when the loop
/// requests one.
pub(super) async fn forward_leases<S: Leases>(
    manager: Arc<S>,
    shared: Shared,
    mut own: watch::Receiver<OwnLease>,
    mut read_again: watch::Receiver<u64>,
) -> Result<()> {
    own.wait_for(|own| *own >= OwnLease::Recognized)
        .await
        .context("the task that keeps the lease has ended")?;
    loop {
        let mut leases = manager.watch();
        loop {
            tokio::select! {
                biased;
                asked = read_again.changed() => break asked.context("the loop has ended")?,
                update = leases.next() => {
                    shared.send(Event::Lease(update.context("the watch on the leases ended")?)).await?;
                }
            }
        }
    }
}

pub(super) async fn forward_state<S: Documents>(manager: Arc<S>, shared: Shared) -> Result<()> {
    let mut confirmation = pin!(sleep(CONFIRMATION).fuse());
    let mut state = manager.state();
    if timeout(FIRST_ANSWER, state.wait_for(|state| *state != StoreState::Unknown)).await.is_err() {
        let reason = format!("no answer within {} s", FIRST_ANSWER.as_secs());
        shared.send(Event::Store(StoreState::Unreachable(reason))).await?;
    }
    loop {
        let now = state.borrow_and_update().clone();
        if now != StoreState::Unknown {
            shared.send(Event::Store(now)).await?;
        }
        tokio::select! {
            biased;
            changed = state.changed() => {
                changed.context("the state of the store is no longer reported")?;
            }
            () = &mut confirmation => shared.send(Event::Overdue).await?,
        }
    }
}

/// Reports to the store that this node works, once it is ready and the subnet file is written.
pub(super) async fn announce_when_ready<S: Documents>(
    manager: Arc<S>,
    shared: Shared,
) -> Result<()> {
    let until_ready = async || {
        // Without the loop, this task ends with all others.
        if shared.until_ready().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    manager.announce(until_ready).await;
    anyhow::bail!("announcing this node to the store ended")
}

/// Sends `identity` to the loop, and returns the attributes that account for it.
async fn identify(
    identity: Option<Identity>,
    shared: &Shared,
    progress: &mut watch::Receiver<Progress>,
) -> Result<(NetworkConfig, LeaseAttributes)> {
    let identity = identity.context("the watch on the identity of this node ended")?;
    shared.send(Event::Identity(identity.clone())).await?;
    let is_applied = |progress: &Progress| progress.identity == identity;
    progress.wait_for(is_applied).await.context("the loop has ended")?;
    next_attributes(progress, None).await
}

/// The next attributes that differ from `published`, and the config from which they follow.
async fn next_attributes(
    progress: &mut watch::Receiver<Progress>,
    published: Option<&LeaseAttributes>,
) -> Result<(NetworkConfig, LeaseAttributes)> {
    let is_news = |progress: &Progress| {
        progress.attributes.is_some() && progress.attributes.as_ref() != published
    };
    let news = progress.wait_for(is_news).await.context("the loop has ended")?;
    let known = news.config.clone().zip(news.attributes.clone());
    known.context("nothing is known to publish")
}
