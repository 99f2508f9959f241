//! Takes a lease, or takes it back: every write is guarded, and says whose it is.

use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::Shared;
use super::connect::Refusal;
use super::ours::Own;
use super::startup::{Proof, Reserved, Since, is_confirmed};
use super::store::{Condition, Listing, Outcome, Stored, Write};
use super::{key, value};
use crate::model::config::NetworkConfig;
use crate::model::lease::{Lease, LeaseAttributes, LeaseId};
use crate::model::prefix::Prefix;
use crate::store::Error;
use crate::store::allocate::{Draw, Wish};
use crate::store::backoff::Backoff;
use crate::store::claim::{Claimant, Holding, Way};

/// A write that may have to be looked at afresh, because something changed meanwhile.
type Attempt = Result<Option<Own>, Error>;

impl Shared {
    pub(super) async fn acquire(
        &self,
        config: &NetworkConfig,
        attributes: &LeaseAttributes,
    ) -> Result<Lease, Error> {
        let public_ips = attributes.endpoints.iter().map(|endpoint| endpoint.public_ip).collect();
        let occupied = self.occupied.borrow().clone();
        let (pools, previous) = (&config.pools, &self.previous);
        let claimant = Claimant { pools, public_ips, previous, occupied: &occupied };
        self.pause_after_loss().await;
        let held = self.ours.borrow().own.clone();
        let own = match held {
            Some(own) => self.republish(&claimant, own, value::encode(attributes)).await?,
            None => self.claim(&claimant, value::encode(attributes)).await?,
        };
        let lease = lease(&own, attributes);
        self.ours.send_modify(|ours| ours.take(own));
        Ok(lease)
    }

    /// Looks at all leases once; the watch begins with the same look.
    async fn claim(&self, claimant: &Claimant<'_>, value: Vec<u8>) -> Result<Own, Error> {
        for subnet in claimant.forgotten() {
            warn!(%subnet, "previous subnet is not of this network any more");
        }
        if let Some(Reserved { own, since }) = self.reserve(claimant, &value).await {
            let proof = Proof { own: &own, known: own.mod_revision };
            let listing = self.store.list_in_turn(Some(proof)).await;
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
        let holdings: Vec<Holding> = listing.stored.iter().filter_map(Stored::holding).collect();
        let claim = claimant.claim(&holdings)?;
        let seen = |id: &LeaseId| listing.stored.iter().find(|stored| stored.record.id == *id);
        let obsolete = claim.obsolete.iter().filter_map(seen);
        let obsolete: Vec<_> =
            obsolete.map(|stored| (stored.record.id.clone(), stored.mod_revision)).collect();
        for (id, _) in &obsolete {
            info!(%id, "giving up a lease of ours on another subnet");
        }
        match claim.way {
            Way::Take(id) => match seen(&id) {
                Some(stored) => self.take(claimant, stored, value, obsolete).await,
                None => Ok(None),
            },
            Way::Create(wish) => self.create(claimant, wish, value, obsolete).await,
        }
    }

    async fn take(
        &self,
        claimant: &Claimant<'_>,
        stored: &Stored,
        value: &[u8],
        obsolete: Vec<(LeaseId, i64)>,
    ) -> Attempt {
        let condition = Condition::Unchanged(stored.mod_revision);
        let id = stored.record.id.clone();
        let mut own = Own {
            subnets: key::claimed(&id),
            id,
            value: value.to_vec(),
            intended: value.to_vec(),
            grant: self.term(stored).await,
            created: stored.origin.created,
            mod_revision: stored.mod_revision,
            disputed: is_of_another(claimant, stored).then(Instant::now),
        };
        // Written again, it would wake every node for nothing whenever a daemon restarts.
        let is_published = obsolete.is_empty() && own.has_written(stored);
        let holds = is_published || self.write(&mut own, condition, obsolete).await.is_ok();
        Ok(holds.then_some(own))
    }

    /// What is created first wins; who comes second takes another subnet at once.
    async fn create(
        &self,
        claimant: &Claimant<'_>,
        mut wish: Wish<'_>,
        value: &[u8],
        obsolete: Vec<(LeaseId, i64)>,
    ) -> Attempt {
        let look_again = !obsolete.is_empty() || wish.kept.iter().flatten().next().is_some();
        let slot = claimant.public_ips.first();
        let mut draw =
            slot.map_or(Draw::Any(rand::random()), |ip| Draw::SlotOf(*ip, rand::random()));
        loop {
            let subnets = wish.fulfil(draw)?;
            let in_step = wish.in_step(&subnets);
            let mut own = self.new_own(claimant, subnets, value).await;
            let absent = Condition::Absent(own.subnets.clone());
            let written = self.write(&mut own, absent, obsolete.clone()).await.is_ok();
            if written && (in_step || self.is_alone(&own).await) {
                return Ok(Some(own));
            }
            if look_again {
                return Ok(None);
            }
            wish.taken = self.store.claimed().await;
            draw = Draw::Any(rand::random());
        }
    }

    /// Whether nobody was on our subnets before us. A key keeps others from its first subnet only;
    /// the second is safe as long as all keep in step.
    async fn is_alone(&self, own: &Own) -> bool {
        let alone = !self.store.is_shared(&own.subnets, own.created).await;
        if !alone {
            self.store.withdraw(&own.id, own.mod_revision).await;
        }
        alone
    }

    /// Publishes `value` under the lease that we have, or had.
    async fn republish(
        &self,
        claimant: &Claimant<'_>,
        mut own: Own,
        value: Vec<u8>,
    ) -> Result<Own, Error> {
        own.intended = value;
        self.ours.send_if_modified(|ours| {
            ours.intend(&own.intended);
            false
        });
        let mut condition = Condition::Unchanged(own.mod_revision);
        loop {
            let Err(rivals) = self.write(&mut own, condition, Vec::new()).await else {
                return Ok(own);
            };
            let found = rivals.iter().find(|stored| stored.record.id == own.id);
            if let Some(rival) = rival(claimant, &own, &rivals) {
                return Err(rival);
            }
            condition = if let Some(stored) = found {
                own.disputed = is_of_another(claimant, stored).then(Instant::now).or(own.disputed);
                own.grant = self.term(stored).await;
                own.created = stored.origin.created;
                Condition::Unchanged(stored.mod_revision)
            } else {
                own.grant = Some(self.grant().await.id);
                Condition::Absent(own.subnets.clone())
            };
        }
    }

    /// Writes `own.intended`. Fails with what stands in the way.
    pub(super) async fn write(
        &self,
        own: &mut Own,
        condition: Condition,
        obsolete: Vec<(LeaseId, i64)>,
    ) -> Result<Since, Vec<Stored>> {
        let (id, value) = (own.id.clone(), own.intended.clone());
        let is_new = matches!(condition, Condition::Absent(_));
        let mut write = Write { id, value, grant: own.grant, condition, obsolete };
        let outcome = loop {
            match self.store.write(&write).await {
                Ok(outcome) => break outcome,
                Err(refusal) => write.grant = self.other_grant(refusal, write.grant).await,
            }
        };
        own.grant = write.grant;
        let since = match outcome {
            Outcome::Written(revision) => {
                own.mod_revision = revision;
                own.created = if is_new { revision.unsigned_abs() } else { own.created };
                Since::Now
            }
            // A transaction without an answer was repeated, but had been carried out.
            Outcome::Refused(found) => match found.iter().find(|stored| own.has_written(stored)) {
                Some(stored) => {
                    own.mod_revision = stored.mod_revision;
                    own.created = stored.origin.created;
                    Since::Before
                }
                None => return Err(found),
            },
        };
        own.value.clone_from(&own.intended);
        Ok(since)
    }

    /// The etcd lease to write under, after the server did not know the one we had.
    async fn other_grant(&self, refusal: Refusal, grant: Option<i64>) -> Option<i64> {
        match refusal {
            Refusal::NoGrant => {
                self.forget_grant().await;
                Some(self.grant().await.id)
            }
            // No answer to a write: whatever it means, it shall not be asked for in a hurry.
            Refusal::GrantExists
            | Refusal::NoRevision
            | Refusal::TooLarge(_)
            | Refusal::Invalid(_) => {
                sleep(Backoff::LONGEST).await;
                grant
            }
        }
    }

    /// What stands without a term is a reservation, and stays one.
    async fn term(&self, stored: &Stored) -> Option<i64> {
        let reserved = stored.origin.grant.is_none() && stored.record.lease.is_ok();
        if reserved { None } else { Some(self.grant().await.id) }
    }

    pub(super) async fn new_own(
        &self,
        claimant: &Claimant<'_>,
        subnets: Vec<Prefix>,
        value: &[u8],
    ) -> Own {
        if !claimant.has_stayed() {
            self.leave_previous_grant().await;
        }
        Own {
            id: key::encode(&subnets),
            subnets,
            value: value.to_vec(),
            intended: value.to_vec(),
            grant: Some(self.grant().await.id),
            created: 0,
            mod_revision: 0,
            disputed: None,
        }
    }
}

/// Another node on our subnet, under our key or a similar one. A copy of this machine publishes
/// under our own term: it is overwritten once, and the one that is overwritten again ends.
fn rival(claimant: &Claimant<'_>, own: &Own, rivals: &[Stored]) -> Option<Error> {
    let is_ours = |held: &Holding| {
        let same_term = held.grant.is_some() && held.grant == own.grant;
        // Where no other node stands, an operator's hand slipped: the lease is still ours.
        let is_ours = !claimant.is_of_another(held) || (same_term && !own.is_disputed());
        held.id == own.id && is_ours
    };
    let mut holdings = rivals.iter().filter_map(Stored::holding);
    let rival = holdings.find(|held| !is_ours(held))?;
    Some(claimant.taken(*own.subnets.first()?, &rival))
}

fn is_of_another(claimant: &Claimant<'_>, stored: &Stored) -> bool {
    stored.holding().is_some_and(|held| claimant.is_of_another(&held))
}

fn lease(own: &Own, attributes: &LeaseAttributes) -> Lease {
    Lease {
        id: own.id.clone(),
        endpoints: attributes.published_for(own.subnets.iter().copied()),
        created: own.created,
        grant: own.grant,
    }
}
