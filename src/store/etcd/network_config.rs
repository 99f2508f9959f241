//! Follows the key of the network config.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{GetResponse, WatchOptions};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::time::{sleep, timeout};

use super::Shared;
use super::answer::Failure;
use super::client::{Connection, revision};
use super::watch::message;
use crate::model::config::{ConfigUpdate, NetworkConfig, Unusable};
use crate::store::backoff::Backoff;

/// A watch that says nothing for so long is looked after, and not by all nodes at once.
const LOOK_AGAIN: Duration = Duration::from_secs(300);

/// What the key holds, and whatever it holds from then on. Never ends.
pub(super) fn updates(shared: Arc<Shared>) -> BoxStream<'static, ConfigUpdate> {
    let start = Follower { shared, read: None, told: None, backoff: Backoff::default() };
    let steps = stream::unfold(start, |mut follower| async {
        let update = follower.step().await;
        Some((update, follower))
    });
    steps.boxed()
}

struct Follower {
    shared: Arc<Shared>,
    /// The store's revision at the last reading.
    read: Option<i64>,
    told: Option<ConfigUpdate>,
    backoff: Backoff,
}

impl Follower {
    /// Each change is read anew: whatever interrupts the watch, the next reading has what it missed.
    async fn step(&mut self) -> ConfigUpdate {
        loop {
            if let Some(known) = self.read.take() {
                self.wait(known + 1).await;
            }
            let (update, revision) = match self.look().await {
                Ok(read) => read,
                Err(failure) => {
                    if let Failure::Refused(refusal) = failure {
                        let report = &self.shared.store.client.report;
                        report.away(&format!("etcd does not show the network config: {refusal}"));
                    }
                    sleep(self.backoff.delay(rand::random())).await;
                    continue;
                }
            };
            self.read = Some(revision);
            if self.told.as_ref() != Some(&update) {
                self.told = Some(update.clone());
                return update;
            }
        }
    }

    /// Returns once the key may have been written at `revision` or later.
    async fn wait(&mut self, revision: i64) {
        let patience = LOOK_AGAIN.mul_f64(0.5 + rand::random::<f64>());
        match timeout(patience, Box::pin(self.change(revision))).await {
            Ok(Err(_)) => sleep(self.backoff.delay(rand::random())).await,
            Ok(Ok(())) | Err(_) => self.backoff.reset(),
        }
    }

    async fn change(&self, revision: i64) -> Result<(), Failure> {
        let key = self.shared.store.layout.config.as_str();
        let options = WatchOptions::new().with_start_revision(revision);
        let client = &self.shared.store.client;
        let opened = client.once(|connection| async move {
            let stream = connection.watches().watch(key, Some(options)).await?;
            Ok((connection, stream))
        });
        let (connection, mut stream) = opened.await?;
        loop {
            let ended = match message(&mut stream).await {
                Some(Ok(Some(message))) if !message.events().is_empty() => return Ok(()),
                // The history was forgotten: what it said is read.
                Some(Ok(Some(message))) if message.compact_revision() != 0 => return Ok(()),
                Some(Ok(Some(message))) if !message.canceled() => continue,
                Some(Ok(_)) => "watch of the network config ended",
                None => "watch of the network config is silent",
                Some(Err(error)) => return Err(client.failed(&connection, &error).await),
            };
            client.drop_connection(&connection, ended).await;
            return Err(Failure::Away);
        }
    }

    /// What the key holds, and the store's revision.
    async fn look(&self) -> Result<(ConfigUpdate, i64), Failure> {
        let store = &self.shared.store;
        let key = store.layout.config.as_str();
        let read = |connection: Connection| async move { connection.kv().get(key, None).await };
        let answer = store.client.once(read).await?;
        Ok((update(key, &answer), revision(answer.header())))
    }
}

fn update(key: &str, answer: &GetResponse) -> ConfigUpdate {
    let Some(kv) = answer.kvs().first() else {
        let missing = format!("key {key} is missing: write the network config there");
        return ConfigUpdate { config: Err(Unusable(missing)), revision: 0 };
    };
    let config = NetworkConfig::parse(kv.value());
    let config = config.map_err(|error| Unusable(format!("key {key}: {error}")));
    ConfigUpdate { config, revision: kv.mod_revision().unsigned_abs() }
}
