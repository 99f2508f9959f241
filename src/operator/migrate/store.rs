//! Reads the cluster as one view, and writes its config one step at a time.

use std::io::Read;

use jiff::Timestamp;
use tokio::time::Instant;

use super::cluster::ClusterView;
use super::document::Document;
use super::state::{MigrationState, Note};
use crate::operator::Error;
use crate::store::ClusterStore;
use crate::store::operator::{StoreContents, Swap, Unavailable};

pub(super) async fn read(store: &impl ClusterStore) -> Result<ClusterView, Error> {
    let StoreContents { config, records, reports } =
        store.read().await.map_err(|away| unusable(store, &away))?;
    let key = store.config_name();
    let config = config.ok_or_else(|| Error::Store(format!("{key} is missing")))?;
    let state = MigrationState::parse(&config.text, config.revision)
        .map_err(|error| Error::Store(format!("{key}: {error}")))?;
    Ok(ClusterView::new(state, records, reports))
}

/// Writes `document` as the config, unless the config changed after `seen`.
pub(super) async fn swap(
    store: &impl ClusterStore,
    seen: i64,
    document: &Document,
) -> Result<Swap, Error> {
    store.swap(seen, document.text()).await.map_err(|away| unusable(store, &away))
}

fn unusable(store: &impl ClusterStore, Unavailable(why): &Unavailable) -> Error {
    Error::Store(format!("{why}: {}", store.hint()))
}

/// The operator, with a clock.
#[derive(Clone, Debug)]
pub(super) struct Author {
    started: Note,
    since: Instant,
}

impl Author {
    pub(super) fn new(started: Note) -> Self {
        Self { started, since: Instant::now() }
    }

    /// This user on this host.
    pub(super) fn here() -> Self {
        let user = std::env::var("USER").unwrap_or_else(|_| "root".to_owned());
        Self::new(Note { at: Timestamp::now(), by: format!("{user}@{}", host()) })
    }

    /// In whole seconds.
    pub(super) fn now(&self) -> Timestamp {
        let passed = self.since.elapsed().as_secs();
        let seconds = self.started.at.as_second().saturating_add_unsigned(passed);
        Timestamp::from_second(seconds).unwrap_or(self.started.at)
    }

    pub(super) fn note(&self) -> Note {
        Note { at: self.now(), by: self.started.by.clone() }
    }
}

/// A host name is short, but the file that contains it may be longer.
fn host() -> String {
    let mut name = String::new();
    let file = std::fs::File::open("/proc/sys/kernel/hostname");
    let read = file.and_then(|file| file.take(64).read_to_string(&mut name));
    if read.is_ok() { name.trim().to_owned() } else { "unknown".to_owned() }
}
