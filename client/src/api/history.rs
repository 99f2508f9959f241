//! The history of all objects of one kind: a listing, streamed if the server supports that, else page
//! by page, never all objects in memory; then a watch that is resumed where it was interrupted.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use kube::core::{ListMeta, Status};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};
use tracing::{debug, info, warn};
use tweed_netlink::excerpt;

use super::client::{Client, lacks_history};
use super::lines::Lines;
use super::newest::only_item;
use super::request::{Collection, PAGE};
use crate::failover::{Failure, Outcomes, Refusal};
use crate::random::random_range;

/// A kind of objects.
pub trait Kind: Send + 'static {
    /// In sentences: "nodes".
    const PLURAL: &'static str;

    /// What is read of an object.
    type Object<'a>: Deserialize<'a>;

    /// Its `resourceVersion`.
    fn version<'a>(object: &'a Self::Object<'_>) -> &'a str;
}

/// What happens to the objects of a kind.
pub enum Event<'a, K: Kind> {
    /// A listing begins: each object is put again, and what was known before is not.
    Listing,
    /// The watch is open, and continues where it was interrupted or where a list ended.
    Resumed,
    /// It was there at the listing, or was added or changed.
    Put(K::Object<'a>),
    /// As it was last.
    Removed(K::Object<'a>),
}

/// Reads the objects of a collection: first `list`, and then `next`, again and again.
pub struct History<K, R> {
    client: Arc<Client<R>>,
    collection: Collection,
    /// The version up to which all changes are known.
    version: String,
    open: Option<Lines>,
    /// The version of the listing, or of a later deletion: what was removed before leaves nothing to
    /// compare.
    removals: u64,
    /// How often the newest event had been forgotten when the objects were listed.
    generation: u64,
    /// Whether the server streams lists, as far as known.
    has_streamed_lists: bool,
    /// Whether the last list stalled: a server may be busy once, and one that never ends a list stalls
    /// each time.
    has_stalled: bool,
    /// Whether the last watch failed: then history is checked before the watch is reopened.
    is_broken: bool,
    kind: PhantomData<fn() -> K>,
}

/// Whether a cluster has the history that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continuity {
    /// Up to the version of the newest event of any object.
    UpTo(u64),
    /// There was no event, or the cluster has its version no longer.
    Unknown,
}

/// The answer to the question whether a cluster has the newest event.
struct Asked {
    /// None if it is unknown, or if there was no event.
    is_there: Option<bool>,
    /// Of the event.
    version: u64,
    generation: u64,
}

#[derive(Deserialize)]
struct Line<'a, O> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    object: O,
}

#[derive(Deserialize)]
struct Page<O> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default = "Vec::new")]
    items: Vec<O>,
}

/// The timeout of a streamed list without progress: a server may be busy, and an old one never ends it.
const STALL: Duration = Duration::from_secs(10);

/// The longest page, in bytes. If a page is longer, fewer objects are read per page.
const LONGEST_PAGE: usize = 16 * 1024 * 1024;

/// The annotation of the bookmark that ends a streamed list, in its line.
const END: &str = "/object/metadata/annotations/k8s.io~1initial-events-end";

/// The store has deleted the next changes, or never had them.
pub const GAP: Failure = Failure::Refused(Refusal::NoHistory);

impl<K: Kind, R: Outcomes> History<K, R> {
    /// Sends no request yet.
    pub fn new(client: Arc<Client<R>>, collection: Collection) -> Self {
        Self {
            client,
            collection,
            version: String::new(),
            open: None,
            removals: 0,
            generation: 0,
            has_streamed_lists: true,
            has_stalled: false,
            is_broken: false,
            kind: PhantomData,
        }
    }

    /// Passes all objects to `take`, and in a streamed list also changes of objects. After an error,
    /// they must be listed again.
    pub async fn list(&mut self, mut take: impl FnMut(Event<'_, K>)) -> Result<(), Failure> {
        (self.open, self.is_broken) = (None, false);
        let asked = Self::ask_newest(&self.client).await?;
        // What is listed must not hide from other histories that theirs was replaced.
        if asked.version > 0 && asked.is_there != Some(true) {
            self.client.servers.newest().forget(asked.generation);
        }
        self.generation = self.client.servers.newest().generation;
        if !self.has_streamed_lists || !self.list_streamed(&mut take).await? {
            take(Event::Listing);
            let put = |object: K::Object<'_>| take(Event::Put(object));
            self.version = pages::<K, R>(&self.client, &self.collection, put).await?;
        }
        self.removals = self.version.parse().unwrap_or_default();
        Ok(())
    }

    /// The version of the last listing, or of a deletion since then; 0 without one.
    pub const fn listed(&self) -> u64 {
        self.removals
    }

    /// What `take` returns for the next event for which it returns anything; what it returns for
    /// [`Event::Resumed`] is dropped. Resumes where it was interrupted.
    ///
    /// # Errors
    /// [`GAP`] if the objects must be listed again. Also if it is unknown whether the cluster has what
    /// was read, unless the caller has called `check` and `confirmed`.
    pub async fn next<T>(
        &mut self,
        mut take: impl FnMut(Event<'_, K>) -> Option<T>,
    ) -> Result<T, Failure> {
        let client = Arc::clone(&self.client);
        loop {
            let mut open = match self.open.take() {
                Some(open) => open,
                None => self.reopen(&mut take).await?,
            };
            let received = open.next(&client).await;
            self.is_broken |= received.is_err();
            let Some(text) = received? else {
                if open.has_events {
                    continue;
                }
                return Err(Failure::Unreachable);
            };
            let line = parse::<K>(text)?;
            let is_event = line.is_some();
            let event = line.and_then(|line| self.absorb(line, text));
            let taken = event.and_then(&mut take);
            open.has_events |= is_event;
            self.open = Some(open);
            if let Some(taken) = taken {
                return Ok(taken);
            }
        }
    }

    /// Whether the watch failed, and nothing has shown since that the cluster has what was read.
    pub const fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Checks that the history of the cluster has the newest event. This detects a cluster restored
    /// from a backup, even if its versions have reached the known ones. Lowers the version at which
    /// `next` resumes to what is certain. After it, the caller may check more, and call `confirmed`.
    ///
    /// # Errors
    /// [`GAP`] if the objects must be listed again.
    pub async fn check(&mut self) -> Result<Continuity, Failure> {
        let is_outdated =
            |history: &Self| history.client.servers.newest().generation != history.generation;
        if is_outdated(self) {
            return Err(GAP);
        }
        let asked = Self::ask_newest(&self.client).await?;
        // Another history may have noticed a restore meanwhile.
        if is_outdated(self) {
            return Err(GAP);
        }
        if asked.is_there == Some(false) {
            // Other writers may reach that version before the watch opens.
            return Err(self.client.reject_history(asked.generation));
        }
        if self.removals > asked.version {
            return Err(GAP);
        }
        if asked.is_there.is_none() {
            return Ok(Continuity::Unknown);
        }
        // Bookmarks after that event may be of a history that a backup has replaced.
        let known = self.version.parse().unwrap_or(asked.version);
        self.version = known.min(asked.version).to_string();
        Ok(Continuity::UpTo(asked.version))
    }

    /// The cluster has what was read: `next` opens the watch without another check.
    pub const fn confirmed(&mut self) {
        self.is_broken = false;
    }

    async fn reopen<T>(
        &mut self,
        take: &mut impl FnMut(Event<'_, K>) -> Option<T>,
    ) -> Result<Lines, Failure> {
        if self.is_broken && self.check().await? == Continuity::Unknown {
            return Err(GAP);
        }
        let ask = self.collection.watch(&self.version, duration());
        let opened = self.client.watch(&ask, K::PLURAL).await;
        self.is_broken = opened.is_err();
        if opened.is_ok() {
            take(Event::Resumed);
        }
        opened
    }

    /// Asks whether the cluster has the newest event.
    async fn ask_newest(client: &Client<R>) -> Result<Asked, Failure> {
        let (question, version, generation) = {
            let newest = client.servers.newest();
            (newest.ask(), newest.version, newest.generation)
        };
        let asked = |is_there| Asked { is_there, version, generation };
        let Some((question, object)) = question else { return Ok(asked(None)) };
        match client.once(&question).await {
            Ok(body) => Ok(asked(Some(only_item(&body).is_some_and(|item| item == object)))),
            Err(Failure::Refused(Refusal::Future)) => Ok(asked(Some(false))),
            // The version is compacted, the server has no such lists, or this kind is forbidden.
            Err(Failure::Refused(_)) => Ok(asked(None)),
            Err(Failure::Unreachable) => Err(Failure::Unreachable),
        }
    }

    /// Notes the version of the object.
    fn absorb<'a>(&mut self, line: Line<'a, K::Object<'a>>, text: &[u8]) -> Option<Event<'a, K>> {
        let version = K::version(&line.object);
        let number = version.parse().unwrap_or_default();
        if !version.is_empty() {
            version.clone_into(&mut self.version);
        }
        match line.kind.as_ref() {
            "BOOKMARK" => return None,
            "DELETED" => {
                self.removals = self.removals.max(number);
                return Some(Event::Removed(line.object));
            }
            "ADDED" | "MODIFIED" => {
                self.client.servers.newest().note(number, text, self.collection.path);
            }
            _ => {}
        }
        Some(Event::Put(line.object))
    }

    /// No further one is asked for.
    fn streams_no_lists(&mut self) -> bool {
        let plural = K::PLURAL;
        info!("the API server does not stream lists: reading the {plural} page by page");
        self.has_streamed_lists = false;
        false
    }

    /// The same watch continues with the changes. Returns false if pages must be read instead.
    async fn list_streamed(
        &mut self,
        take: &mut impl FnMut(Event<'_, K>),
    ) -> Result<bool, Failure> {
        take(Event::Listing);
        let client = Arc::clone(&self.client);
        let ask = self.collection.streamed_list(duration());
        let mut open = match client.watch(&ask, K::PLURAL).await {
            Err(Failure::Refused(Refusal::Invalid(_))) => return Ok(self.streams_no_lists()),
            opened => opened?,
        };
        let mut progress = Instant::now();
        loop {
            let Ok(text) = timeout_at(progress + STALL, open.next(&client)).await else {
                if open.is_cut {
                    return Err(Failure::Unreachable);
                }
                if mem::replace(&mut self.has_stalled, true) {
                    return Ok(self.streams_no_lists());
                }
                let plural = K::PLURAL;
                info!("the API server stopped sending the {plural}: reading them page by page");
                return Ok(false);
            };
            let text = text?.ok_or(Failure::Unreachable)?;
            let Some(line) = parse::<K>(text)? else { continue };
            let (is_bookmark, is_added) = (line.kind == "BOOKMARK", line.kind == "ADDED");
            let ends = is_bookmark && ends_list(text);
            if let Some(event) = self.absorb(line, text) {
                take(event);
            }
            if ends {
                self.has_stalled = false;
                // Changes may follow.
                self.open = Some(open);
                return Ok(true);
            }
            // A server that supports streamed lists sends no other bookmark first.
            if is_bookmark {
                return Ok(self.streams_no_lists());
            }
            if is_added {
                progress = Instant::now();
            }
        }
    }
}

/// Calls `each` for all objects, and returns the version of the list.
pub async fn pages<K: Kind, R: Outcomes>(
    client: &Client<R>,
    collection: &Collection,
    mut each: impl FnMut(K::Object<'_>),
) -> Result<String, Failure> {
    let (mut token, mut limit) = (String::new(), PAGE);
    loop {
        let body = match client.once_within(&collection.page(&token, limit), LONGEST_PAGE).await {
            Err(Failure::Refused(Refusal::TooLarge(_))) if limit > 1 => {
                limit /= 2;
                continue;
            }
            body => body?,
        };
        let page = serde_json::from_slice::<Page<K::Object<'_>>>(&body).map_err(|error| {
            let plural = K::PLURAL;
            client.report.unreachable(&format!("the list of {plural} cannot be read: {error}"));
            Failure::Unreachable
        })?;
        page.items.into_iter().for_each(&mut each);
        token = page.metadata.continue_.unwrap_or_default();
        if token.is_empty() {
            return Ok(page.metadata.resource_version.unwrap_or_default());
        }
        limit = PAGE.min(limit * 2);
    }
}

/// None if the line is empty, or an event of an object that cannot be read; the watch continues.
fn parse<K: Kind>(text: &[u8]) -> Result<Option<Line<'_, K::Object<'_>>>, Failure> {
    if text.is_empty() {
        return Ok(None);
    }
    let error = match serde_json::from_slice::<Line<'_, K::Object<'_>>>(text) {
        Ok(line) if line.kind != "ERROR" => return Ok(Some(line)),
        Ok(_) => return Err(interruption::<K>(text)),
        Err(error) => error,
    };
    let line = serde_json::from_slice::<Line<'_, Option<IgnoredAny>>>(text);
    let kind = line.map(|line| line.kind);
    if kind.as_ref().is_ok_and(|kind| kind == "ERROR") {
        return Err(interruption::<K>(text));
    }
    let error = excerpt::sentence(&error.to_string());
    warn!(%error, "an event of the API server cannot be read");
    // Another line is not of an API server, but of a proxy in between.
    if kind.is_ok() { Ok(None) } else { Err(Failure::Unreachable) }
}

/// The interruption that an event of type ERROR causes.
fn interruption<K: Kind>(text: &[u8]) -> Failure {
    let Ok(Line { object: status, .. }) = serde_json::from_slice::<Line<'_, Status>>(text) else {
        return Failure::Unreachable;
    };
    let reason = excerpt::sentence(&status.message);
    debug!(reason, "the watch on the {} was ended", K::PLURAL);
    if lacks_history(status.code, &status) { GAP } else { Failure::Unreachable }
}

fn ends_list(text: &[u8]) -> bool {
    let bookmark: Value = serde_json::from_slice(text).unwrap_or_default();
    bookmark.pointer(END).is_some_and(|value| value == "true")
}

/// The duration of a watch, in seconds, random so that watches of many clients do not end together.
fn duration() -> u32 {
    random_range(240..290)
}
