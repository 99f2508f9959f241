//! The minimum requests of a registration in etcd, to compare the real ones with.

use std::time::Duration;

use anyhow::Result;
use etcd_client::{Client, Compare, CompareOp, Error, PutOptions, Txn, TxnOp};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tweed::model::config::BackendType;
use tweed::store::etcd::value;

use super::Settings;
use super::crowd::share;
use super::node::attributes;
use super::scene::{PREFIX, Scene};

/// The TTL of flannel's leases.
pub(super) const TTL: Duration = Duration::from_secs(86_400);

const PAUSE: Duration = Duration::from_secs(1);

/// Stay open until all clients are done, as those of daemons do.
pub(super) struct Connections {
    _open: Vec<Client>,
}

/// Each client opens a connection, reads the config, and writes a new key under an etcd lease;
/// none observes the others. Returns once the last client has its responses.
pub(super) fn register(scene: &Scene, settings: &Settings) -> Result<Connections> {
    let mut clients = JoinSet::new();
    for number in 0..settings.nodes {
        let delay = share(settings.spread, number, settings.nodes);
        let endpoints = scene.etcd.endpoints();
        let client = async move {
            sleep(delay).await;
            one(endpoints, number).await
        };
        clients.spawn_on(client, scene.runtime.handle());
    }
    let open = scene.runtime.block_on(clients.join_all());
    Ok(Connections { _open: open.into_iter().collect::<Result<_, _>>()? })
}

async fn one(endpoints: Vec<String>, number: usize) -> Result<Client, Error> {
    let client = Client::connect(endpoints, None).await?;
    let term = TTL.as_secs().cast_signed();
    answer(|| {
        let mut kv = client.kv_client();
        async move { kv.get(format!("{PREFIX}/config"), None).await }
    })
    .await;
    let granted = answer(|| {
        let mut leases = client.lease_client();
        async move { leases.grant(term, None).await }
    });
    let write = write(number, granted.await.id());
    answer(|| {
        let (mut kv, write) = (client.kv_client(), write.clone());
        async move { kv.txn(write).await }
    })
    .await;
    Ok(client)
}

fn write(number: usize, grant: i64) -> Txn {
    let key = format!("{PREFIX}/subnets/10.{}.{}.0-24", number / 256, number % 256);
    let absent = Compare::version(key.as_str(), CompareOp::Equal, 0);
    let value = value::encode(&attributes(number, BackendType::Vxlan));
    let put = TxnOp::put(key.as_str(), value, Some(PutOptions::new().with_lease(grant)));
    Txn::new().when([absent]).and_then([put]).or_else([TxnOp::get(key, None)])
}

/// Repeats a request until it succeeds: an overloaded etcd cancels some requests.
async fn answer<T, F>(ask: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, Error>>,
{
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(_) => sleep(PAUSE).await,
        }
    }
}
