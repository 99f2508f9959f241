//! An open connection to etcd, so that an event costs no process and no handshake.

use std::time::Instant;

use anyhow::{Context, Result};
use etcd_client::{Client, WatchOptions, WatchStream};
use tokio::runtime::{Builder, Runtime};
use tweed_lab::{Etcd, Namespace};

use crate::instruments::peer::SUBNETS;

pub(crate) struct Writer {
    runtime: Runtime,
    client: Client,
    watch: WatchStream,
}

/// When a write was sent, and when its answer or its notification was received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) sent: Instant,
    /// The time of the answer, or of the notification by our own watch, if that came first.
    pub(crate) committed: Instant,
}

impl Writer {
    /// Connects from `namespace`, which reaches etcd.
    pub(crate) fn connect(etcd: &Etcd, namespace: &Namespace) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let opened = namespace.within(|| runtime.block_on(open(etcd)))?;
        let (client, watch) = opened.context("connecting to etcd")?;
        Ok(Self { runtime, client, watch })
    }

    pub(crate) fn put(&mut self, key: &str, value: &str) -> Result<Written> {
        let Self { runtime, client, watch } = self;
        runtime.block_on(timed(client.put(key, value, None), key, watch))
    }

    /// Deletes an existing key.
    pub(crate) fn delete(&mut self, key: &str) -> Result<Written> {
        let Self { runtime, client, watch } = self;
        runtime.block_on(timed(client.delete(key, None), key, watch))
    }
}

async fn timed<T>(
    request: impl Future<Output = Result<T, etcd_client::Error>>,
    key: &str,
    watch: &mut WatchStream,
) -> Result<Written> {
    let sent = Instant::now();
    let answer = async { request.await.map(|_| Instant::now()) };
    let (answered, notified) = tokio::join!(answer, wait_for_event(key, watch));
    Ok(Written { sent, committed: answered?.min(notified?) })
}

/// Skips events of other writers.
async fn wait_for_event(key: &str, watch: &mut WatchStream) -> Result<Instant, etcd_client::Error> {
    while let Some(news) = watch.message().await? {
        let mut keys = news.events().iter().filter_map(|event| event.kv());
        if keys.any(|kv| kv.key() == key.as_bytes()) {
            break;
        }
    }
    Ok(Instant::now())
}

async fn open(etcd: &Etcd) -> Result<(Client, WatchStream), etcd_client::Error> {
    let mut client = Client::connect(etcd.endpoints(), None).await?;
    let options = WatchOptions::new().with_prefix();
    let mut watch = client.watch(SUBNETS, Some(options)).await?;
    // The first message confirms the watch.
    watch.message().await?;
    Ok((client, watch))
}
