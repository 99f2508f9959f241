//! A warm connection to etcd, so that an event costs no process and no handshake.

use std::time::Instant;

use anyhow::{Context, Result};
use etcd_client::{Client, WatchOptions, WatchStream};
use tokio::runtime::{Builder, Runtime};
use tweed_lab::{Etcd, Namespace};

use super::peer::SUBNETS;

pub(super) struct Writer {
    runtime: Runtime,
    client: Client,
    watch: WatchStream,
}

/// When a write was on its way, and when somebody knew that it was done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    pub(super) sent: Instant,
    /// Whatever came first: the answer, or the news of it to a watch of ours.
    pub(super) committed: Instant,
}

impl Writer {
    /// From `namespace`, which reaches etcd.
    pub(super) fn connect(etcd: &Etcd, namespace: &Namespace) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let opened = namespace.within(|| runtime.block_on(open(etcd)))?;
        let (client, watch) = opened.context("connecting to etcd")?;
        Ok(Self { runtime, client, watch })
    }

    pub(super) fn put(&mut self, key: &str, value: &str) -> Result<Written> {
        let (client, watch) = (&mut self.client, &mut self.watch);
        let sent = Instant::now();
        let (answered, told) = self.runtime.block_on(async {
            let answer = async { client.put(key, value, None).await.map(|_| Instant::now()) };
            let news = hear_of(key, watch);
            tokio::join!(answer, news)
        });
        Ok(Written { sent, committed: answered?.min(told?) })
    }
}

/// Others write as well.
async fn hear_of(key: &str, watch: &mut WatchStream) -> Result<Instant, etcd_client::Error> {
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
    // The first message says that the watch stands.
    watch.message().await?;
    Ok((client, watch))
}
