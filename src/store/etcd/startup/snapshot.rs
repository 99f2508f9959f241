//! Shares one node's listing of all leases with other nodes while etcd is busy.

use etcd_client::{Compare, CompareOp, Error, GetOptions, KeyValue, PutOptions, Txn, TxnOp};
use tracing::debug;
use tweed_client::failover::Failure;

use super::codec::{self, Unreadable};
use crate::store::etcd::client::{Connection, revision};
use crate::store::etcd::connect::{is_unwelcome, unless_denied};
use crate::store::etcd::ours::Own;
use crate::store::etcd::store::{Listing, Store, Stored, unchanged};

/// What a snapshot must be consistent with to be accepted.
#[derive(Clone, Copy, Debug)]
pub(in crate::store::etcd) struct Proof<'a> {
    /// Our lease as last written: a snapshot that contains it is of this store, and recent.
    pub(in crate::store::etcd) own: &'a Own,
    /// The revision up to which all changes are known.
    pub(in crate::store::etcd) known: i64,
}

/// The result of one poll of etcd.
#[derive(Debug, Default)]
pub(in crate::store::etcd) struct Look {
    pub(in crate::store::etcd) snapshot: Option<Listing>,
    /// The store's revision.
    pub(in crate::store::etcd) revision: i64,
}

/// Why a snapshot is rejected.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Unfit {
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    #[error(
        "it contains revision {read}, but was written at {written}: the store has lost data since"
    )]
    Ahead { read: i64, written: i64 },
    #[error("{0} changes may have followed")]
    Behind(i64),
    #[error("it does not contain our own lease as written")]
    Strange,
}

/// With fewer leases, a snapshot is not faster than a listing.
const WORTHWHILE: usize = 500;

/// One in this number of leases may have changed since; more changes cost as much as a listing.
const TOLERABLE: usize = 10;

/// Short, because no node needs the snapshot once all have started.
const TTL_SECONDS: i64 = 300;

impl Store {
    /// Reads the snapshot only if there is a `proof` to check it with.
    pub(in crate::store::etcd) async fn look(
        &self,
        proof: Option<Proof<'_>>,
    ) -> Result<Look, Failure> {
        let key = self.layout.snapshot.clone();
        // etcd does not send older ones.
        let from = proof.map_or(i64::MAX, |proof| proof.own.mod_revision.max(proof.known) + 1);
        let options = GetOptions::new().with_min_mod_revision(from);
        let ask = |connection: Connection| async move {
            unless_denied(connection.kv().get(key, Some(options)).await)
        };
        let Some(answer) = self.client.once(ask).await? else { return Ok(Look::default()) };
        let revision = revision(answer.header());
        let found = answer.kvs().first().zip(proof);
        let snapshot = found.and_then(|(kv, proof)| fit(kv, revision, proof));
        Ok(Look { snapshot, revision })
    }

    /// Writes `listing` for other nodes, unless another node has done so after revision `looked`.
    /// Failures are ignored, since nothing depends on it.
    pub(in crate::store::etcd) async fn share(&self, listing: &Listing, looked: i64) {
        if listing.stored.len() < WORTHWHILE {
            return;
        }
        let Some(snapshot) = codec::encode(listing) else { return };
        let transaction = self.replacing(listing, looked);
        let key = self.layout.snapshot.clone();
        let ask = |connection| write(connection, key, snapshot, transaction);
        let outcome = self.client.once(ask).await;
        debug!(revision = listing.revision, ?outcome, "wrote a snapshot of all leases");
    }

    /// The condition: no other node has written a snapshot, and the store still has the newest
    /// lease. Thus a store that was wiped meanwhile gets no snapshot of the former one.
    fn replacing(&self, listing: &Listing, looked: i64) -> Txn {
        let key = |stored: &Stored| self.layout.lease_key(&stored.record.id);
        let newest = listing.newest().map(|it| unchanged(key(it), it.mod_revision));
        let unseen = CompareOp::Less;
        let first = Compare::mod_revision(self.layout.snapshot.clone(), unseen, looked + 1);
        Txn::new().when(newest.into_iter().chain([first]).collect::<Vec<_>>())
    }
}

/// Returns whether it was written.
async fn write(
    connection: Connection,
    key: String,
    snapshot: Vec<u8>,
    transaction: Txn,
) -> Result<bool, Error> {
    let grant = connection.leases().grant(TTL_SECONDS, None).await?.id();
    let put = TxnOp::put(key, snapshot, Some(PutOptions::new().with_lease(grant)));
    match connection.kv().txn(transaction.and_then([put])).await {
        Err(error) if is_unwelcome(&error) => Ok(false),
        answer => Ok(answer?.succeeded()),
    }
}

/// The leases in `kv`, if they are accepted while etcd is at `revision`.
fn fit(kv: &KeyValue, revision: i64, proof: Proof<'_>) -> Option<Listing> {
    match listing(kv.value(), kv.mod_revision(), revision, proof) {
        Ok(listing) => Some(listing),
        Err(reason) => {
            debug!(%reason, "ignoring the snapshot of all leases");
            None
        }
    }
}

/// The leases in `snapshot`, which was written at revision `written` and read at revision `now`.
fn listing(snapshot: &[u8], written: i64, now: i64, proof: Proof<'_>) -> Result<Listing, Unfit> {
    let listing = codec::decode(snapshot)?;
    let read = listing.revision;
    if read >= written || written > now {
        return Err(Unfit::Ahead { read, written });
    }
    let behind = now.saturating_sub(read);
    if usize::try_from(behind).map_or(true, |behind| behind > listing.stored.len() / TOLERABLE) {
        return Err(Unfit::Behind(behind));
    }
    let own = proof.own;
    let shows = listing.get(&own.id).is_some_and(|it| it.mod_revision == own.mod_revision);
    if shows && read >= proof.known { Ok(listing) } else { Err(Unfit::Strange) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::lease::LeaseId;
    use crate::store::etcd::store::Stored;
    use crate::store::etcd::value::Origin;

    /// Lease number `number`, last written at revision `mod_revision`.
    fn stored(number: u16, mod_revision: i64) -> Stored {
        let [high, low] = number.to_be_bytes();
        let id = LeaseId::new(format!("10.{high}.{low}.0-24"));
        let origin = Origin { created: 1, grant: Some(7) };
        Stored::new(id, br#"{"PublicIP":"10.0.0.1"}"#, origin, mod_revision)
    }

    /// Our lease, number 3, written at revision 50.
    fn own() -> Own {
        let stored = stored(3, 50);
        Own {
            id: stored.record.id,
            value: stored.value.clone(),
            intended: stored.value,
            grant: Some(7),
            created: 1,
            mod_revision: 50,
            is_restored: false,
            disputed: None,
        }
    }

    /// The result for 200 leases, listed at revision `read`, written at `written` and read at
    /// `now`.
    fn judged(read: i64, written: i64, now: i64) -> Result<usize, Unfit> {
        judged_by(Proof { own: &own(), known: 50 }, read, written, now)
    }

    fn judged_by(proof: Proof<'_>, read: i64, written: i64, now: i64) -> Result<usize, Unfit> {
        let stored = (0..200).map(|number| stored(number, 50)).collect();
        let snapshot = codec::encode(&Listing { stored, revision: read }).unwrap();
        listing(&snapshot, written, now, proof).map(|listing| listing.stored.len())
    }

    #[test]
    fn a_snapshot_with_our_own_lease_is_accepted() {
        assert_eq!(judged(50, 51, 51), Ok(200));
        assert_eq!(judged(100, 105, 120), Ok(200));
    }

    #[test]
    fn a_tenth_of_the_leases_may_have_changed_since() {
        assert_eq!(judged(100, 101, 121), Err(Unfit::Behind(21)));
        assert_eq!(judged(100, 101, i64::MAX), Err(Unfit::Behind(i64::MAX - 100)));
    }

    #[test]
    fn a_snapshot_must_be_listed_before_it_was_written() {
        assert_eq!(judged(100, 100, 120), Err(Unfit::Ahead { read: 100, written: 100 }));
        assert_eq!(judged(100, 7, 120), Err(Unfit::Ahead { read: 100, written: 7 }));
    }

    #[test]
    fn a_snapshot_with_another_version_of_our_lease_is_rejected() {
        let own = Own { mod_revision: 51, ..own() };
        assert_eq!(judged_by(Proof { own: &own, known: 51 }, 60, 61, 61), Err(Unfit::Strange));
        let own = Own { id: LeaseId::new("10.9.9.0-24"), ..self::own() };
        assert_eq!(judged_by(Proof { own: &own, known: 50 }, 60, 61, 61), Err(Unfit::Strange));
    }

    #[test]
    fn a_snapshot_older_than_our_knowledge_is_rejected() {
        let own = own();
        assert_eq!(judged_by(Proof { own: &own, known: 61 }, 60, 61, 61), Err(Unfit::Strange));
    }
}
