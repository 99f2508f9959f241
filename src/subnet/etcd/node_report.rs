//! Publishes what this node tells the operator: beside the leases, where no peer watches.

use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp};

use super::Shared;
use super::client::{Connection, Failure, Refusal};
use crate::report::NodeReport;
use crate::subnet::Unpublished;

impl Shared {
    pub(super) async fn publish_report(&self, report: &NodeReport) -> Result<(), Unpublished> {
        let key = self.store.layout.report_key(&report.lease);
        let value = serde_json::to_vec(report).map_err(|error| Unpublished(error.to_string()))?;
        let grant = self.grant().await.id;
        self.keep_alive_for_report(grant).await?;
        let written = self.store.client.once(|connection| write(connection, key, value, grant));
        written.await.map_err(unpublished)
    }

    /// Under a reservation nobody else renews the etcd lease.
    async fn keep_alive_for_report(&self, grant: i64) -> Result<(), Unpublished> {
        let is_reserved = self.ours.borrow().own.as_ref().is_some_and(|own| own.grant.is_none());
        if is_reserved && let Err(refusal) = self.keep_alive(grant).await {
            self.forget_grant().await;
            return Err(unpublished(Failure::Refused(refusal)));
        }
        Ok(())
    }
}

/// What is there already is not written again: neither in normal times nor at a restart.
async fn write(
    connection: Connection,
    key: String,
    value: Vec<u8>,
    grant: i64,
) -> Result<(), etcd_client::Error> {
    let is_there = [
        Compare::value(key.clone(), CompareOp::Equal, value.clone()),
        Compare::lease(key.clone(), CompareOp::Equal, grant),
    ];
    let put = TxnOp::put(key, value, Some(PutOptions::new().with_lease(grant)));
    connection.kv().txn(Txn::new().when(is_there).or_else([put])).await.map(drop)
}

fn unpublished(failure: Failure) -> Unpublished {
    Unpublished(match failure {
        Failure::Away => "etcd cannot be used".to_owned(),
        Failure::Refused(Refusal::NoGrant) => "the etcd lease of this node is gone".to_owned(),
        Failure::Refused(refusal) => format!("etcd refused: {refusal:?}"),
    })
}
