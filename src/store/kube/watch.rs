//! The history of all nodes: one watch, resumed where it broke off.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::RandomState;
use std::sync::Arc;

use serde::Deserialize;
use tracing::{debug, warn};

use super::Shared;
use super::answer::{Refusal, Status};
use super::client::Failure;
use super::node::{NodeObject, Reader};
use super::open::Open;
use super::own::{Ours, OwnNode};
use super::request;
use crate::excerpt;
use crate::model::lease::{LeaseId, LeaseUpdate, Record};
use crate::store::watch::{Interrupted, Source};

pub(super) struct KubeSource {
    pub(super) shared: Arc<Shared>,
    pub(super) reader: Reader,
    /// Up to which everything is known.
    pub(super) version: String,
    pub(super) open: Option<Open>,
    known: HashMap<Arc<str>, Known>,
    hasher: RandomState,
    /// Whether the server streams its lists, as far as we know.
    pub(super) lists: Lists,
    /// Whether the server was away since the last watch: one that ends in time is opened again at once.
    is_broken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lists {
    Streamed,
    Paged,
}

/// What was told of a node last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    fingerprint: u64,
    standing: Standing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Told,
    /// Its lease is neither flannel's nor ours.
    Foreign,
}

/// One line of a watch.
#[derive(Deserialize)]
pub(super) struct Event<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) object: NodeObject<'a>,
}

#[derive(Deserialize)]
struct ErrorEvent {
    object: Status,
}

impl Source for KubeSource {
    async fn list(&mut self) -> Result<Vec<Record>, Interrupted> {
        (self.open, self.is_broken) = (None, false);
        self.reader = self.shared.reader();
        self.shared.ours.send_if_modified(Ours::doubt);
        self.forget();
        match self.lists {
            Lists::Streamed => self.list_streamed().await,
            Lists::Paged => self.list_paged().await,
        }
    }

    async fn follow(&mut self) -> Result<Vec<LeaseUpdate>, Interrupted> {
        loop {
            let mut open = match self.open.take() {
                Some(open) => open,
                None => self.reopen().await?,
            };
            let updates = self.absorb(&mut open)?;
            if !updates.is_empty() {
                self.open = Some(open);
                return Ok(updates);
            }
            let listened = open.listen(&self.shared.client).await;
            self.is_broken |= listened.is_err();
            if listened? {
                self.open = Some(open);
            } else if !open.has_told {
                return Err(Interrupted::Away);
            }
        }
    }
}

impl KubeSource {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            reader: shared.reader(),
            shared,
            version: String::new(),
            open: None,
            known: HashMap::new(),
            hasher: RandomState::new(),
            lists: Lists::Streamed,
            is_broken: false,
        }
    }

    async fn reopen(&mut self) -> Result<Open, Interrupted> {
        if self.is_broken {
            self.shared.check_history().await?;
        }
        let opened = self.shared.open(&request::watch(&self.version, duration())).await;
        self.is_broken = opened.is_err();
        opened
    }

    /// Before everything is read anew.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }

    /// What the complete lines tell.
    fn absorb(&mut self, open: &mut Open) -> Result<Vec<LeaseUpdate>, Interrupted> {
        let lines = open.lines.take();
        let mut updates = Vec::new();
        let mut rest = lines.as_slice();
        while let Some((line, behind)) = first_line(rest) {
            rest = behind;
            let Some(event) = event(line) else { continue };
            match event.kind.as_ref() {
                "ERROR" if updates.is_empty() => return Err(interruption(line)),
                // What came before it counts; the next watch will end like this one.
                "ERROR" => break,
                "BOOKMARK" => {}
                "DELETED" => updates.extend(self.lose(&event.object)),
                _ => updates.extend(self.put(&event.object)),
            }
            self.pass(&event.object);
        }
        Ok(updates)
    }

    /// Everything up to this event is known.
    pub(super) fn pass(&mut self, object: &NodeObject<'_>) {
        let version = object.metadata.resource_version.as_ref();
        if !version.is_empty() {
            version.clone_into(&mut self.version);
        }
    }

    /// What is new of a node: its heartbeats are not.
    pub(super) fn put(&mut self, node: &NodeObject<'_>) -> Option<LeaseUpdate> {
        let name = node.metadata.name.as_ref();
        let fingerprint = self.reader.fingerprint(node, &self.hasher);
        let before = self.known.get(name).copied();
        if before.is_some_and(|before| before.fingerprint == fingerprint) {
            return None;
        }
        if self.is_own(name) {
            let own = OwnNode::of(node, &self.reader);
            self.shared.ours.send_if_modified(|ours| ours.see(own));
        }
        let name: Arc<str> = name.into();
        let record = self.reader.record(node, LeaseId::new(Arc::clone(&name)));
        let standing = if record.is_some() { Standing::Told } else { Standing::Foreign };
        self.known.insert(Arc::clone(&name), Known { fingerprint, standing });
        let was_told = before.is_some_and(|before| before.standing == Standing::Told);
        let left = || was_told.then(|| LeaseUpdate::Remove(LeaseId::new(name)));
        record.map(LeaseUpdate::Put).or_else(left)
    }

    pub(super) fn lose(&mut self, node: &NodeObject<'_>) -> Option<LeaseUpdate> {
        let name = node.metadata.name.as_ref();
        if self.is_own(name) {
            self.shared.ours.send_if_modified(|ours| ours.trust(None));
        }
        let known = self.known.remove(name)?;
        (known.standing == Standing::Told).then(|| LeaseUpdate::DeleteNode(LeaseId::new(name)))
    }

    /// Whether something was told of this node already.
    pub(super) fn knows(&self, node: &NodeObject<'_>) -> bool {
        self.known.contains_key(node.metadata.name.as_ref())
    }

    /// Whether our node was there when all were read.
    pub(super) fn look_for_own(&self) {
        let name = self.shared.ours.borrow().name.clone();
        if name.is_some_and(|name| !self.known.contains_key(name.as_str())) {
            self.shared.ours.send_if_modified(|ours| ours.trust(None));
        }
    }

    fn is_own(&self, name: &str) -> bool {
        self.shared.ours.borrow().name.as_deref() == Some(name)
    }
}

impl Shared {
    /// A cluster restored from a backup counts again from before what we have seen, and may have
    /// caught up by now; but then it shows our own node as it was.
    async fn check_history(&self) -> Result<(), Interrupted> {
        let known = self.ours.borrow().clone();
        let Some((name, known)) = known.name.as_deref().zip(known.node()) else { return Ok(()) };
        match self.client.once(&request::node(name)).await {
            Ok(body) => match self.understand(&body) {
                Some(node) if known.is_later_than(&node) => Err(Interrupted::Gap),
                Some(_) | None => Ok(()),
            },
            Err(Failure::Refused(Refusal::Absent)) => Err(Interrupted::Gap),
            Err(failure) => Err(self.interrupted(failure)),
        }
    }
}

/// The first line of `text` that is not empty, and what stands behind it.
pub(super) fn first_line(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let start = text.iter().position(|byte| *byte != b'\n')?;
    let text = text.get(start..)?;
    let end = text.iter().position(|byte| *byte == b'\n').unwrap_or(text.len());
    Some((text.get(..end)?, text.get(end..)?))
}

/// None if the line is no event: the others go on.
pub(super) fn event(line: &[u8]) -> Option<Event<'_>> {
    let event = serde_json::from_slice(line);
    let told = |error: &serde_json::Error| {
        let error = excerpt::sentence(&error.to_string());
        warn!(%error, "an event of the API server cannot be read");
    };
    event.inspect_err(told).ok()
}

/// What an event of type ERROR means.
pub(super) fn interruption(line: &[u8]) -> Interrupted {
    let Ok(ErrorEvent { object: status }) = serde_json::from_slice(line) else {
        return Interrupted::Away;
    };
    debug!(reason = status.words(), "the watch on the nodes was ended");
    if status.ends_history() { Interrupted::Gap } else { Interrupted::Away }
}

/// How long a watch shall last, in seconds; those of many nodes do not end together.
pub(super) fn duration() -> u32 {
    rand::random_range(240..290)
}
