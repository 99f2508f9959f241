//! The data of a network in etcd apart from its leases: config, node reports, probe secret.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, Error, PutOptions, Txn, TxnOp, TxnOpResponse, WatchOptions};
use futures::stream::{self, BoxStream};
use tokio::sync::watch as channel;
use tokio::time::{sleep, timeout};
use tweed_client::backoff::Backoff;
use tweed_client::failover::{Failure, retry};
use tweed_client::watch::distinct;

use super::EtcdSubnetManager;
use super::client::{Connection, revision};
use super::connect::unless_denied;
use super::watch::Watch;
use crate::model::config::{ConfigUpdate, NetworkConfig, Unusable};
use crate::model::probe_secret::Secret;
use crate::model::report::NodeReport;
use crate::model::status::StoreState;
use crate::random::random;
use crate::store::{Documents, Report, Unpublished};

/// After about this time without an event, the key is read again.
const READ_AGAIN: Duration = Duration::from_secs(300);
/// After an outage, all nodes read the key within this time.
const SPREAD: Duration = Duration::from_secs(1);

impl Documents for EtcdSubnetManager {
    fn watch_config(self: &Arc<Self>) -> BoxStream<'static, ConfigUpdate> {
        let manager = Arc::clone(self);
        let start = ConfigFollower { manager, known: None, backoff: Backoff::default() };
        distinct(stream::unfold(start, |mut follower| async {
            let update = follower.step().await;
            Some((update, follower))
        }))
    }

    async fn publish_report(&self, report: &NodeReport) -> Result<(), Unpublished> {
        let store = &self.store;
        let key = store.layout.report_key(&report.lease);
        let value = report.encode().into_bytes();
        let grant = self.grant().await.id;
        let own = self.ours.borrow().own.clone();
        // With a reservation, no other code renews the etcd lease.
        if own.is_some_and(|own| own.grant.is_none()) && self.keep_alive(grant).await.is_err() {
            self.forget_grant().await;
            return Err(gone());
        }
        // Nothing is written if the store has the same value already, for example after a restart.
        let is_there = [
            Compare::value(key.as_str(), CompareOp::Equal, value.clone()),
            Compare::lease(key.as_str(), CompareOp::Equal, grant),
        ];
        let put = PutOptions::new().with_lease(grant);
        let put = TxnOp::put(key.as_str(), value, Some(put));
        let transaction = Txn::new().when(is_there).or_else([put]);
        let write = |connection: Connection| async move { connection.kv().txn(transaction).await };
        store.client.report.published(store.client.once(write).await).map(drop)
    }

    /// Renews the etcd lease of the report: its remaining time shows when that was. Unlike a write,
    /// this creates no revision, and etcd stores nothing.
    async fn refresh_report(&self, _: &NodeReport) -> Result<(), Unpublished> {
        let grant = self.grant().await.id;
        self.keep_alive(grant).await.map_err(|_| gone())
    }

    async fn probe_secret(&self) -> Result<Secret, String> {
        let store = &self.store;
        let key = store.layout.probe_secret.as_str();
        retry(Backoff::LONGEST, || async {
            let candidate = Secret::text(&random());
            let ask = |connection| find_or_create(connection, key, candidate.clone());
            let found = store.client.request(ask).await.ok()?;
            Some(found.ok_or_else(|| denied(key)).and_then(|text| {
                Secret::parse(&text).map_err(|error| format!("key {key}: {error}"))
            }))
        })
        .await
    }

    fn report(&self) -> &Report {
        &self.store.client.report
    }
}

struct ConfigFollower {
    manager: Arc<EtcdSubnetManager>,
    /// The store's revision at the last read.
    known: Option<i64>,
    backoff: Backoff,
}

impl ConfigFollower {
    /// Reads the key again at each change, so that an interrupted watch misses nothing.
    async fn step(&mut self) -> ConfigUpdate {
        if let Some(known) = self.known.take() {
            self.wait(known + 1).await;
        }
        loop {
            match self.read().await {
                Ok((update, revision)) => {
                    self.manager.report().withholds_config(None);
                    self.known = Some(revision);
                    return update;
                }
                Err(Failure::Refused(refusal)) => {
                    let report = self.manager.report();
                    let reason = format!("the network config cannot be read from etcd: {refusal}");
                    report.withholds_config(Some(&reason));
                }
                Err(Failure::Unreachable) => {}
            }
            self.pause().await;
        }
    }

    /// Waits after a failed attempt: when another request is answered after an outage, only for a moment
    /// more. Nodes that read an edit at very different times send by different paths.
    async fn pause(&mut self) {
        let mut state = self.manager.report().state();
        let longest = self.backoff.delay(random());
        let is_away = |state: &StoreState| matches!(state, StoreState::Unreachable(_));
        let answers_again = async {
            state.wait_for(is_away).await.map(drop)?;
            state.wait_for(|state| !is_away(state)).await.map(drop)?;
            sleep(SPREAD.mul_f64(random())).await;
            Ok::<_, channel::error::RecvError>(())
        };
        // The end of this time is an end of the wait, too.
        let _ = timeout(longest, answers_again).await;
    }

    /// Returns once the key may have been written at `revision` or later.
    async fn wait(&mut self, revision: i64) {
        let longest = READ_AGAIN.mul_f64(0.5 + random::<f64>());
        match timeout(longest, Box::pin(self.change(revision))).await {
            Ok(Err(_)) => self.pause().await,
            Ok(Ok(())) | Err(_) => self.backoff.reset(),
        }
    }

    async fn change(&self, revision: i64) -> Result<(), Failure> {
        let key = self.manager.store.layout.config.as_str();
        let options = WatchOptions::new();
        let client = &self.manager.store.client;
        let name = "watch of the network config";
        let mut watch = client.once(|it| Watch::open(name, it, (key, revision), options)).await?;
        loop {
            let message = watch.next(client).await?;
            // If the history was compacted, the key must be read.
            if !message.events().is_empty() || message.compact_revision() != 0 {
                return Ok(());
            }
            if message.canceled() {
                return Err(watch.end(client, "ended").await);
            }
        }
    }

    /// The value of the key, and the store's revision.
    async fn read(&self) -> Result<(ConfigUpdate, i64), Failure> {
        let store = &self.manager.store;
        let key = store.layout.config.as_str();
        let read = |connection: Connection| async move { connection.kv().get(key, None).await };
        let answer = store.client.once(read).await?;
        let kv = answer.kvs().first();
        let config = match kv {
            Some(kv) => {
                NetworkConfig::parse(kv.value()).map_err(|error| format!("key {key}: {error}"))
            }
            None => Err(format!("key {key} is missing: write the network config there")),
        };
        let written = kv.map_or(0, |kv| kv.mod_revision().unsigned_abs());
        let update = ConfigUpdate { config: config.map_err(Unusable), revision: written };
        Ok((update, revision(answer.header())))
    }
}

fn gone() -> Unpublished {
    Unpublished::Failed("the etcd lease of this node is gone".to_owned())
}

fn denied(key: &str) -> String {
    format!("permission denied for key {key}: grant it to this etcd user")
}

/// The value of `key`, which is created as `candidate` if it is missing. None if this etcd user may
/// not read or write the key.
async fn find_or_create(
    connection: Connection,
    key: &str,
    candidate: String,
) -> Result<Option<Vec<u8>>, Error> {
    // Nodes read it often, and a transaction that may write costs etcd as much as a write.
    let Some(answer) = unless_denied(connection.kv().get(key, None).await)? else {
        return Ok(None);
    };
    if let Some(kv) = answer.kvs().first() {
        return Ok(Some(kv.value().to_vec()));
    }
    let transaction = Txn::new()
        .when([Compare::version(key, CompareOp::Equal, 0)])
        .and_then([TxnOp::put(key, candidate.clone(), None)])
        .or_else([TxnOp::get(key, None)]);
    let answer = unless_denied(connection.kv().txn(transaction).await)?;
    Ok(answer.map(|answer| {
        let found = answer.op_responses().into_iter().find_map(|response| match response {
            TxnOpResponse::Get(answer) => answer.kvs().first().map(|kv| kv.value().to_vec()),
            _ => None,
        });
        found.unwrap_or_else(|| candidate.into_bytes())
    }))
}
