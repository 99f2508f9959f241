//! The history of leases in etcd: a watch that is resumed where it was interrupted.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Error, Event, EventType, ResponseHeader, WatchOptions, WatchResponse, WatchStream,
};
use futures::future::try_join_all;
use tokio::time::timeout;
use tweed_client::failover::{Failure, Refusal};
use tweed_client::watch::{Interrupted, Listed, Source};

use super::client::{Client, Connection, revision};
use super::ours::{Ours, Own};
use super::startup::Proof;
use super::store::{Listing, Stored};
use super::{EtcdSubnetManager, key};
use crate::model::lease::{LeaseId, LeaseUpdate};
use crate::store::snapshot;

/// The listing of all leases at the start, which the watch uses as its first snapshot.
#[derive(Debug, Default)]
pub(super) enum FirstListing {
    #[default]
    Wanted,
    Kept(Listing),
    Used,
}

impl FirstListing {
    pub(super) fn keep(&mut self, listing: Listing) {
        match self {
            Self::Wanted | Self::Kept(_) => *self = Self::Kept(listing),
            Self::Used => {}
        }
    }

    fn take(&mut self) -> Option<Listing> {
        match mem::replace(self, Self::Used) {
            Self::Kept(listing) => Some(listing),
            Self::Wanted | Self::Used => None,
        }
    }
}

pub(super) struct EtcdSource {
    manager: Arc<EtcdSubnetManager>,
    /// The revision up to which all changes are known.
    revision: i64,
    /// Changes of leases that can be read again.
    known: KnownChanges,
    /// The revision of the newest change of a lease that is known.
    changed: i64,
    /// Whether the history between that and `revision` is compacted.
    is_compacted: bool,
    /// The cluster and the raft term in which that revision was read.
    era: Option<Era>,
    open: Option<Watch>,
    /// Whether a watch was open before: history may have been lost since.
    reopened: bool,
    /// The keys whose values are too long for a lease.
    oversized: BTreeSet<LeaseId>,
}

/// What a key of a lease became at a revision.
struct KeyChange {
    id: LeaseId,
    revision: i64,
    /// Empty if it is malformed; none if it was deleted.
    value: Option<Vec<u8>>,
}

impl KeyChange {
    /// None for a key that may not be read again: one that reserves nothing, or has a large value.
    fn of(id: &LeaseId, revision: i64, stored: Option<&Stored>) -> Option<Self> {
        let is_large = stored.is_some_and(|stored| stored.is_oversized);
        let value = stored.map(|stored| stored.value.clone());
        let is_lease = !key::claimed(id).is_empty() && !is_large;
        is_lease.then(|| Self { id: id.clone(), revision, value })
    }

    /// Our last write.
    fn written(own: &Own) -> Self {
        Self { id: own.id.clone(), revision: own.mod_revision, value: Some(own.value.clone()) }
    }

    /// Whether the history in which `stored` is this key at this revision has this change.
    fn is_in_history_of(&self, stored: Option<&Stored>) -> bool {
        let written = stored.map(|stored| (stored.mod_revision, &stored.value));
        written == self.value.as_ref().map(|value| (self.revision, value))
    }
}

/// The newest known change of each of some leases, in the order of revisions.
#[derive(Default)]
struct KnownChanges(Vec<KeyChange>);

impl KnownChanges {
    /// After the restore of a backup, the nodes write in an order of their own: the newest change, or
    /// two of them, may be the same as before by chance.
    const MOST: usize = 4;

    fn of(listing: &Listing) -> Self {
        let mut stored: Vec<&Stored> = listing.stored.iter().collect();
        stored.sort_unstable_by_key(|it| Reverse(it.mod_revision));
        let change = |it: &Stored| KeyChange::of(&it.record.id, it.mod_revision, Some(it));
        let mut newest: Vec<_> = stored.into_iter().filter_map(change).take(Self::MOST).collect();
        newest.reverse();
        Self(newest)
    }

    /// Without a change that can be read again, the lease is not compared any more.
    fn note(&mut self, id: &LeaseId, change: Option<KeyChange>) {
        self.0.retain(|known| known.id != *id);
        self.0.extend(change);
        let older = self.0.len().saturating_sub(Self::MOST);
        self.0.drain(..older);
    }

    /// Whether the history in which these leases are as in `found` has all changes.
    fn are_in_history_of(&self, found: &[Option<Stored>]) -> bool {
        self.0.iter().zip(found).all(|(change, found)| change.is_in_history_of(found.as_ref()))
    }
}

/// A period in which the revisions of a store only grow. A restored backup starts a new one, as
/// does each new leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Era {
    cluster: u64,
    term: u64,
}

impl Era {
    /// None if a proxy omits it.
    fn of(header: &ResponseHeader) -> Option<Self> {
        let era = Self { cluster: header.cluster_id(), term: header.raft_term() };
        (era.cluster != 0).then_some(era)
    }

    /// Whether the history of the store continues from this era to `now`.
    fn check_continuity(self, now: Self) -> Result<(), Interrupted> {
        if now.cluster != self.cluster || now.term < self.term {
            // This is another store.
            Err(Interrupted::Gap)
        } else if now.term > self.term {
            // There was an election, or the store was restored and has had elections since.
            Err(Interrupted::PossibleGap)
        } else {
            Ok(())
        }
    }
}

/// A watch of etcd that ends if its server is silent, since a proxy may keep it open without one.
pub(super) struct Watch {
    /// In sentences.
    name: &'static str,
    connection: Connection,
    stream: WatchStream,
    /// The revision from which it has all changes.
    start: i64,
    /// Whether the server has not answered the last ping yet.
    is_pinged: bool,
}

/// After this time without a message, the server is pinged.
const SILENCE: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// The range of a ping: a watch of no keys, which every server refuses at once. `etcd grpc-proxy` does
/// not answer a request for progress.
const NO_KEYS: (&str, &str) = ("b", "a");

/// The id of a refused watch.
const NO_WATCH: i64 = -1;

/// How many revisions before the known one a watch begins again, as far as these changed no lease. The
/// revisions of a backup, restored while a watch was closed, may have reached the known one. `etcd
/// grpc-proxy` loses events of watches that begin over 1,000 revisions in the past.
const OVERLAP: i64 = 500;

/// The maximum number of keys with too large values that are named.
const NAMED: usize = 3;

impl Source for EtcdSource {
    type Update = LeaseUpdate;

    async fn list(&mut self) -> Result<Listed<LeaseUpdate>, Interrupted> {
        (self.open, self.era) = (None, None);
        let first = self.manager.first.lock().await.take();
        // What was listed before our lease was written may be of another history than our lease.
        let is_shown = |listing: &Listing| self.manager.ours.borrow().is_shown_by(listing);
        self.reopened = first.as_ref().is_some_and(|listing| !is_shown(listing));
        let listing = match first {
            Some(listing) => listing,
            None => self.list_again().await?,
        };
        self.revision = listing.revision;
        self.known = KnownChanges::of(&listing);
        self.changed = listing.newest().map_or(0, |newest| newest.mod_revision);
        self.is_compacted = false;
        let oversized = listing.stored.iter().filter(|stored| stored.is_oversized);
        self.oversized = oversized.map(|stored| stored.record.id.clone()).collect();
        self.report_oversized();
        Ok(snapshot(listing.stored.into_iter().map(|stored| stored.record).collect()))
    }

    async fn follow(&mut self) -> Result<Vec<LeaseUpdate>, Interrupted> {
        loop {
            let mut open = match self.open.take() {
                Some(open) => open,
                None => self.reopen().await?,
            };
            let response = self.next(&mut open).await?;
            if response.compact_revision() != 0 && open.start <= self.revision {
                self.is_compacted = true;
                continue;
            }
            let updates = self.absorb(&open, &response).await?;
            self.open = Some(open);
            if !updates.is_empty() {
                return Ok(updates);
            }
        }
    }
}

impl EtcdSource {
    pub(super) fn new(manager: Arc<EtcdSubnetManager>) -> Self {
        Self {
            manager,
            revision: 0,
            known: KnownChanges::default(),
            changed: 0,
            is_compacted: false,
            era: None,
            open: None,
            reopened: false,
            oversized: BTreeSet::new(),
        }
    }

    fn client(&self) -> &Client {
        &self.manager.store.client
    }

    async fn list_again(&self) -> Result<Listing, Interrupted> {
        let EtcdSubnetManager { store, ours, .. } = &*self.manager;
        let mut may_wait = store.client.is_busy().await;
        loop {
            let own = ours.borrow().own.clone();
            let listing = if mem::take(&mut may_wait) {
                let known = self.revision;
                let written = own.as_ref().filter(|own| !own.is_restored);
                store.list_queued(written.map(|own| Proof { own, known })).await
            } else {
                store.read_all().await.map_err(|failure| self.interrupted(failure))?
            };
            // The listing may lack what this node has published meanwhile.
            if ours.borrow().own == own {
                ours.send_if_modified(|ours| ours.see_all(&listing, self.revision));
                return Ok(listing);
            }
        }
    }

    fn interrupted(&self, failure: Failure) -> Interrupted {
        self.client().report.interrupted(failure)
    }

    async fn reopen(&mut self) -> Result<Watch, Interrupted> {
        let reopened = mem::replace(&mut self.reopened, true);
        let overlap = if reopened && !self.is_compacted { OVERLAP } else { 0 };
        let start = self.changed.max(self.revision - overlap) + 1;
        let key = self.manager.store.layout.subnets.as_str();
        let options = WatchOptions::new().with_prefix().with_progress_notify();
        let opened = self.client().once(|connection| async move {
            let mut watch = Watch::open("watch", connection, (key, start), options).await?;
            let created = watch.stream.message().await?;
            Ok((watch, created))
        });
        let (open, created) = opened.await.map_err(|it| self.interrupted(it))?;
        let Some(created) = created else { return Err(Interrupted::Unreachable) };
        self.check_canceled(&open, &created).await?;
        if revision(created.header()) < self.revision {
            return Err(Interrupted::Gap);
        }
        // A restore from now on ends the watch.
        if reopened {
            self.check_own().await?;
        }
        self.client().report.withholds_leases(None);
        if let Err(interrupted) = self.enter(created.header()) {
            self.open = (interrupted == Interrupted::PossibleGap).then_some(open);
            return Err(interrupted);
        }
        if reopened {
            self.check_known().await?;
        }
        Ok(open)
    }

    /// Compares the era, since the revisions of a store that was restored from a backup may have
    /// reached ours: then the watch would continue without an error.
    fn enter(&mut self, header: Option<&ResponseHeader>) -> Result<(), Interrupted> {
        let Some(now) = header.and_then(Era::of) else { return Ok(()) };
        self.era.replace(now).map_or(Ok(()), |before| before.check_continuity(now))
    }

    /// Checks that our own lease was created at the same revision, and has what we wrote last, or
    /// had it before another machine overwrote it. This detects a store that was wiped or restored,
    /// even if its revisions have reached ours.
    async fn check_own(&self) -> Result<(), Interrupted> {
        let EtcdSubnetManager { store, ours, .. } = &*self.manager;
        loop {
            let own = ours.borrow().own.clone();
            let Some(known) = &own else { return Ok(()) };
            let read = store.read_once(&known.id, 0).await;
            let (stored, revision) = read.map_err(|failure| self.interrupted(failure))?;
            let is_same = |it: &&Stored| it.origin.created == known.created;
            let continues = match stored.as_ref().filter(is_same) {
                Some(stored) if known.wrote(stored) => true,
                // The watch reports each machine that has overwritten it; a listing only the last.
                Some(_) => {
                    let written = KeyChange::written(known);
                    let read = store.read_once(&written.id, written.revision).await;
                    self.past(read)?.is_some_and(|(it, _)| written.is_in_history_of(it.as_ref()))
                }
                None => false,
            };
            // Otherwise, this node may have published what was read.
            if ours.borrow().own == own {
                let continues = continues && revision >= self.revision;
                return continues.then_some(()).ok_or(Interrupted::Gap);
            }
        }
    }

    /// Checks that the known changes are in the history: our own lease may be the same in a backup. After
    /// an election all leases are listed anyway.
    async fn check_known(&self) -> Result<(), Interrupted> {
        let store = &self.manager.store;
        let Some(newest) = self.known.0.last() else { return Ok(()) };
        let reads = self.known.0.iter().map(|it| store.read_once(&it.id, newest.revision));
        let continues = if let Some(found) = self.past(try_join_all(reads).await)? {
            let found: Vec<_> = found.into_iter().map(|(stored, _)| stored).collect();
            self.known.are_in_history_of(&found)
        } else {
            let read = store.read_once(&newest.id, 0).await;
            let (stored, _) = read.map_err(|failure| self.interrupted(failure))?;
            stored.is_none_or(|stored| stored.mod_revision >= newest.revision)
        };
        continues.then_some(()).ok_or(Interrupted::Gap)
    }

    /// What was read at a revision; none if the history there is compacted, or not written yet.
    fn past<T>(&self, read: Result<T, Failure>) -> Result<Option<T>, Interrupted> {
        match read {
            Ok(read) => Ok(Some(read)),
            Err(Failure::Refused(Refusal::NoHistory)) => Ok(None),
            Err(failure) => Err(self.interrupted(failure)),
        }
    }

    /// A watch that the server cancelled stays open without messages.
    async fn check_canceled(
        &self,
        open: &Watch,
        response: &WatchResponse,
    ) -> Result<(), Interrupted> {
        if response.compact_revision() != 0 {
            return Err(Interrupted::Gap);
        }
        if response.canceled() {
            // An expired token is reported here, not as an error; a new connection gets a new one.
            open.end(self.client(), &format!("refused: {}", response.cancel_reason())).await;
            return Err(Interrupted::Unreachable);
        }
        Ok(())
    }

    async fn next(&self, open: &mut Watch) -> Result<WatchResponse, Interrupted> {
        open.next(self.client()).await.map_err(|failure| match failure {
            // A listing requests smaller pages.
            Failure::Refused(Refusal::TooLarge(_)) => Interrupted::Gap,
            failure => self.interrupted(failure),
        })
    }

    async fn absorb(
        &mut self,
        open: &Watch,
        response: &WatchResponse,
    ) -> Result<Vec<LeaseUpdate>, Interrupted> {
        self.check_canceled(open, response).await?;
        // An open watch loses no history.
        let _ = self.enter(response.header());
        let updates = response.events().iter().filter_map(|event| self.update(event)).collect();
        let revision = match response.events().last().and_then(Event::kv) {
            Some(kv) => kv.mod_revision(),
            None => revision(response.header()),
        };
        self.revision = self.revision.max(revision);
        Ok(updates)
    }

    fn update(&mut self, event: &Event) -> Option<LeaseUpdate> {
        let kv = event.kv()?;
        let id = self.manager.store.layout.lease_id(kv.key())?;
        let stored = match event.event_type() {
            EventType::Put => self.manager.store.stored(kv),
            EventType::Delete => None,
        };
        let is_news = match &stored {
            Some(stored) if stored.is_oversized => self.oversized.insert(id.clone()),
            Some(_) | None => self.oversized.remove(&id),
        };
        if is_news {
            self.report_oversized();
        }
        let see = |ours: &mut Ours| ours.see(&id, stored.as_ref(), kv.mod_revision());
        self.manager.ours.send_if_modified(see);
        self.changed = self.changed.max(kv.mod_revision());
        self.known.note(&id, KeyChange::of(&id, kv.mod_revision(), stored.as_ref()));
        Some(stored.map_or(LeaseUpdate::Remove(id), |stored| LeaseUpdate::Put(stored.record)))
    }

    fn report_oversized(&self) {
        let layout = &self.manager.store.layout;
        let keys = self.oversized.iter().take(NAMED).map(|id| layout.lease_key(id));
        let keys = keys.collect::<Vec<_>>().join(", ");
        let more = self.oversized.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let sentence =
            format!("the values of these keys are too large for leases: {keys}{more}; delete them");
        self.client().report.holds((!self.oversized.is_empty()).then_some(sentence));
    }
}

impl Watch {
    pub(super) async fn open(
        name: &'static str,
        connection: Connection,
        (key, start): (&str, i64),
        options: WatchOptions,
    ) -> Result<Self, Error> {
        let options = options.with_start_revision(start);
        let stream = connection.watches().watch(key, Some(options)).await?;
        Ok(Self { name, connection, stream, start, is_pinged: false })
    }

    /// The next message of the server that `client` uses.
    pub(super) async fn next(&mut self, client: &Client) -> Result<WatchResponse, Failure> {
        Err(match self.message().await {
            Some(Ok(Some(message))) => return Ok(message),
            Some(Ok(None)) => self.end(client, "ended").await,
            Some(Err(error)) => client.failed(&self.connection, &error).await,
            None => self.end(client, "received no message").await,
        })
    }

    /// Uses another server, for what has become of this watch.
    pub(super) async fn end(&self, client: &Client, outcome: &str) -> Failure {
        let reason = format!("{} {outcome}", self.name);
        client.drop_connection(&self.connection, &reason).await
    }

    /// The next message; none if there is none, even after a ping.
    async fn message(&mut self) -> Option<Result<Option<WatchResponse>, Error>> {
        loop {
            let longest = if self.is_pinged { PING_TIMEOUT } else { SILENCE };
            match timeout(longest, self.stream.message()).await {
                Ok(Ok(Some(message))) if self.is_pinged && message.watch_id() == NO_WATCH => {
                    self.is_pinged = false;
                }
                Ok(message) => return Some(message),
                Err(_) if self.is_pinged => return None,
                Err(_) => {
                    self.is_pinged = true;
                    let (key, end) = NO_KEYS;
                    let ping = WatchOptions::new().with_range(end);
                    if let Err(error) = self.stream.watch(key, Some(ping)).await {
                        return Some(Err(error));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::etcd::value::Origin;

    #[test]
    fn a_change_is_in_the_history_that_has_it_at_its_revision() {
        let id = LeaseId::new("10.5.3.0-24");
        let stored = |node: u8, revision| {
            let value = format!(r#"{{"PublicIP":"10.0.0.{node}"}}"#);
            Stored::new(id.clone(), value.as_bytes(), Origin { created: 5, grant: None }, revision)
        };
        let (put, other) = (stored(1, 9), stored(2, 9));
        let written = KeyChange::of(&id, 9, Some(&put)).unwrap();
        let found = [Some(put), Some(other), Some(stored(1, 8)), None];
        assert_eq!(
            found.map(|it| written.is_in_history_of(it.as_ref())),
            [true, false, false, false]
        );
        let deleted = KeyChange::of(&id, 9, None).unwrap();
        let found = [None, Some(stored(1, 8))];
        assert_eq!(found.map(|it| deleted.is_in_history_of(it.as_ref())), [true, false]);
        assert!(KeyChange::of(&LeaseId::new("\u{fffd}"), 9, None).is_none());
    }

    /// A restored backup may have the newest change again, at the same revision.
    #[test]
    fn one_equal_change_makes_no_history() {
        let stored = |subnet: u8, revision| {
            let value = format!(r#"{{"PublicIP":"10.0.0.{subnet}"}}"#);
            let id = LeaseId::new(format!("10.5.{subnet}.0-24"));
            Stored::new(id, value.as_bytes(), Origin { created: 5, grant: None }, revision)
        };
        let listing = Listing { stored: vec![stored(1, 35), stored(2, 34)], revision: 40 };
        let known = KnownChanges::of(&listing);
        assert_eq!(known.0.iter().map(|it| it.revision).collect::<Vec<_>>(), [34, 35]);
        assert!(known.are_in_history_of(&[Some(stored(2, 34)), Some(stored(1, 35))]));
        assert!(!known.are_in_history_of(&[Some(stored(2, 33)), Some(stored(1, 35))]));

        let mut known = known;
        let second = LeaseId::new("10.5.2.0-24");
        known.note(&second, KeyChange::of(&second, 36, None));
        assert!(known.are_in_history_of(&[Some(stored(1, 35)), None]));
        known.note(&second, None);
        assert_eq!(known.0.len(), 1, "it has a value that is too large");
        for subnet in 10..20 {
            let stored = stored(subnet, i64::from(subnet) + 30);
            let id = &stored.record.id;
            known.note(id, KeyChange::of(id, stored.mod_revision, Some(&stored)));
        }
        assert_eq!(known.0.first().map(|it| it.revision), Some(46), "the newest ones are kept");
    }

    #[test]
    fn revisions_of_another_cluster_or_an_earlier_term_are_a_gap() {
        let era = |cluster, term| Era { cluster, term };
        assert_eq!(era(7, 3).check_continuity(era(7, 3)), Ok(()));
        assert_eq!(era(7, 3).check_continuity(era(7, 4)), Err(Interrupted::PossibleGap));
        assert_eq!(era(7, 3).check_continuity(era(7, 2)), Err(Interrupted::Gap));
        assert_eq!(era(7, 3).check_continuity(era(8, 3)), Err(Interrupted::Gap));
        assert_eq!(era(7, 3).check_continuity(era(8, 9)), Err(Interrupted::Gap));
    }
}
