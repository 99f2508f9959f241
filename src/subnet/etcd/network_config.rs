//! Waits for a network config that can be used.

use std::time::Duration;

use etcd_client::{GetResponse, WatchOptions};
use tokio::time::{sleep, timeout};

use super::Shared;
use super::client::{Connection, Failure, revision};
use crate::backoff::Backoff;
use crate::config::NetworkConfig;

/// A watch that says nothing for so long is not trusted.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

impl Shared {
    pub(super) async fn network_config(&self) -> NetworkConfig {
        let key = self.store.layout.config.as_str();
        let mut backoff = Backoff::default();
        loop {
            let Ok(answer) = self.store.client.request(|connection| read(connection, key)).await
            else {
                sleep(backoff.delay(rand::random())).await;
                continue;
            };
            match parse(key, &answer) {
                Ok(config) => {
                    self.store.client.report.has_config();
                    return config;
                }
                Err(reason) => self.store.client.report.waits_for_config(&reason),
            }
            let next = revision(answer.header()) + 1;
            match timeout(LOOK_AGAIN, Box::pin(self.change(key, next))).await {
                Ok(Err(_)) => sleep(backoff.delay(rand::random())).await,
                Ok(Ok(())) | Err(_) => backoff.reset(),
            }
        }
    }

    /// Returns once the key was written at `revision` or later.
    async fn change(&self, key: &str, revision: i64) -> Result<(), Failure> {
        let options = WatchOptions::new().with_start_revision(revision);
        let client = &self.store.client;
        let opened = client.once(|connection| async move {
            let stream = connection.watches().watch(key, Some(options)).await?;
            Ok((connection, stream))
        });
        let (connection, mut stream) = opened.await?;
        loop {
            match stream.message().await {
                Ok(Some(message)) if !message.events().is_empty() => return Ok(()),
                Ok(Some(message)) if !message.canceled() => {}
                Ok(_) => {
                    client.drop_connection(&connection, "watch of the network config ended").await;
                    return Err(Failure::Away);
                }
                Err(error) => return Err(client.failed(&connection, &error).await),
            }
        }
    }
}

async fn read(connection: Connection, key: &str) -> Result<GetResponse, etcd_client::Error> {
    connection.kv().get(key, None).await
}

fn parse(key: &str, answer: &GetResponse) -> Result<NetworkConfig, String> {
    let kv = answer
        .kvs()
        .first()
        .ok_or_else(|| format!("key {key} is missing: write the network config there"))?;
    NetworkConfig::parse(kv.value()).map_err(|error| format!("key {key}: {error}"))
}
