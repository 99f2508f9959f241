//! Publishes what this node tells the operator: beside the leases, where no peer watches.

use etcd_client::{Compare, CompareOp, Error, PutOptions, Txn, TxnOp};

use super::Shared;
use super::answer::{Failure, Refusal, is_denied};
use super::client::Connection;
use crate::model::report::NodeReport;
use crate::store::Unpublished;

/// What became of a report.
enum Outcome {
    Written,
    /// This etcd user may not write there.
    Denied,
}

impl Shared {
    pub(super) async fn publish_report(&self, report: &NodeReport) -> Result<(), Unpublished> {
        let key = self.store.layout.report_key(&report.lease);
        let value = report.encode().into_bytes();
        let grant = self.grant().await.id;
        self.keep_alive_for_report(grant).await?;
        let client = &self.store.client;
        let written = client.once(|connection| write(connection, &key, value, grant)).await;
        match &written {
            Ok(_) => client.report.accepts_report(),
            Err(Failure::Refused(Refusal::Invalid(reason))) => client.report.refuses_report(reason),
            Err(Failure::Refused(_) | Failure::Away) => {}
        }
        match written.map_err(unpublished)? {
            Outcome::Written => Ok(()),
            Outcome::Denied => Err(Unpublished(format!("key {key} may not be written"))),
        }
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
    key: &str,
    value: Vec<u8>,
    grant: i64,
) -> Result<Outcome, Error> {
    let is_there = [
        Compare::value(key, CompareOp::Equal, value.clone()),
        Compare::lease(key, CompareOp::Equal, grant),
    ];
    let put = TxnOp::put(key, value, Some(PutOptions::new().with_lease(grant)));
    match connection.kv().txn(Txn::new().when(is_there).or_else([put])).await {
        Err(error) if is_denied(&error) => Ok(Outcome::Denied),
        answer => answer.map(|_| Outcome::Written),
    }
}

fn unpublished(failure: Failure) -> Unpublished {
    Unpublished(match failure {
        Failure::Away => "etcd cannot be used".to_owned(),
        Failure::Refused(Refusal::NoGrant) => "the etcd lease of this node is gone".to_owned(),
        Failure::Refused(refusal) => format!("etcd refused: {refusal}"),
    })
}
