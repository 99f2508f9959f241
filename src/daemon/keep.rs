//! The tasks that talk to the store: the lease is kept, and what the store tells is passed on.

use std::collections::BTreeSet;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context;
use futures::StreamExt;
use tokio::sync::watch;
use tokio::time::timeout;

use super::Shared;
use crate::control::{Event, Progress};
use crate::model::config::NetworkConfig;
use crate::model::lease::{Lease, LeaseAttributes};
use crate::model::status::StoreState;
use crate::store::{Documents, Identity, Leases, Lost};

/// After so long without a word from the store, what was last known must do.
const PATIENCE: Duration = Duration::from_secs(3);

/// Longer than a rival waits before it takes our lease again.
const PEACE: Duration = Duration::from_secs(600);

/// Takes a lease and holds it for good; publishes in it whatever changes about this node.
///
/// # Errors
/// There is no lease to be had that waiting would bring.
pub(super) async fn keep_lease<S: Leases + Documents>(
    manager: Rc<S>,
    shared: Shared,
    acquired: watch::Sender<bool>,
) -> anyhow::Result<()> {
    let mut progress = shared.progress.clone();
    let mut identities = manager.watch_identity();
    let identity = identities.next().await.context("the store's word of this node ended")?;
    introduce(&shared, &mut progress, identity).await?;
    let (mut config, mut attributes) = next_attributes(&mut progress, None).await?;
    loop {
        manager.avoid(progress.borrow().occupied.clone());
        let lease = manager.acquire(&config, &attributes).await?;
        let subnets: BTreeSet<_> = lease.subnets().collect();
        tracing::info!(?subnets, "holding a lease");
        // The loop must know our lease from those of the others before it sees them all.
        shared.send(Event::Held(lease.clone())).await?;
        acquired.send_replace(true);
        tokio::select! {
            lost = hold(&*manager, &shared, &lease) => {
                let Lost { reason, rival } = lost?;
                tracing::warn!(%reason, "the lease was lost: claiming it again");
                if rival.is_some() {
                    shared.send(Event::Rival(rival)).await?;
                }
            }
            changed = next_attributes(&mut progress, Some(&attributes)) => (config, attributes) = changed?,
            identity = identities.next() => {
                let identity = identity.context("the store's word of this node ended")?;
                introduce(&shared, &mut progress, identity).await?;
                (config, attributes) = next_attributes(&mut progress, None).await?;
            }
        }
    }
}

/// Holds `lease` until it is lost. A lease that was held in peace for a while has no rival.
async fn hold<S: Leases>(manager: &S, shared: &Shared, lease: &Lease) -> anyhow::Result<Lost> {
    let mut held = pin!(manager.hold(lease));
    if let Ok(lost) = timeout(PEACE, &mut held).await {
        return Ok(lost);
    }
    shared.send(Event::Rival(None)).await?;
    Ok(held.await)
}

/// Passes on what the store says of the network config, now and whenever that changes.
pub(super) async fn forward_config<S: Documents>(
    manager: Rc<S>,
    shared: Shared,
) -> anyhow::Result<()> {
    let mut config = manager.watch_config();
    loop {
        let update = config.next().await.context("the watch on the network config ended")?;
        shared.send(Event::Config(update)).await?;
    }
}

/// Passes on every change to any lease; starts over with a snapshot when the loop asks for one.
pub(super) async fn forward_leases<S: Leases>(
    manager: Rc<S>,
    shared: Shared,
    mut acquired: watch::Receiver<bool>,
    mut read_again: watch::Receiver<u64>,
) -> anyhow::Result<()> {
    // The read that found our subnet is the first snapshot: whoever asks earlier reads twice.
    acquired.wait_for(|acquired| *acquired).await.context("the lease is not kept any more")?;
    loop {
        let mut leases = manager.watch();
        loop {
            tokio::select! {
                update = leases.next() => {
                    shared.send(Event::Lease(update.context("the watch on the leases ended")?)).await?;
                }
                asked = read_again.changed() => break asked.context("the loop has ended")?,
            }
        }
    }
}

/// Passes on whether the store can be used.
pub(super) async fn forward_state<S: Documents>(
    manager: Rc<S>,
    shared: Shared,
) -> anyhow::Result<()> {
    let mut state = manager.state();
    if timeout(PATIENCE, state.wait_for(|state| *state != StoreState::Unknown)).await.is_err() {
        let reason = format!("no answer within {} s", PATIENCE.as_secs());
        shared.send(Event::Store(StoreState::Waiting(reason))).await?;
    }
    loop {
        let now = state.borrow_and_update().clone();
        if now != StoreState::Unknown {
            shared.send(Event::Store(now)).await?;
        }
        state.changed().await.context("the store's state is not told any more")?;
    }
}

/// Tells the store that this node works once it does, with a subnet file that pods can be made by.
pub(super) async fn announce_when_ready<S: Documents>(
    manager: Rc<S>,
    shared: Shared,
) -> anyhow::Result<()> {
    let mut progress = shared.progress.clone();
    let mut subnet_file = shared.subnet_file.subscribe();
    drop(shared);
    progress.wait_for(|progress| progress.readiness.ready).await.context("the loop has ended")?;
    subnet_file.wait_for(Option::is_none).await.context("the subnet file is not kept")?;
    manager.announce().await;
    anyhow::bail!("the store is not told any more that this node works")
}

/// Returns once what is to be published accounts for `identity`.
async fn introduce(
    shared: &Shared,
    progress: &mut watch::Receiver<Progress>,
    identity: Identity,
) -> anyhow::Result<()> {
    shared.send(Event::Identity(identity.clone())).await?;
    let is_taken = |progress: &Progress| progress.identity == identity;
    progress.wait_for(is_taken).await.context("the loop has ended").map(drop)
}

/// What to publish, once it is known and other than `published`, and the config that it follows from.
async fn next_attributes(
    progress: &mut watch::Receiver<Progress>,
    published: Option<&LeaseAttributes>,
) -> anyhow::Result<(NetworkConfig, LeaseAttributes)> {
    let is_news = |progress: &Progress| {
        progress.attributes.is_some() && progress.attributes.as_ref() != published
    };
    let news = progress.wait_for(is_news).await.context("the loop has ended")?;
    let known = news.config.clone().zip(news.attributes.clone());
    known.context("nothing is known to publish")
}
