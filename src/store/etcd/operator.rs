//! What operators read and write: the config, by compare-and-swap, and leases and reports of nodes.

use std::collections::BTreeMap;

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp};

use super::EtcdOptions;
use super::client::{Client, Connection, revision};
use super::key::Layout;
use super::store::{Extent, Page, Store, pages};
use crate::model::lease::LeaseId;
use crate::model::report::NodeReport;
use crate::store::ClusterStore;
use crate::store::operator::{StoreContents, Swap, Unavailable, Written};

/// A network in etcd, for its operator.
pub struct EtcdClusterStore {
    store: Store,
}

/// Records in one answer; reports are larger than leases.
const PAGE: i64 = 500;

impl EtcdClusterStore {
    /// Does not connect yet.
    pub fn new(options: EtcdOptions) -> Self {
        let layout = Layout::below(&options.prefix);
        Self { store: Store { client: Client::new(options, 0), layout } }
    }

    /// Deletes the report next to `lease`; it is no error if there is none.
    pub async fn forget_report(&self, lease: &LeaseId) -> Result<(), Unavailable> {
        let key = &self.store.layout.report_key(lease);
        let answer =
            self.ask(|connection| async move { connection.kv().delete(key.as_str(), None).await });
        answer.await.map(drop)
    }

    async fn config(&self) -> Result<Option<Written>, Unavailable> {
        let key = self.store.layout.config.as_str();
        let answer = self.ask(|connection| async move { connection.kv().get(key, None).await });
        let written = |kv: &KeyValue| Written {
            text: String::from_utf8_lossy(kv.value()).into_owned(),
            revision: kv.mod_revision(),
        };
        Ok(answer.await?.kvs().first().map(written))
    }

    async fn below<T>(
        &self,
        prefix: &str,
        read: impl Fn(&KeyValue, Extent) -> Option<T>,
    ) -> Result<Vec<T>, Unavailable> {
        let (client, options) = (&self.store.client, &GetOptions::new());
        let ask = |page: Page, _| async move {
            client.try_each_server(|| client.once(|connection| page.get(connection, options))).await
        };
        let read = pages(Page::below(prefix, PAGE), read, ask).await;
        read.map(|(all, _)| all).map_err(|failure| client.explained(failure))
    }

    async fn ask<T, F>(&self, ask: impl Fn(Connection) -> F) -> Result<T, Unavailable>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let client = &self.store.client;
        let answer = client.try_each_server(|| client.once(&ask)).await;
        answer.map_err(|failure| client.explained(failure))
    }
}

impl ClusterStore for EtcdClusterStore {
    fn config_name(&self) -> String {
        format!("key {}", self.store.layout.config)
    }

    fn hint(&self) -> &'static str {
        "name the servers with --etcd-endpoints"
    }

    async fn read(&self) -> Result<StoreContents, Unavailable> {
        let config = self.config().await?;
        let record =
            |kv: &KeyValue, extent| Some((self.store.stored_to(kv, extent)?.record, kv.lease()));
        let held = self.below(&self.store.layout.subnets, record).await?;
        let grants: BTreeMap<LeaseId, i64> =
            held.iter().map(|(record, grant)| (record.id.clone(), *grant)).collect();
        let report = |kv: &KeyValue, _| {
            let report = NodeReport::decode(kv.value())?;
            is_current(grants.get(&report.lease).copied(), kv.lease()).then_some(report)
        };
        let reports = self.below(&self.store.layout.reports, report).await?;
        let records = held.into_iter().map(|(record, _)| record).collect();
        Ok(StoreContents { config, records, reports })
    }

    async fn swap(&self, seen: i64, text: &str) -> Result<Swap, Unavailable> {
        let key = self.store.layout.config.as_str();
        let ask = |connection: Connection| async move {
            let unchanged = Compare::mod_revision(key, CompareOp::Equal, seen);
            let write = TxnOp::put(key, text, None);
            connection.kv().txn(Txn::new().when([unchanged]).and_then([write])).await
        };
        match self.store.client.once(ask).await {
            Ok(answer) if answer.succeeded() => Ok(Swap::Done(revision(answer.header()))),
            Ok(_) => Ok(Swap::Outdated),
            Err(failure) => {
                let failure = self.store.client.explained(failure);
                Swap::after(failure, self.config().await?, seen, text)
            }
        }
    }
}

/// Whether the daemon that wrote a report under the etcd lease `reported` still holds the subnet,
/// whose key has the etcd lease `held`. flanneld would use another one, and a reservation has none.
/// Without the key, the subnet was given up.
fn is_current(held: Option<i64>, reported: i64) -> bool {
    held.is_some_and(|held| held == 0 || held == reported)
}
