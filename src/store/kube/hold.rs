//! Notices when our lease is lost, and that it works.

use std::future::pending;
use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch::Receiver;
use tokio::time::sleep;
use tracing::warn;

use super::Shared;
use super::client::Failure;
use super::options::Condition;
use super::own::Ours;
use super::request;
use crate::store::Lost;
use crate::store::backoff::Backoff;

impl Shared {
    /// The watch on all nodes tells.
    pub(super) async fn hold(&self) -> Lost {
        let prefix = &self.options.annotation_prefix;
        let mut ours = self.ours.subscribe();
        loop {
            if let Some(lost) = ours.borrow_and_update().loss(prefix) {
                return lost;
            }
            news(&mut ours).await;
        }
    }

    pub(super) async fn pause_after_loss(&self) {
        let lost = self.ours.borrow().loss(&self.options.annotation_prefix);
        if let Some(lost) = lost {
            let pause = self.losses.lock().await.pause(&lost, rand::random());
            sleep(pause).await;
        }
    }

    /// Clears the condition that keeps pods away from our node, and again whenever the node was
    /// made anew. Never ends.
    pub(super) async fn announce(&self) {
        if self.options.condition == Condition::Untouched {
            return pending().await;
        }
        let name = self.node_name().await;
        let mut ours = self.ours.subscribe();
        let (mut told, mut backoff) = (None, Backoff::default());
        loop {
            let uid = ours.borrow_and_update().node().map(|node| node.uid.clone());
            if uid.is_none() || uid == told {
                news(&mut ours).await;
                continue;
            }
            match self.client.once(&request::clear_condition(&name, &now())).await {
                Ok(_) => {
                    backoff.reset();
                    told = uid;
                }
                Err(failure) => {
                    if let Failure::Refused(refusal) = failure {
                        warn!(%refusal, "the condition NetworkUnavailable is not cleared");
                    }
                    sleep(SHORTEST + backoff.delay(rand::random())).await;
                }
            }
        }
    }
}

const SHORTEST: Duration = Duration::from_secs(1);

/// The sender is ours and lives as long as we do.
pub(super) async fn news(ours: &mut Receiver<Ours>) {
    if ours.changed().await.is_err() {
        pending::<()>().await;
    }
}

/// To the second, as Kubernetes writes it.
fn now() -> String {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(seconds.as_secs()).unwrap_or_default();
    Timestamp::from_second(seconds).unwrap_or_default().to_string()
}
