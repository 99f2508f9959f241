//! What we hold in etcd, what etcd shows of it, and whether the two agree.

use super::store::Stored;
use crate::lease::LeaseId;
use crate::prefix::Prefix;
use crate::subnet::Lost;

/// Our lease as we wrote it, and its key as we saw it last.
#[derive(Clone, Debug, Default)]
pub(super) struct Ours {
    pub(super) own: Option<Own>,
    seen: Option<Seen>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Own {
    pub(super) id: LeaseId,
    pub(super) subnets: Vec<Prefix>,
    pub(super) value: Vec<u8>,
    /// What a transaction may have written that got no answer yet.
    pub(super) intended: Vec<u8>,
    /// None for a reservation.
    pub(super) grant: Option<i64>,
    pub(super) created: u64,
    pub(super) mod_revision: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Put(Stored),
    /// As of this revision.
    Gone(i64),
}

impl Ours {
    pub(super) fn holds(own: Own) -> Self {
        Self { own: Some(own), seen: None }
    }

    /// `value` is about to be written: to see it is no surprise.
    pub(super) fn intend(&mut self, value: &[u8]) {
        if let Some(own) = &mut self.own {
            own.intended = value.to_vec();
        }
    }

    /// Whether that is news of our lease.
    pub(super) fn see_put(&mut self, stored: &Stored) -> bool {
        let is_ours = self.is_ours(&stored.record.id);
        if is_ours {
            self.seen = Some(Seen::Put(stored.clone()));
        }
        is_ours
    }

    /// Whether that is news of our lease.
    pub(super) fn see_gone(&mut self, id: &LeaseId, revision: i64) -> bool {
        let is_ours = self.is_ours(id);
        if is_ours {
            self.seen = Some(Seen::Gone(revision));
        }
        is_ours
    }

    /// All leases there are at `revision`.
    pub(super) fn see_all(&mut self, stored: &[Stored], revision: i64) -> bool {
        let Some(own) = &self.own else { return false };
        let id = own.id.clone();
        match stored.iter().find(|stored| stored.record.id == id) {
            Some(stored) => self.see_put(stored),
            None => self.see_gone(&id, revision),
        }
    }

    /// Revisions have started over: those that we know no longer tell old from new.
    pub(super) fn forget_revisions(&mut self) -> bool {
        self.seen = None;
        if let Some(own) = &mut self.own {
            own.mod_revision = 0;
        }
        false
    }

    /// Why the lease is lost, if it is.
    pub(super) fn loss(&self) -> Option<Lost> {
        let own = self.own.as_ref()?;
        match self.seen.as_ref()? {
            Seen::Put(stored) if stored.mod_revision <= own.mod_revision || own.wrote(stored) => {
                None
            }
            Seen::Gone(revision) if *revision <= own.mod_revision => None,
            Seen::Put(stored) => Some(Lost(overwritten(stored))),
            Seen::Gone(_) => Some(Lost(format!("key {} is gone", own.id))),
        }
    }

    fn is_ours(&self, id: &LeaseId) -> bool {
        self.own.as_ref().is_some_and(|own| own.id == *id)
    }
}

impl Own {
    /// Whether `stored` is what we are about to write.
    pub(super) fn has_written(&self, stored: &Stored) -> bool {
        let same_key = stored.record.id == self.id;
        same_key && stored.value == self.intended && stored.origin.grant == self.grant
    }

    /// Whether `stored` is what we published. Without its term it is a reservation, which an
    /// operator has made of it.
    pub(super) fn wrote(&self, stored: &Stored) -> bool {
        let value = stored.value == self.value || stored.value == self.intended;
        value && (stored.origin.grant == self.grant || stored.origin.grant.is_none())
    }
}

fn overwritten(stored: &Stored) -> String {
    let holder = stored.holding().map_or_else(String::new, |held| held.holder());
    format!("key {} was overwritten by {holder}", stored.record.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subnet::etcd::value::{self, Origin};

    const VALUE: &[u8] = br#"{"PublicIP":"10.0.0.1"}"#;

    fn stored(value: &[u8], grant: Option<i64>, mod_revision: i64) -> Stored {
        let origin = Origin { created: 5, grant };
        let record = value::decode(LeaseId::new("10.5.3.0-24"), value, origin);
        Stored { record, value: value.to_vec(), origin, mod_revision }
    }

    fn ours() -> Ours {
        Ours::holds(Own {
            id: LeaseId::new("10.5.3.0-24"),
            subnets: vec!["10.5.3.0/24".parse().unwrap()],
            value: VALUE.to_vec(),
            intended: b"next".to_vec(),
            grant: Some(7),
            created: 5,
            mod_revision: 9,
        })
    }

    fn loss(see: impl FnOnce(&mut Ours) -> bool) -> Option<String> {
        let mut ours = ours();
        see(&mut ours);
        ours.loss().map(|lost| lost.0)
    }

    #[test]
    fn our_own_writes_are_no_loss() {
        assert_eq!(loss(|ours| ours.see_put(&stored(VALUE, Some(7), 10))), None);
        assert_eq!(loss(|ours| ours.see_put(&stored(b"next", Some(7), 10))), None);
    }

    #[test]
    fn what_happened_before_our_write_is_no_loss() {
        assert_eq!(loss(|ours| ours.see_put(&stored(b"{}", Some(8), 8))), None);
        assert_eq!(loss(|ours| ours.see_gone(&LeaseId::new("10.5.3.0-24"), 8)), None);
        assert_eq!(loss(|ours| ours.see_all(&[], 9)), None);
    }

    #[test]
    fn a_reservation_of_our_own_value_is_no_loss() {
        assert_eq!(loss(|ours| ours.see_put(&stored(VALUE, None, 10))), None);
    }

    #[test]
    fn another_value_and_another_term_are_a_loss() {
        let other = br#"{"PublicIP":"10.0.0.2"}"#;
        let message = "key 10.5.3.0-24 was overwritten by the node with public IP 10.0.0.2";
        assert_eq!(loss(|ours| ours.see_put(&stored(other, None, 10))).unwrap(), message);
        assert!(loss(|ours| ours.see_put(&stored(VALUE, Some(8), 10))).is_some());
    }

    #[test]
    fn a_key_that_is_gone_is_a_loss() {
        let gone = "key 10.5.3.0-24 is gone";
        assert_eq!(loss(|ours| ours.see_gone(&LeaseId::new("10.5.3.0-24"), 10)).unwrap(), gone);
        assert_eq!(loss(|ours| ours.see_all(&[], 10)).unwrap(), gone);
    }

    #[test]
    fn after_revisions_started_over_low_ones_count() {
        let lost = loss(|ours| {
            ours.forget_revisions();
            ours.see_all(&[], 3)
        });
        assert_eq!(lost.unwrap(), "key 10.5.3.0-24 is gone");
    }

    #[test]
    fn other_leases_are_none_of_our_business() {
        let mut ours = ours();
        assert!(!ours.see_gone(&LeaseId::new("10.5.4.0-24"), 10));
        assert_eq!(ours.loss(), None);
    }
}
