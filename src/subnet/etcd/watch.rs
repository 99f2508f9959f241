//! The history of leases in etcd: one watch, resumed where it broke off.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Error, Event, EventType, ResponseHeader, WatchOptions, WatchResponse, WatchStream,
};
use tokio::time::timeout;

use super::Shared;
use super::answer::{Failure, Refusal};
use super::burst::Burst;
use super::client::{Client, Connection, revision};
use super::ours::Ours;
use super::snapshot::Proof;
use super::store::Listing;
use crate::lease::{LeaseUpdate, Record};
use crate::subnet::watch::{Interrupted, Source};

/// The reading of all leases that a start needs anyway.
#[derive(Debug, Default)]
pub(super) enum First {
    #[default]
    Wanted,
    Kept(Listing),
    Used,
}

impl First {
    pub(super) fn keep(&mut self, listing: Listing) {
        match self {
            Self::Wanted | Self::Kept(_) => *self = Self::Kept(listing),
            Self::Used => {}
        }
    }

    /// Whether somebody follows the watch.
    pub(super) const fn is_used(&self) -> bool {
        matches!(self, Self::Used)
    }

    fn take(&mut self) -> Option<Listing> {
        match mem::replace(self, Self::Used) {
            Self::Kept(listing) => Some(listing),
            Self::Wanted | Self::Used => None,
        }
    }
}

pub(super) struct EtcdSource {
    shared: Arc<Shared>,
    /// The revision up to which everything is known.
    revision: i64,
    open: Option<Open>,
    /// Whether a watch was open before, so that history may have been lost since.
    reopened: bool,
    /// Whether the next watch can wait while the server is busy.
    gathers: bool,
}

struct Open {
    connection: Connection,
    stream: WatchStream,
    watch_id: i64,
    burst: Burst,
}

/// After so much silence the server is asked for a sign of life: proxies keep dead connections up.
const SILENCE: Duration = Duration::from_secs(30);
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);

impl Source for EtcdSource {
    async fn list(&mut self) -> Result<Vec<Record>, Interrupted> {
        self.open = None;
        (self.reopened, self.gathers) = (false, true);
        let first = self.shared.first.lock().await.take();
        let listing = match first {
            Some(listing) => listing,
            None => self.list_anew().await?,
        };
        self.revision = listing.revision;
        Ok(listing.stored.into_iter().map(|stored| stored.record).collect())
    }

    async fn follow(&mut self) -> Result<Vec<LeaseUpdate>, Interrupted> {
        loop {
            let mut open = match self.open.take() {
                Some(open) => open,
                None => self.reopen().await?,
            };
            let response = self.next(&mut open).await?;
            let updates = self.absorb(&open, &response).await?;
            self.gathers = open.burst.counts() && self.client().is_busy().await;
            self.open = (!self.gathers).then_some(open);
            if !updates.is_empty() {
                return Ok(updates);
            }
        }
    }
}

impl EtcdSource {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, revision: 0, open: None, reopened: false, gathers: true }
    }

    fn client(&self) -> &Client {
        &self.shared.store.client
    }

    /// What a question about all leases that brought no answer means for their history.
    fn interrupted(&self, failure: Failure) -> Interrupted {
        match failure {
            Failure::Refused(Refusal::NoRevision) => return Interrupted::Gap,
            Failure::Refused(refusal) => {
                self.client().report.away(&format!("etcd does not list the leases: {refusal}"));
            }
            Failure::Away => {}
        }
        Interrupted::Away
    }

    async fn list_anew(&self) -> Result<Listing, Interrupted> {
        let listing = if self.client().is_busy().await {
            self.list_in_turn().await?
        } else {
            self.shared.store.read_all().await.map_err(|failure| self.interrupted(failure))?
        };
        self.shared.ours.send_if_modified(|ours| ours.see_all(&listing, self.revision));
        Ok(listing)
    }

    async fn list_in_turn(&self) -> Result<Listing, Interrupted> {
        let store = &self.shared.store;
        let own = self.shared.ours.borrow().own.clone();
        let proof = own.as_ref().map(|own| Proof { own, known: self.revision });
        let listing = store.list_in_turn(proof).await;
        // What others have read need not show what we have published meanwhile.
        if self.shared.ours.borrow().own == own {
            return Ok(listing);
        }
        store.read_all().await.map_err(|failure| self.interrupted(failure))
    }

    async fn reopen(&mut self) -> Result<Open, Interrupted> {
        if mem::take(&mut self.gathers) {
            self.client().stand_back().await;
        }
        if mem::replace(&mut self.reopened, true) {
            self.check_history().await?;
        }
        let key = self.shared.store.layout.subnets.clone();
        let options = WatchOptions::new()
            .with_prefix()
            .with_progress_notify()
            .with_start_revision(self.revision + 1);
        let opened = self.client().once(|connection| async move {
            let mut stream = connection.watches().watch(key, Some(options)).await?;
            let created = stream.message().await?;
            Ok((connection, stream, created))
        });
        let (connection, stream, created) =
            opened.await.map_err(|failure| self.interrupted(failure))?;
        let Some(created) = created else { return Err(Interrupted::Away) };
        let open = Open { connection, stream, watch_id: created.watch_id(), burst: Burst::begin() };
        self.check_created(&open, &created).await?;
        Ok(open)
    }

    /// A server that was wiped or restored may have revisions as high as ours by now; but then
    /// our own lease, if it is there at all, was created in another one.
    async fn check_history(&self) -> Result<(), Interrupted> {
        let own = self.shared.ours.borrow().own.clone();
        let Some(own) = own else { return Ok(()) };
        let (stored, revision) = self
            .shared
            .store
            .read_once(&own.id)
            .await
            .map_err(|failure| self.interrupted(failure))?;
        let created = stored.map(|stored| stored.origin.created);
        let continues = revision >= self.revision && created == Some(own.created);
        continues.then_some(()).ok_or(Interrupted::Gap)
    }

    async fn check_created(&self, open: &Open, created: &WatchResponse) -> Result<(), Interrupted> {
        self.check_canceled(open, created).await?;
        let revision = revision(created.header());
        (revision >= self.revision).then_some(()).ok_or(Interrupted::Gap)
    }

    /// A watch that the server ended stays open and silent.
    async fn check_canceled(
        &self,
        open: &Open,
        response: &WatchResponse,
    ) -> Result<(), Interrupted> {
        if response.compact_revision() != 0 {
            return Err(Interrupted::Gap);
        }
        if response.canceled() {
            // A token that has run out is refused here, not as an error: a new connection gets a new one.
            let reason = format!("watch refused: {}", response.cancel_reason());
            self.client().drop_connection(&open.connection, &reason).await;
            return Err(Interrupted::Away);
        }
        Ok(())
    }

    async fn next(&self, open: &mut Open) -> Result<WatchResponse, Interrupted> {
        let message = match timeout(SILENCE, open.stream.message()).await {
            Ok(message) => Some(message),
            Err(_) => timeout(SIGN_OF_LIFE, sign_of_life(&mut open.stream)).await.ok(),
        };
        let client = self.client();
        match message {
            Some(Ok(Some(response))) => return Ok(response),
            Some(Ok(None)) => client.drop_connection(&open.connection, "watch ended").await,
            None => client.drop_connection(&open.connection, "watch is silent").await,
            Some(Err(error)) => {
                let failure = client.failed(&open.connection, &error).await;
                return Err(self.interrupted(failure));
            }
        }
        Err(Interrupted::Away)
    }

    async fn absorb(
        &mut self,
        open: &Open,
        response: &WatchResponse,
    ) -> Result<Vec<LeaseUpdate>, Interrupted> {
        self.check_canceled(open, response).await?;
        let updates = response.events().iter().filter_map(|event| self.update(event)).collect();
        let last = response.events().last().and_then(Event::kv);
        // An answer to a question of ours may overtake events; what the watch says by itself may not.
        let progress = response.header().filter(|_| response.watch_id() == open.watch_id);
        let revision = match last {
            Some(kv) => Some(kv.mod_revision()),
            None => progress.map(ResponseHeader::revision),
        };
        self.revision = self.revision.max(revision.unwrap_or(0));
        Ok(updates)
    }

    fn update(&self, event: &Event) -> Option<LeaseUpdate> {
        let kv = event.kv()?;
        match event.event_type() {
            EventType::Put => {
                let stored = self.shared.store.stored(kv)?;
                let id = &stored.record.id;
                let see = |ours: &mut Ours| ours.see(id, Some(&stored), stored.mod_revision);
                self.shared.ours.send_if_modified(see);
                Some(LeaseUpdate::Put(stored.record))
            }
            EventType::Delete => {
                let id = self.shared.store.layout.lease_id(kv.key())?;
                self.shared.ours.send_if_modified(|ours| ours.see(&id, None, kv.mod_revision()));
                Some(LeaseUpdate::Remove(id))
            }
        }
    }
}

async fn sign_of_life(stream: &mut WatchStream) -> Result<Option<WatchResponse>, Error> {
    stream.request_progress().await?;
    stream.message().await
}
