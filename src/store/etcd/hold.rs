//! Keeps our lease alive, and notices when it is lost.

use tokio::time::{sleep, sleep_until};

use super::Shared;
use super::answer::Refusal;
use super::grant::renewal;
use crate::model::lease::Lease;
use crate::store::Lost;

impl Shared {
    pub(super) async fn hold(&self, lease: &Lease) -> Lost {
        tokio::select! {
            lost = self.watch_own_key() => lost,
            lost = self.renew(lease) => lost,
        }
    }

    pub(super) async fn pause_after_loss(&self) {
        let lost = self.ours.borrow().loss();
        if let Some(lost) = lost {
            let pause = self.losses.lock().await.pause(&lost, rand::random());
            sleep(pause).await;
        }
    }

    /// The watch on all leases tells.
    async fn watch_own_key(&self) -> Lost {
        let mut ours = self.ours.subscribe();
        loop {
            if let Some(lost) = ours.borrow_and_update().loss() {
                return lost;
            }
            // The sender is ours and lives as long as we do.
            if ours.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    async fn renew(&self, lease: &Lease) -> Lost {
        if lease.grant.is_none() {
            return std::future::pending().await;
        }
        loop {
            let grant = self.grant().await;
            sleep_until(grant.renewed + renewal(grant.ttl, self.renew_margin, rand::random()))
                .await;
            if self.keep_alive(grant.id).await == Err(Refusal::NoGrant) {
                self.forget_grant().await;
                return Lost::because(format!(
                    "etcd lease {:x} of key {} is gone",
                    grant.id, lease.id
                ));
            }
            self.look_at(lease).await;
        }
    }

    /// Should nobody follow the watch, a loss is noticed all the same, if late.
    async fn look_at(&self, lease: &Lease) {
        if self.first.lock().await.is_used() {
            return;
        }
        if let Ok((stored, revision)) = self.store.read_once(&lease.id).await {
            self.ours.send_if_modified(|ours| ours.see(&lease.id, stored.as_ref(), revision));
        }
    }
}
