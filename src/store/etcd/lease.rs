//! Our lease: acquired and written in guarded transactions, renewed by one etcd lease, and acquired
//! again after a loss.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Error as EtcdError, LeaseGrantOptions};
use futures::stream::BoxStream;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info, warn};
use tweed_client::backoff::Backoff;
use tweed_client::failover::{Outcomes, Refusal};
use tweed_client::watch::{Spread, updates};

use super::client::Connection;
use super::ours::{Dispute, Ours, Own};
use super::startup::{Proof, Since, is_confirmed};
use super::store::{Listing, MAX_OBSOLETE, Precondition, Stored, Write};
use super::watch::EtcdSource;
use super::{EtcdSubnetManager, key, value};
use crate::model::config::NetworkConfig;
use crate::model::lease::{Lease, LeaseAttributes, LeaseId, LeaseUpdate};
use crate::model::prefix::Prefix;
use crate::random::{random, random_range};
use crate::store::allocate::SubnetRequest;
use crate::store::claim::{Allocation, Claimant, HeldLease};
use crate::store::hold::{pause_after, until_lost};
use crate::store::{Documents, Error, LeaseTerm, Leases, Lost};

/// The pause between two attempts to renew while a key is written.
const AGAIN: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) id: i64,
    pub(super) ttl: Duration,
    /// The earliest time at which it may last have been renewed.
    pub(super) renewed: Instant,
}

impl Grant {
    fn term(self) -> LeaseTerm {
        LeaseTerm::Until(self.renewed + self.ttl)
    }
}

impl Leases for EtcdSubnetManager {
    fn avoid(&self, occupied: Vec<Prefix>) {
        self.occupied.send_replace(occupied);
    }

    async fn acquire(
        &self,
        config: &NetworkConfig,
        attributes: &LeaseAttributes,
    ) -> Result<Lease, Error> {
        let public_ips = attributes.endpoints.iter().map(|endpoint| endpoint.public_ip).collect();
        let occupied = self.occupied.borrow().clone();
        let (pools, previous) = (&config.pools, &self.previous);
        let claimant = Claimant { pools, public_ips, previous, occupied: &occupied };
        let lost = self.ours.borrow().loss();
        pause_after(lost, &self.losses, self.report()).await;
        let held = self.ours.borrow().own.clone();
        let acquire = async {
            match held {
                Some(own) => self.republish(&claimant, own, value::encode(attributes)).await,
                None => self.claim(&claimant, value::encode(attributes)).await,
            }
        };
        let own = tokio::select! {
            biased;
            own = acquire => own?,
            never = self.renew_meanwhile() => match never {},
        };
        let lease = Lease {
            id: own.id.clone(),
            endpoints: attributes.published_for(own.subnets()),
            created: own.created,
            grant: own.grant,
        };
        self.ours.send_modify(|ours| ours.own = Some(own));
        let term = match lease.grant {
            Some(_) => self.grant.lock().await.map_or(LeaseTerm::None, Grant::term),
            None => LeaseTerm::Unlimited,
        };
        self.report().leased(term);
        Ok(lease)
    }

    async fn hold(&self, lease: &Lease) -> Lost {
        tokio::select! {
            biased;
            // The watch on all leases detects the loss.
            lost = until_lost(&self.ours, Ours::loss) => lost,
            lost = self.renew(lease) => lost,
        }
    }

    fn watch(self: &Arc<Self>) -> BoxStream<'static, LeaseUpdate> {
        updates(EtcdSource::new(Arc::clone(self)), Spread::ByRecords)
    }

    async fn release(&self) -> bool {
        let held = self.ours.borrow().own.as_ref().and_then(|own| own.grant);
        let Some(id) = held else { return false };
        // With the etcd lease, all keys under it are deleted: those that another client has
        // overwritten are not under it.
        let ask =
            |connection: Connection| async move { connection.leases().revoke(id).await.map(drop) };
        matches!(self.store.client.request(ask).await, Ok(()) | Err(Refusal::Absent))
    }
}

/// None if the write must be retried, because leases have changed since they were listed.
type Attempt = Result<Option<Own>, Error>;

impl EtcdSubnetManager {
    /// Acquires a lease. Lists all leases, normally once; the watch starts with the same listing.
    async fn claim(&self, claimant: &Claimant<'_>, value: Vec<u8>) -> Result<Own, Error> {
        for subnet in claimant.previous_outside_pools() {
            warn!(%subnet, "previous subnet is outside the network");
        }
        if let Some((own, since)) = self.reserve(claimant, &value).await {
            let proof = Proof { own: &own, known: own.mod_revision };
            let listing = self.store.list_queued(Some(proof)).await;
            if is_confirmed(claimant, &own, &listing) {
                self.first.lock().await.keep(listing);
                return Ok(own);
            }
            if since == Since::Now {
                self.store.withdraw(&own.id, own.mod_revision).await;
            }
        }
        loop {
            let listing = self.store.list().await;
            let attempt = self.attempt(claimant, &listing, &value).await;
            self.first.lock().await.keep(listing);
            if let Some(own) = attempt? {
                return Ok(own);
            }
        }
    }

    async fn attempt(&self, claimant: &Claimant<'_>, listing: &Listing, value: &[u8]) -> Attempt {
        let holdings: Vec<HeldLease> = listing.holdings().collect();
        let claim = claimant.claim(&holdings)?;
        let read = |id: LeaseId| listing.get(&id).map(|stored| (id, stored.mod_revision));
        let obsolete: Vec<_> = claim.obsolete.into_iter().filter_map(read).collect();
        if let Some((first, _)) = obsolete.first() {
            let (count, of) = (obsolete.len().min(MAX_OBSOLETE), obsolete.len());
            info!(%first, count, of, "deleting our leases of other subnets");
        }
        match claim.allocation {
            Allocation::Existing(id) => match listing.get(&id) {
                Some(stored) => self.take(claimant, stored, value, obsolete).await,
                None => Ok(None),
            },
            Allocation::New(request) => self.create(claimant, request, value, obsolete).await,
        }
    }

    async fn take(
        &self,
        claimant: &Claimant<'_>,
        stored: &Stored,
        value: &[u8],
        obsolete: Vec<(LeaseId, i64)>,
    ) -> Attempt {
        let condition = Precondition::Unchanged(stored.mod_revision);
        let mut own = Own {
            created: stored.origin.created,
            mod_revision: stored.mod_revision,
            disputed: Dispute::over(stored, claimant),
            ..Own::unwritten(stored.record.id.clone(), value, self.grant_for(stored).await)
        };
        // To write the same value at each restart would notify all nodes without a change.
        let is_published = obsolete.is_empty() && own.has_written(stored);
        let holds = is_published || self.write(&mut own, condition, obsolete).await.is_ok();
        Ok(holds.then_some(own))
    }

    /// Creates a key. The first node to create it holds the subnet; the second allocates another
    /// one.
    async fn create(
        &self,
        claimant: &Claimant<'_>,
        mut request: SubnetRequest<'_>,
        value: &[u8],
        obsolete: Vec<(LeaseId, i64)>,
    ) -> Attempt {
        let must_list_again =
            !obsolete.is_empty() || request.kept.iter().flatten().next().is_some();
        let mut public_ip = claimant.public_ips.first().copied();
        loop {
            let subnets = request.allocate(public_ip, random())?;
            let is_aligned = request.is_aligned(&subnets);
            let mut own = self.new_own(claimant, &subnets, value).await;
            let written = self.write(&mut own, Precondition::Absent, obsolete.clone()).await;
            if written.is_ok() && (is_aligned || !self.withdraw_if_shared(&own).await) {
                return Ok(Some(own));
            }
            if must_list_again {
                return Ok(None);
            }
            request.taken = self.store.claimed().await;
            public_ip = None;
        }
    }

    /// Withdraws our lease if another node held one of its subnets before; returns whether it did. A key
    /// reserves only its first subnet; the second is unique as long as all nodes use the same slot of
    /// both pools.
    async fn withdraw_if_shared(&self, own: &Own) -> bool {
        let is_shared = self.store.is_shared(&own.subnets(), own.created).await;
        if is_shared {
            self.store.withdraw(&own.id, own.mod_revision).await;
        }
        is_shared
    }

    /// Publishes `value` in the lease that we hold, or have lost.
    async fn republish(
        &self,
        claimant: &Claimant<'_>,
        mut own: Own,
        value: Vec<u8>,
    ) -> Result<Own, Error> {
        own.intended = value;
        // Then the watch does not take the new value for a loss.
        self.ours.send_if_modified(|ours| {
            ours.own.iter_mut().for_each(|known| known.intended.clone_from(&own.intended));
            false
        });
        // In a wiped or restored store, the key may be another one, or none.
        let mut condition = if own.is_restored {
            Precondition::Absent
        } else {
            Precondition::Unchanged(own.mod_revision)
        };
        let mut dispute = None;
        let subnets = own.subnets();
        let taken = |held| subnets.first().map(|subnet| claimant.taken(*subnet, &held));
        loop {
            let overwritten_again_by = self.ours.borrow().overwritten_again_by.clone();
            if let Some(error) = overwritten_again_by.and_then(taken) {
                return Err(error);
            }
            let Err(rivals) = self.write(&mut own, condition, Vec::new()).await else {
                own.disputed = dispute.or(own.disputed);
                return Ok(own);
            };
            let found = rivals.iter().find(|stored| stored.record.id == own.id);
            if let Some(error) = rival(claimant, &own, &rivals).and_then(taken) {
                return Err(error);
            }
            // The other machine may write again before we overwrite its lease.
            let others = found.filter(|stored| !own.wrote(stored));
            dispute = others.and_then(|stored| Dispute::over(stored, claimant));
            condition = if let Some(stored) = found {
                own.grant = self.grant_for(stored).await;
                own.created = stored.origin.created;
                Precondition::Unchanged(stored.mod_revision)
            } else {
                own.grant = Some(self.grant().await.id);
                Precondition::Absent
            };
        }
    }

    /// Writes `own.intended`. Fails with the leases that violate the condition.
    pub(super) async fn write(
        &self,
        own: &mut Own,
        condition: Precondition,
        obsolete: Vec<(LeaseId, i64)>,
    ) -> Result<Since, Vec<Stored>> {
        let (id, value) = (own.id.clone(), own.intended.clone());
        let is_new = matches!(condition, Precondition::Absent);
        let mut write = Write { id, value, grant: own.grant, condition, obsolete };
        let written = loop {
            match self.store.write(&write).await {
                Ok(written) => break written,
                Err(Refusal::Absent) => {
                    self.forget_grant().await;
                    write.grant = Some(self.grant().await.id);
                }
                // Other refusals do not depend on the etcd lease.
                Err(refusal) => self.pause_after_refusal(refusal).await,
            }
        };
        own.grant = write.grant;
        let (mod_revision, created, since) = match written {
            Ok(revision) if is_new => (revision, revision.unsigned_abs(), Since::Now),
            Ok(revision) => (revision, own.created, Since::Now),
            // The transaction was retried after a lost answer, but had been executed.
            Err(found) => match found.iter().find(|stored| own.has_written(stored)) {
                Some(stored) => (stored.mod_revision, stored.origin.created, Since::Before),
                None => return Err(found),
            },
        };
        (own.mod_revision, own.created, own.is_restored) = (mod_revision, created, false);
        own.value.clone_from(&own.intended);
        Ok(since)
    }

    /// The etcd lease to write under; none for a reservation, which stays one. A lease under the
    /// etcd lease of the previous daemon stays there: it shows a machine of which this one is a
    /// copy that its lease was overwritten by a copy.
    async fn grant_for(&self, stored: &Stored) -> Option<i64> {
        let grant = stored.origin.grant;
        if grant.is_none() && stored.record.lease.is_ok() {
            return None;
        }
        if grant.is_some() && grant == self.previous.grant {
            self.resume_previous_grant().await;
        }
        Some(self.grant().await.id)
    }

    pub(super) async fn new_own(
        &self,
        claimant: &Claimant<'_>,
        subnets: &[Prefix],
        value: &[u8],
    ) -> Own {
        if !claimant.keeps_public_ip() {
            self.leave_previous_grant().await;
        }
        Own::unwritten(key::encode(subnets), value, Some(self.grant().await.id))
    }

    async fn renew(&self, lease: &Lease) -> Lost {
        if lease.grant.is_none() {
            return std::future::pending().await;
        }
        loop {
            let grant = self.grant().await;
            sleep_until(self.due(&grant)).await;
            match self.keep_alive(grant.id).await {
                Ok(()) => {}
                Err(Refusal::Absent) => {
                    self.forget_grant().await;
                    self.store.client.report.leased(LeaseTerm::None);
                    return Lost::because(format!(
                        "etcd lease {:x} of key {} is gone",
                        grant.id, lease.id
                    ));
                }
                Err(refusal) => self.pause_after_refusal(refusal).await,
            }
        }
    }

    /// Renews the etcd lease while the key of our lease is written: etcd may refuse to write for longer
    /// than the term, as without space, and still renew.
    async fn renew_meanwhile(&self) -> Infallible {
        loop {
            let Some(grant) = *self.grant.lock().await else {
                sleep(AGAIN).await;
                continue;
            };
            sleep_until(self.due(&grant).max(Instant::now() + AGAIN)).await;
            match self.keep_alive(grant.id).await {
                // The write, which is refused, has not noticed it.
                Err(Refusal::Absent) => {
                    self.grant.lock().await.take_if(|current| current.id == grant.id);
                }
                Err(refusal) => debug!(%refusal, "the etcd lease is not renewed"),
                Ok(()) => {}
            }
        }
    }

    /// When to renew: see [`renewal`].
    fn due(&self, grant: &Grant) -> Instant {
        grant.renewed + renewal(grant.ttl, self.times.renew_margin, random())
    }

    /// The one etcd lease of this daemon: that of the previous daemon, if it still exists.
    pub(super) async fn grant(&self) -> Grant {
        let mut current = self.grant.lock().await;
        if let Some(grant) = *current {
            return grant;
        }
        let grant = match self.renew_previous_grant().await {
            Some(grant) => grant,
            None => self.new_grant().await,
        };
        *current = Some(grant);
        grant
    }

    /// Creates a new etcd lease if none is in use yet, since the previous one may belong to a
    /// machine of which this one is a copy.
    pub(super) async fn leave_previous_grant(&self) {
        let mut current = self.grant.lock().await;
        if current.is_none() {
            *current = Some(self.new_grant().await);
        }
    }

    /// Uses the etcd lease of the previous daemon again if it exists.
    async fn resume_previous_grant(&self) {
        let mut current = self.grant.lock().await;
        if current.is_some_and(|grant| Some(grant.id) != self.previous.grant) {
            *current = self.renew_previous_grant().await.or(*current);
        }
    }

    /// Call this after the server reported that there is no such lease.
    pub(super) async fn forget_grant(&self) {
        *self.grant.lock().await = None;
    }

    /// Renews the etcd lease for its whole TTL.
    pub(super) async fn keep_alive(&self, id: i64) -> Result<(), Refusal> {
        let asked = Instant::now();
        let ask = |connection: Connection| async move {
            match connection.leases().keep_alive(id).await {
                // There is no such lease; a stream that ends is another error.
                Err(EtcdError::LeaseKeepAliveError(_)) => Ok(false),
                answer => answer.map(|_| true),
            }
        };
        self.store.client.request(ask).await?.then_some(()).ok_or(Refusal::Absent)?;
        if let Some(grant) = self.grant.lock().await.as_mut().filter(|grant| grant.id == id) {
            grant.renewed = asked;
            let is_ours = |ours: &Ours| {
                ours.loss().is_none() && ours.own.as_ref().is_some_and(|own| own.grant == Some(id))
            };
            if is_ours(&self.ours.borrow()) {
                self.store.client.report.leased(grant.term());
            }
        }
        Ok(())
    }

    async fn renew_previous_grant(&self) -> Option<Grant> {
        let id = self.previous.grant?;
        let renewed = Instant::now();
        let ask = |connection: Connection| async move {
            let answer = connection.leases().time_to_live(id, None).await?;
            if answer.ttl() <= 0 || seconds(answer.granted_ttl()) != self.times.ttl {
                return Ok(None);
            }
            connection.leases().keep_alive(id).await?;
            Ok(Some(seconds(answer.granted_ttl())))
        };
        let ttl = self.store.client.request(ask).await.ok()??;
        info!(id, "reusing the etcd lease of the previous daemon");
        Some(Grant { id, ttl, renewed })
    }

    /// Chooses the id itself, so that a request without an answer can be retried and leaks no
    /// lease.
    async fn new_grant(&self) -> Grant {
        let id = random_range(1..=i64::MAX);
        let ttl = i64::try_from(self.times.ttl.as_secs()).unwrap_or(i64::MAX);
        let ask = |connection: Connection| async move {
            let options = LeaseGrantOptions::new().with_id(id);
            connection.leases().grant(ttl, Some(options)).await
        };
        loop {
            let renewed = Instant::now();
            let ttl = match self.store.client.request(ask).await {
                Ok(grant) => grant.ttl(),
                // The answer to an earlier try was lost.
                Err(Refusal::Exists) => ttl,
                Err(refusal) => {
                    self.pause_after_refusal(refusal).await;
                    continue;
                }
            };
            return Grant { id, ttl: seconds(ttl), renewed };
        }
    }

    async fn pause_after_refusal(&self, refusal: Refusal) {
        let client = &self.store.client;
        client.report.refuses(&client.report.refused(refusal));
        sleep(Backoff::LONGEST).await;
    }
}

/// The lease of another node that holds our subnet, under our key or another one. A copy of this
/// machine publishes under the same etcd lease: it is overwritten once; the one that the other
/// overwrites again ends. What a backup restored below our write is overwritten, and so is what we
/// wrote with another address, also where an operator has reserved it meanwhile.
fn rival(claimant: &Claimant<'_>, own: &Own, rivals: &[Stored]) -> Option<HeldLease> {
    let is_ours = |stored: &Stored, held: &HeldLease| {
        let same_grant = held.grant.is_some() && held.grant == own.grant;
        // A lease without a public IP was edited by mistake, and is still ours.
        let is_ours = !claimant.is_of_other_node(held)
            || (same_grant && !own.is_disputed_with(&held.public_ips))
            || own.overwrote(stored)
            || own.wrote(stored);
        held.id == own.id && is_ours
    };
    rivals.iter().find_map(|stored| stored.holding().filter(|held| !is_ours(stored, held)))
}

fn seconds(ttl: i64) -> Duration {
    Duration::from_secs(ttl.unsigned_abs())
}

/// The time from one renewal to the next: early enough to leave `margin`, and random, so that nodes
/// that started together do not renew together.
fn renewal(ttl: Duration, margin: Duration, random: f64) -> Duration {
    let due = (ttl / 3).min(ttl.saturating_sub(margin)).max(Duration::from_secs(1));
    due.mul_f64(0.9 + 0.2 * random.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn a_lease_is_renewed_after_a_third_of_its_ttl() {
        assert_eq!(renewal(DAY, Duration::from_secs(3600), 0.5), DAY / 3);
        assert_eq!(renewal(DAY, Duration::from_secs(3600), 0.0), (DAY / 3).mul_f64(0.9));
    }

    #[test]
    fn a_longer_margin_renews_sooner() {
        let hour = Duration::from_secs(3600);
        assert_eq!(renewal(hour * 24, hour * 23, 0.5), hour);
        assert_eq!(renewal(hour * 24, hour * 25, 0.5), Duration::from_secs(1));
    }
}
