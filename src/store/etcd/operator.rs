//! What operators read and write: the config, by compare-and-swap, and leases and reports of nodes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp};
use futures::stream::{self, StreamExt, TryStreamExt};

use super::EtcdOptions;
use super::client::{Client, Connection, revision};
use super::key::Layout;
use super::store::{Page, PageContent, Store, Stored, pages, unchanged};
use crate::model::lease::LeaseId;
use crate::model::report::NodeReport;
use crate::store::ClusterStore;
use crate::store::operator::{
    LeaseChange, LeaseContents, StoreContents, StoredLease, StoredReport, Swap, Term, Unavailable,
    Written,
};

/// A network in etcd, for its operator.
pub struct EtcdClusterStore {
    store: Store,
}

/// Records in one answer; reports are larger than leases.
const PAGE: i64 = 250;

/// Requests for the remaining time of etcd leases that are sent at once.
const AT_ONCE: usize = 64;

impl EtcdClusterStore {
    /// Does not connect yet.
    pub fn new(options: EtcdOptions) -> Self {
        let layout = Layout::below(&options.prefix);
        Self { store: Store { client: Client::new(options, 0), layout } }
    }

    /// Deletes the report next to `lease`; whether there was one.
    pub async fn forget_report(&self, lease: &LeaseId) -> Result<bool, Unavailable> {
        let key = &self.store.layout.report_key(lease);
        let answer =
            self.ask(|connection| async move { connection.kv().delete(key.as_str(), None).await });
        answer.await.map(|deleted| deleted.deleted() > 0)
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

    /// All leases that hold a subnet, and the config.
    pub async fn read_leases(&self) -> Result<LeaseContents, Unavailable> {
        let config = self.config().await?;
        let (stored, revision) = self.leases().await?;
        let leases = stored.into_iter().filter_map(|stored| {
            let held = stored.holding()?;
            let is_vacant = stored.record.lease.is_ok_and(|lease| lease.is_vacant());
            Some(StoredLease {
                held,
                is_vacant,
                value: stored.value,
                revision: stored.mod_revision,
            })
        });
        Ok(LeaseContents { config, leases: leases.collect(), revision })
    }

    /// Makes one change, unless another client was faster.
    pub async fn change(&self, change: &LeaseChange) -> Result<Swap, Unavailable> {
        let layout = &self.store.layout;
        let put = |id, value: &[u8]| TxnOp::put(layout.lease_key(id), value, None);
        let (guard, write) = match change {
            LeaseChange::Create { id, value, seen } => (self.none_since(*seen), put(id, value)),
            LeaseChange::Keep { id, value, seen } => {
                (unchanged(layout.lease_key(id), *seen), put(id, value))
            }
            LeaseChange::Delete { id, seen } => {
                let key = layout.lease_key(id);
                (unchanged(key.clone(), *seen), TxnOp::delete(key, None))
            }
        };
        self.write(guard, write).await
    }

    /// Makes one change, unless `guard` forbids it.
    async fn write(&self, guard: Compare, write: TxnOp) -> Result<Swap, Unavailable> {
        let client = &self.store.client;
        let transaction = Txn::new().when([guard]).and_then([write]);
        let ask = |connection: Connection| async move { connection.kv().txn(transaction).await };
        let answer = client.once(ask).await.map_err(|failure| client.report.explained(failure))?;
        Ok(if answer.succeeded() { Swap::Done(revision(answer.header())) } else { Swap::Outdated })
    }

    /// No lease was written after revision `seen`, under any key: leases of several lengths and
    /// families have different keys, and may overlap.
    fn none_since(&self, seen: i64) -> Compare {
        let Page { from, end, .. } = Page::below(&self.store.layout.subnets, PAGE);
        Compare::mod_revision(from, CompareOp::Less, seen + 1).with_range(end)
    }

    /// The terms of these etcd leases; without those that have ended.
    pub async fn terms(&self, grants: BTreeSet<i64>) -> Result<BTreeMap<i64, Term>, Unavailable> {
        let term = |grant: i64| async move {
            let ask = |connection: Connection| async move {
                connection.leases().time_to_live(grant, None).await
            };
            let answer = self.ask(ask).await?;
            let duration = |seconds| u64::try_from(seconds).ok().map(Duration::from_secs);
            let term = duration(answer.granted_ttl()).zip(duration(answer.ttl()));
            Ok(term.map(|(whole, left)| (grant, Term { whole, left })))
        };
        let terms = stream::iter(grants).map(term).buffer_unordered(AT_ONCE);
        terms.try_filter_map(|term| async move { Ok(term) }).try_collect().await
    }

    async fn below<T>(
        &self,
        prefix: &str,
        read: impl Fn(&KeyValue, PageContent) -> Option<T>,
    ) -> Result<(Vec<T>, i64), Unavailable> {
        let (client, options) = (&self.store.client, &GetOptions::new());
        let ask = |page: Page, _| async move {
            client.try_each_server(|| client.once(|connection| page.get(connection, options))).await
        };
        let read = pages(Page::below(prefix, PAGE), read, ask).await;
        read.map_err(|failure| client.report.explained(failure))
    }

    async fn leases(&self) -> Result<(Vec<Stored>, i64), Unavailable> {
        let read = |kv: &KeyValue, content| self.store.stored_to(kv, content);
        self.below(&self.store.layout.subnets, read).await
    }

    /// The reports of the daemons that still hold their leases `held`.
    async fn reports(&self, held: &[Stored]) -> Result<Vec<StoredReport>, Unavailable> {
        let grant = |held: &Stored| held.origin.grant.unwrap_or(0);
        let grants: HashMap<&LeaseId, i64> =
            held.iter().map(|held| (&held.record.id, grant(held))).collect();
        let known = |lease: &LeaseId| grants.get_key_value(lease).map(|(known, _)| *known);
        let report = |kv: &KeyValue, _| {
            let report = NodeReport::decode(kv.value())?.sharing(known);
            let held = grants.get(&report.lease).copied();
            is_current(held, kv.lease()).then_some((report, kv.lease()))
        };
        let (reports, _) = self.below(&self.store.layout.reports, report).await?;
        // A node refreshes its report by the keep-alive of its etcd lease.
        let terms = self.terms(reports.iter().map(|(_, grant)| *grant).collect()).await?;
        let age = |grant| terms.get(&grant).map(|Term { whole, left }| whole.saturating_sub(*left));
        let stored = |(report, grant)| StoredReport { report, age: age(grant) };
        Ok(reports.into_iter().map(stored).collect())
    }

    async fn ask<T, F>(&self, ask: impl Fn(Connection) -> F) -> Result<T, Unavailable>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let client = &self.store.client;
        let answer = client.try_each_server(|| client.once(&ask)).await;
        answer.map_err(|failure| client.report.explained(failure))
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
        let (held, _) = self.leases().await?;
        let reports = self.reports(&held).await?;
        let records = held.into_iter().map(|held| held.record).collect();
        Ok(StoreContents { config, records, reports })
    }

    async fn swap(&self, seen: i64, text: &str) -> Result<Swap, Unavailable> {
        let key = self.store.layout.config.as_str();
        match self.write(unchanged(key.to_owned(), seen), TxnOp::put(key, text, None)).await {
            Err(failure) => Swap::after(failure, self.config().await?, seen, text),
            written => written,
        }
    }
}

/// Whether the daemon that wrote a report under the etcd lease `reported` still holds the subnet,
/// whose key has the etcd lease `held`. flanneld would use another one, and a reservation has none.
/// Without the key, the subnet was given up.
fn is_current(held: Option<i64>, reported: i64) -> bool {
    held.is_some_and(|held| held == 0 || held == reported)
}
