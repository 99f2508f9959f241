//! Keeps our lease alive: one etcd lease for the daemon's life. Notices when it is lost.

use std::time::Duration;

use etcd_client::{Error, LeaseGrantOptions};
use tokio::time::{Instant, sleep_until};
use tracing::info;

use super::Shared;
use super::client::Connection;
use super::connect::Refusal;
use super::ours::Ours;
use crate::model::lease::Lease;
use crate::store::Lost;
use crate::store::hold::{pause_after, until_lost};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) id: i64,
    pub(super) ttl: Duration,
    /// When its term last began anew, at the earliest.
    pub(super) renewed: Instant,
}

/// Flannel's: a node may be away for so long before its subnet is another's.
const TTL_SECONDS: i64 = 86_400;

impl Shared {
    pub(super) async fn hold(&self, lease: &Lease) -> Lost {
        tokio::select! {
            // The watch on all leases notices it.
            lost = until_lost(&self.ours, Ours::loss) => lost,
            lost = self.renew(lease) => lost,
        }
    }

    pub(super) async fn pause_after_loss(&self) {
        let lost = self.ours.borrow().loss();
        pause_after(lost, &self.losses).await;
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

impl Shared {
    /// The one etcd lease of this daemon: that of the daemon before it, if it still lives.
    pub(super) async fn grant(&self) -> Grant {
        let mut current = self.grant.lock().await;
        if let Some(grant) = *current {
            return grant;
        }
        let grant = match self.revive().await {
            Some(grant) => grant,
            None => self.new_grant().await,
        };
        *current = Some(grant);
        grant
    }

    /// The etcd lease that we know from before may be that of a machine which we are a copy of.
    pub(super) async fn leave_previous_grant(&self) {
        let mut current = self.grant.lock().await;
        if current.is_none() {
            *current = Some(self.new_grant().await);
        }
    }

    /// After the server said that there is no such lease.
    pub(super) async fn forget_grant(&self) {
        *self.grant.lock().await = None;
    }

    /// Gives the etcd lease its whole term again.
    pub(super) async fn keep_alive(&self, id: i64) -> Result<(), Refusal> {
        let asked = Instant::now();
        let ask = |connection: Connection| async move {
            match connection.leases().keep_alive(id).await {
                Ok(_) => Ok(true),
                Err(error @ Error::LeaseKeepAliveError(_)) => {
                    not_renewed(error, ttl(&connection, id).await?)
                }
                Err(error) => Err(error),
            }
        };
        self.store.client.request(ask).await?.then_some(()).ok_or(Refusal::NoGrant)?;
        if let Some(grant) = self.grant.lock().await.as_mut().filter(|grant| grant.id == id) {
            grant.renewed = asked;
        }
        Ok(())
    }

    async fn revive(&self) -> Option<Grant> {
        let id = self.previous.grant?;
        let renewed = Instant::now();
        let ask = |connection: Connection| async move {
            let Some(ttl) = ttl(&connection, id).await? else { return Ok(None) };
            connection.leases().keep_alive(id).await?;
            Ok(Some(ttl))
        };
        let ttl = self.store.client.request(ask).await.ok()??;
        info!(id, "took up the etcd lease of the daemon before");
        Some(Grant { id, ttl, renewed })
    }

    /// The id is ours, so that a request without an answer can be repeated and leaks no lease.
    async fn new_grant(&self) -> Grant {
        let id = rand::random_range(1..=i64::MAX);
        self.store.client.breathe().await;
        let renewed = Instant::now();
        let ask = |connection: Connection| async move {
            let options = LeaseGrantOptions::new().with_id(id);
            connection.leases().grant(TTL_SECONDS, Some(options)).await
        };
        let granted = self.store.client.request(ask).await;
        let ttl = granted.map_or(TTL_SECONDS, |grant| grant.ttl());
        Grant { id, ttl: seconds(ttl), renewed }
    }
}

/// The whole term of an etcd lease; none if there is no such lease.
async fn ttl(connection: &Connection, id: i64) -> Result<Option<Duration>, Error> {
    let answer = connection.leases().time_to_live(id, None).await?;
    Ok((answer.ttl() > 0).then(|| seconds(answer.granted_ttl())))
}

/// What `error` means now that the etcd lease has this `ttl`: that there is none, or that the stream
/// ended before the lease was renewed. Then it has to be renewed all the same.
fn not_renewed(error: Error, ttl: Option<Duration>) -> Result<bool, Error> {
    match ttl {
        Some(_) => Err(error),
        None => Ok(false),
    }
}

fn seconds(ttl: i64) -> Duration {
    Duration::from_secs(ttl.unsigned_abs())
}

/// How long after a renewal the next one is due: early enough to leave `margin`, and not at the
/// same moment on all nodes that started together.
fn renewal(ttl: Duration, margin: Duration, random: f64) -> Duration {
    let due = (ttl / 3).min(ttl.saturating_sub(margin)).max(Duration::from_secs(1));
    due.mul_f64(0.9 + 0.2 * random.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn a_stream_that_ended_has_renewed_nothing() {
        let ended = || Error::LeaseKeepAliveError("failed to create lease keeper".to_owned());
        assert!(not_renewed(ended(), Some(DAY)).is_err());
        assert_eq!(not_renewed(ended(), None).ok(), Some(false));
    }

    #[test]
    fn a_third_of_the_term_passes_between_renewals() {
        assert_eq!(renewal(DAY, Duration::from_secs(3600), 0.5), DAY / 3);
        assert_eq!(renewal(DAY, Duration::from_secs(3600), 0.0), (DAY / 3).mul_f64(0.9));
    }

    #[test]
    fn a_wide_margin_renews_sooner() {
        let hour = Duration::from_secs(3600);
        assert_eq!(renewal(hour * 24, hour * 23, 0.5), hour);
        assert_eq!(renewal(hour * 24, hour * 25, 0.5), Duration::from_secs(1));
    }
}
