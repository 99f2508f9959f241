//! What operators read and write: the config by compare-and-swap, and everything that nodes say.

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp};

use super::EtcdOptions;
use super::answer::Failure;
use super::client::{Client, Connection, revision};
use super::key::Layout;
use super::store::Store;
use crate::lease::LeaseId;
use crate::report::NodeReport;
use crate::subnet::StoreState;
use crate::subnet::operator::{Away, Holdings, Swap, Written};

/// A network in etcd, as its operator sees it.
pub struct Operator {
    store: Store,
}

/// Records in one answer; reports are larger than leases.
const PAGE: i64 = 500;

impl Operator {
    /// Connects to nothing yet.
    pub fn new(options: EtcdOptions) -> Self {
        let layout = Layout::below(&options.prefix);
        Self { store: Store { client: Client::new(options, 0), layout } }
    }

    /// The key that operators write.
    pub fn config_key(&self) -> &str {
        &self.store.layout.config
    }

    pub async fn read(&self) -> Result<Holdings, Away> {
        let config = self.config().await?;
        let leases = self.below(&self.store.layout.subnets).await?;
        let reports = self.below(&self.store.layout.reports).await?;
        let record = |kv: &KeyValue| Some(self.store.stored(kv)?.record);
        Ok(Holdings {
            config,
            records: leases.iter().filter_map(record).collect(),
            reports: reports.iter().filter_map(|kv| NodeReport::decode(kv.value())).collect(),
        })
    }

    /// Makes `text` the config, unless it was written after `seen`.
    pub async fn swap(&self, seen: i64, text: &str) -> Result<Swap, Away> {
        let key = self.config_key();
        let ask = |connection: Connection| async move {
            let unchanged = Compare::mod_revision(key, CompareOp::Equal, seen);
            let write = TxnOp::put(key, text, None);
            connection.kv().txn(Txn::new().when([unchanged]).and_then([write])).await
        };
        match self.store.client.once(ask).await {
            Ok(answer) if answer.succeeded() => Ok(Swap::Done(revision(answer.header()))),
            Ok(_) => Ok(Swap::Outdated),
            Err(Failure::Refused(refusal)) => Err(Away(format!("etcd refuses: {refusal}"))),
            // It may have been written all the same: the config itself tells.
            Err(Failure::Away) => match self.config().await? {
                Some(written) if written.text == text => Ok(Swap::Done(written.revision)),
                Some(written) if written.revision == seen => Err(self.away()),
                Some(_) | None => Ok(Swap::Outdated),
            },
        }
    }

    /// Takes the report of the node that holds or held `lease` away; that it is gone is no error.
    pub async fn forget_report(&self, lease: &LeaseId) -> Result<(), Away> {
        let key = &self.store.layout.report_key(lease);
        let answer =
            self.ask(|connection| async move { connection.kv().delete(key.as_str(), None).await });
        answer.await.map(drop)
    }

    async fn config(&self) -> Result<Option<Written>, Away> {
        let key = self.config_key();
        let answer = self.ask(|connection| async move { connection.kv().get(key, None).await });
        let written = |kv: &KeyValue| Written {
            text: String::from_utf8_lossy(kv.value()).into_owned(),
            revision: kv.mod_revision(),
        };
        Ok(answer.await?.kvs().first().map(written))
    }

    async fn below(&self, prefix: &str) -> Result<Vec<KeyValue>, Away> {
        let end = super::store::prefix_end(prefix);
        let mut from = prefix.as_bytes().to_vec();
        let mut kvs = Vec::new();
        loop {
            let options = GetOptions::new().with_range(end.clone()).with_limit(PAGE);
            let page = self.ask(|connection| {
                let (from, options) = (from.clone(), options.clone());
                async move { connection.kv().get(from, Some(options)).await }
            });
            let mut page = page.await?;
            let more = page.more();
            kvs.append(&mut page.take_kvs());
            let Some(last) = kvs.last().filter(|_| more) else { return Ok(kvs) };
            from = [last.key(), b"\0"].concat();
        }
    }

    /// Asks each server before it gives up: a person waits for the answer.
    async fn ask<T, F>(&self, ask: impl Fn(Connection) -> F) -> Result<T, Away>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        loop {
            match self.store.client.once(&ask).await {
                Ok(answer) => return Ok(answer),
                Err(Failure::Refused(refusal)) => {
                    return Err(Away(format!("etcd refuses: {refusal}")));
                }
                Err(Failure::Away) => {
                    let state = self.store.client.report.state().borrow().clone();
                    if let StoreState::Waiting(why) = state {
                        return Err(Away(why));
                    }
                }
            }
        }
    }

    fn away(&self) -> Away {
        match &*self.store.client.report.state().borrow() {
            StoreState::Waiting(why) => Away(why.clone()),
            StoreState::Unknown | StoreState::Reachable | StoreState::Refuses(_) => {
                Away("etcd gave no answer".to_owned())
            }
        }
    }
}
