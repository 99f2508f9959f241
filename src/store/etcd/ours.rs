//! Our lease as written, as it is in etcd, and whether the two are the same.

use std::net::IpAddr;

use tokio::time::Instant;

use super::key;
use super::store::{Listing, Stored};
use super::value::{self, Origin};
use crate::model::lease::{Endpoint, LeaseId};
use crate::model::prefix::Prefix;
use crate::store::claim::{Claimant, HeldLease, have_common};
use crate::store::hold::RELATED_LOSSES;
use crate::store::{AddressConflict, Lost};

/// Our lease as written, and its key as last read.
#[derive(Clone, Debug, Default)]
pub(super) struct Ours {
    pub(super) own: Option<Own>,
    seen: Option<SeenKey>,
    /// The lease of the machine that overwrote ours again, after we had overwritten its own. A
    /// third machine may have overwritten that one since.
    pub(super) overwritten_again_by: Option<HeldLease>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Own {
    pub(super) id: LeaseId,
    pub(super) value: Vec<u8>,
    /// The value of a transaction that may have been executed, but has no answer yet.
    pub(super) intended: Vec<u8>,
    /// None for a reservation.
    pub(super) grant: Option<i64>,
    pub(super) created: u64,
    /// The revision of our last write.
    pub(super) mod_revision: i64,
    /// Whether the store was restored from a backup since then, so that lower revisions are newer.
    pub(super) is_restored: bool,
    /// The last time that we overwrote a lease of another machine under our own etcd lease.
    pub(super) disputed: Option<Dispute>,
}

/// Two machines write under one etcd lease: one is a copy of the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dispute {
    since: Instant,
    /// The public IPs of the other machine.
    with: Vec<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct SeenKey {
    revision: i64,
    /// None if the key does not exist.
    stored: Option<Stored>,
}

impl Own {
    /// The lease `id` before it is written with `value`, under the etcd lease `grant`.
    pub(super) fn unwritten(id: LeaseId, value: &[u8], grant: Option<i64>) -> Self {
        let (value, intended) = (value.to_vec(), value.to_vec());
        let (created, mod_revision, is_restored, disputed) = (0, 0, false, None);
        Self { id, value, intended, grant, created, mod_revision, is_restored, disputed }
    }
}

impl Ours {
    /// Notes the key `id` at `revision`. Returns whether it is the key of our lease.
    pub(super) fn see(&mut self, id: &LeaseId, stored: Option<&Stored>, revision: i64) -> bool {
        let is_ours = self.own.as_ref().is_some_and(|own| own.id == *id);
        if is_ours {
            let is_news = |own: &&Own| revision > own.mod_revision;
            let written = self.own.as_ref().filter(is_news).zip(stored);
            // The watch may report our own write before its answer arrives.
            let others = written.filter(|(own, stored)| !own.wrote(stored));
            let again = others.and_then(|(own, stored)| own.dispute_in(stored));
            self.overwritten_again_by = again.or(self.overwritten_again_by.take());
            self.seen = Some(SeenKey { revision, stored: stored.cloned() });
        }
        is_ours
    }

    /// Whether `listing` has our lease as we wrote it last, if we have one.
    pub(super) fn is_shown_by(&self, listing: &Listing) -> bool {
        self.own.as_ref().is_none_or(|own| own.is_shown_by(listing))
    }

    /// Notes a listing of all leases. `known` is the revision known before.
    pub(super) fn see_all(&mut self, listing: &Listing, known: i64) -> bool {
        let Some(own) = &mut self.own else { return false };
        let id = own.id.clone();
        let stored = listing.get(&id);
        let shows_our_write = own.is_shown_by(listing);
        let is_older = stored.is_some_and(|stored| stored.mod_revision < own.mod_revision);
        // Changes before our write are ignored, unless revisions have restarted: then they are
        // lower, or the same without our write, or our lease is older than our write.
        own.is_restored |= !shows_our_write
            && (is_older
                || listing.revision < known.max(own.mod_revision)
                || listing.revision == own.mod_revision);
        self.see(&id, stored, listing.revision)
    }

    /// Why the lease is lost, if it is.
    pub(super) fn loss(&self) -> Option<Lost> {
        let (own, seen) = self.own.as_ref().zip(self.seen.as_ref())?;
        let is_news = own.is_restored || seen.revision > own.mod_revision;
        match &seen.stored {
            Some(stored) if is_news && !own.wrote(stored) => {
                Some(Lost { reason: own.loss_to(stored), rival: own.rival(stored) })
            }
            None if is_news => Some(Lost::because(format!("key {} is gone", own.id))),
            Some(_) | None => None,
        }
    }
}

impl Own {
    pub(super) fn subnets(&self) -> Vec<Prefix> {
        key::claimed(&self.id)
    }

    /// Whether `stored` is the result of our write.
    pub(super) fn has_written(&self, stored: &Stored) -> bool {
        let same_key = stored.record.id == self.id;
        same_key && stored.value == self.intended && stored.origin.grant == self.grant
    }

    /// Whether `stored` is what we published. Without the etcd lease, an operator has made it a
    /// reservation.
    pub(super) fn wrote(&self, stored: &Stored) -> bool {
        let value = stored.value == self.value || stored.value == self.intended;
        value && (stored.origin.grant == self.grant || stored.origin.grant.is_none())
    }

    fn is_shown_by(&self, listing: &Listing) -> bool {
        let is_ours = |it: &Stored| it.mod_revision == self.mod_revision && self.wrote(it);
        listing.get(&self.id).is_some_and(is_ours)
    }

    /// Whether a backup restored `stored`, and we wrote the same key after that backup.
    pub(super) fn overwrote(&self, stored: &Stored) -> bool {
        let is_older = stored.mod_revision < self.mod_revision;
        is_older && stored.record.id == self.id && stored.origin.created == self.created
    }

    fn loss_to(&self, stored: &Stored) -> String {
        if self.overwrote(stored) {
            return format!("a backup has restored key {}", self.id);
        }
        let holder = stored.holding().map_or_else(String::new, |held| held.holder());
        format!("key {} was overwritten by {holder}", self.id)
    }

    /// The other node with our public IP that published `stored`, if any.
    fn rival(&self, stored: &Stored) -> Option<AddressConflict> {
        if self.overwrote(stored) {
            return None;
        }
        let origin = Origin { created: self.created, grant: self.grant };
        let ours = value::decode(self.id.clone(), &self.value, origin).lease.ok()?;
        let theirs = stored.record.lease.as_ref().ok().filter(|lease| lease.grant.is_some())?;
        let has_ours = |theirs: &&Endpoint| {
            ours.endpoints.iter().any(|endpoint| endpoint.public_ip == theirs.public_ip)
        };
        theirs.endpoints.iter().find(has_ours).map(AddressConflict::of)
    }

    /// The lease `stored`, if it is that of a machine whose lease we overwrote, under our etcd
    /// lease.
    fn dispute_in(&self, stored: &Stored) -> Option<HeldLease> {
        let held = stored.holding().filter(|held| held.grant.is_some() && held.grant == self.grant);
        held.filter(|held| self.is_disputed_with(&held.public_ips))
    }

    /// Whether we overwrote a lease of the machine with these public IPs a short time ago.
    pub(super) fn is_disputed_with(&self, public_ips: &[IpAddr]) -> bool {
        self.disputed.as_ref().is_some_and(|dispute| {
            dispute.since.elapsed() < RELATED_LOSSES && have_common(&dispute.with, public_ips)
        })
    }
}

impl Dispute {
    /// The dispute that begins when `claimant` overwrites `stored`; none if that is its own lease.
    pub(super) fn over(stored: &Stored, claimant: &Claimant<'_>) -> Option<Self> {
        let held = stored.holding().filter(|held| claimant.is_of_other_node(held))?;
        Some(Self { since: Instant::now(), with: held.public_ips })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUE: &[u8] = br#"{"PublicIP":"10.0.0.1"}"#;

    fn stored(value: &[u8], grant: Option<i64>, mod_revision: i64) -> Stored {
        let origin = Origin { created: 5, grant };
        let record = value::decode(LeaseId::new("10.5.3.0-24"), value, origin);
        Stored { record, value: value.to_vec(), is_oversized: false, origin, mod_revision }
    }

    fn id() -> LeaseId {
        LeaseId::new("10.5.3.0-24")
    }

    fn ours() -> Ours {
        let own = Own {
            id: id(),
            value: VALUE.to_vec(),
            intended: b"next".to_vec(),
            grant: Some(7),
            created: 5,
            mod_revision: 9,
            is_restored: false,
            disputed: None,
        };
        Ours { own: Some(own), ..Ours::default() }
    }

    /// Why our lease, written at revision 9, is lost after its key was read like this.
    fn loss(stored: Option<&Stored>, revision: i64) -> Option<String> {
        let mut ours = ours();
        assert!(ours.see(&id(), stored, revision));
        ours.loss().map(|lost| lost.reason)
    }

    fn loss_by_listing(stored: Vec<Stored>, revision: i64, known: i64) -> Option<String> {
        let mut ours = ours();
        ours.see_all(&Listing { stored, revision }, known);
        ours.loss().map(|lost| lost.reason)
    }

    const GONE: &str = "key 10.5.3.0-24 is gone";
    const OTHER: &[u8] = br#"{"PublicIP":"10.0.0.2"}"#;
    const RESTORED: &str = "a backup has restored key 10.5.3.0-24";
    const TAKEN: &str = "key 10.5.3.0-24 was overwritten by the node with public IP 10.0.0.2";

    #[test]
    fn our_own_writes_are_no_loss() {
        assert_eq!(loss(Some(&stored(VALUE, Some(7), 10)), 10), None);
        assert_eq!(loss(Some(&stored(b"next", Some(7), 10)), 10), None);
    }

    #[test]
    fn changes_before_our_write_are_no_loss() {
        assert_eq!(loss(Some(&stored(b"{}", Some(8), 8)), 8), None);
        assert_eq!(loss(None, 8), None);
        assert_eq!(loss(None, 9), None);
    }

    #[test]
    fn a_reservation_of_our_own_value_is_no_loss() {
        assert_eq!(loss(Some(&stored(VALUE, None, 10)), 10), None);
    }

    #[test]
    fn another_value_and_another_term_are_a_loss() {
        assert_eq!(loss(Some(&stored(OTHER, None, 10)), 10).as_deref(), Some(TAKEN));
        assert!(loss(Some(&stored(VALUE, Some(8), 10)), 10).is_some());
    }

    #[test]
    fn a_removed_key_is_a_loss() {
        assert_eq!(loss(None, 10).as_deref(), Some(GONE));
        assert_eq!(loss_by_listing(vec![], 10, 9).as_deref(), Some(GONE));
    }

    #[test]
    fn in_a_restored_store_old_revisions_count() {
        assert_eq!(loss_by_listing(vec![], 3, 9).as_deref(), Some(GONE));
        assert_eq!(loss_by_listing(vec![], 9, 9).as_deref(), Some(GONE));
        assert_eq!(loss_by_listing(vec![stored(VALUE, Some(7), 9)], 9, 9), None);
        let low = || vec![stored(OTHER, Some(8), 3)];
        assert_eq!(loss_by_listing(low(), 4, 2).as_deref(), Some(RESTORED));
        assert_eq!(loss_by_listing(low(), 600, 500).as_deref(), Some(RESTORED));
        let same = vec![stored(OTHER, Some(8), 9)];
        assert_eq!(loss_by_listing(same, 9, 9).as_deref(), Some(TAKEN));
    }

    #[test]
    fn our_write_in_a_restored_store_is_no_loss() {
        assert_eq!(loss_by_listing(vec![stored(VALUE, Some(7), 9)], 12, 500), None);
    }

    #[test]
    fn our_former_lease_that_a_backup_restored_is_no_rival() {
        let rival = |mod_revision| {
            let own = ours().own.unwrap();
            own.rival(&stored(VALUE, Some(8), mod_revision)).is_some()
        };
        assert_eq!([rival(8), rival(10)], [false, true]);
    }

    #[test]
    fn a_restored_lease_below_our_write_was_overwritten_by_us() {
        let own = ours().own.unwrap();
        let restored = stored(OTHER, Some(8), 8);
        let newer = Stored { mod_revision: 10, ..restored.clone() };
        let origin = Origin { created: 6, ..restored.origin };
        let created_again = Stored { origin, ..restored.clone() };
        let other_key = Stored::new(LeaseId::new("10.5.4.0-24"), OTHER, restored.origin, 8);
        let found = [&restored, &newer, &created_again, &other_key];
        assert_eq!(found.map(|it| own.overwrote(it)), [true, false, false, false]);
    }

    /// Of three machines with one etcd lease, one has overwritten the lease of the second, and sees
    /// the second overwrite it, then the third.
    #[test]
    fn a_machine_that_overwrites_ours_again_counts_even_if_a_third_overwrites_it() {
        let by = |octet: u8| format!(r#"{{"PublicIP":"10.0.0.{octet}"}}"#).into_bytes();
        let overwritten_again_by = |writes: &[(u8, i64)]| {
            let mut ours = ours();
            let disputed =
                Dispute { since: Instant::now(), with: vec!["10.0.0.2".parse().unwrap()] };
            ours.own.as_mut().unwrap().disputed = Some(disputed);
            for (octet, revision) in writes {
                ours.see(&id(), Some(&stored(&by(*octet), Some(7), *revision)), *revision);
            }
            ours.overwritten_again_by.map(|held| held.public_ips)
        };
        let second = Some(vec!["10.0.0.2".parse().unwrap()]);
        assert_eq!(overwritten_again_by(&[(2, 10)]), second);
        assert_eq!(overwritten_again_by(&[(2, 10), (3, 11)]), second);
        assert_eq!(overwritten_again_by(&[(3, 10)]), None, "the third may be a copy of ours");
        assert_eq!(overwritten_again_by(&[(2, 8)]), None, "this is the lease that we overwrote");
    }

    /// Our machine has another address than its lease, and gets that one back.
    #[test]
    fn our_own_write_is_that_of_no_other_machine() {
        let mut ours = ours();
        let with = vec!["10.0.0.1".parse().unwrap()];
        ours.own.as_mut().unwrap().disputed = Some(Dispute { since: Instant::now(), with });
        ours.see(&id(), Some(&stored(VALUE, Some(7), 10)), 10);
        assert_eq!(ours.overwritten_again_by, None);
    }

    #[test]
    fn changes_during_our_write_count_afterwards() {
        let mut ours = ours();
        ours.see(&id(), None, 11);
        let own = ours.own.clone().map(|own| Own { mod_revision: 10, ..own });
        ours.own = own;
        assert_eq!(ours.loss().unwrap().reason, GONE);
    }

    #[test]
    fn other_leases_are_ignored() {
        let mut ours = ours();
        assert!(!ours.see(&LeaseId::new("10.5.4.0-24"), None, 10));
        assert_eq!(ours.loss(), None);
    }
}
