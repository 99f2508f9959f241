//! The secret of path probes: made by whoever comes first, read by all others.

use etcd_client::{Compare, CompareOp, Error, Txn, TxnOp, TxnOpResponse};
use tokio::time::sleep;

use super::Shared;
use super::answer::is_denied;
use super::client::Connection;
use crate::model::probe_secret::Secret;
use crate::store::backoff::Backoff;

/// What the store says under the key.
enum Found {
    Value(Vec<u8>),
    /// We may not read or write there.
    Denied,
}

impl Shared {
    /// Waits for etcd.
    ///
    /// # Errors
    /// What keeps us from the secret, in a sentence that does not hold it.
    pub(super) async fn probe_secret(&self) -> Result<Secret, String> {
        let key = self.store.layout.probe_secret.as_str();
        let mut backoff = Backoff::default();
        loop {
            let candidate = Secret::text(&rand::random());
            let ask = |connection| find_or_create(connection, key, candidate.clone());
            match self.store.client.request(ask).await {
                Ok(Found::Value(text)) => {
                    return Secret::parse(&text).map_err(|error| format!("key {key}: {error}"));
                }
                Ok(Found::Denied) => {
                    return Err(format!("key {key} may not be used: grant it to this etcd user"));
                }
                Err(_) => sleep(backoff.delay(rand::random())).await,
            }
        }
    }
}

async fn find_or_create(
    connection: Connection,
    key: &str,
    candidate: String,
) -> Result<Found, Error> {
    // It is read again and again, and a transaction that may write costs etcd a write.
    match connection.kv().get(key, None).await {
        Err(error) if is_denied(&error) => return Ok(Found::Denied),
        answer => {
            if let Some(kv) = answer?.kvs().first() {
                return Ok(Found::Value(kv.value().to_vec()));
            }
        }
    }
    let absent = Compare::version(key, CompareOp::Equal, 0);
    let transaction = Txn::new()
        .when([absent])
        .and_then([TxnOp::put(key, candidate.clone(), None)])
        .or_else([TxnOp::get(key, None)]);
    let answer = match connection.kv().txn(transaction).await {
        Err(error) if is_denied(&error) => return Ok(Found::Denied),
        answer => answer?,
    };
    let read = answer.op_responses().into_iter().find_map(|response| match response {
        TxnOpResponse::Get(answer) => answer.kvs().first().map(|kv| kv.value().to_vec()),
        _ => None,
    });
    Ok(Found::Value(read.unwrap_or_else(|| candidate.into_bytes())))
}
