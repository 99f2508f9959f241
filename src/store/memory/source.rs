//! What a store in memory tells: its config, and the history of its leases.

use futures::StreamExt;
use futures::stream::{self, BoxStream};

use super::{Content, MemoryStore};
use crate::model::config::ConfigUpdate;
use crate::model::lease::{LeaseUpdate, Record};
use crate::store::watch::{Interrupted, Source};

pub(super) fn config_updates(store: MemoryStore) -> BoxStream<'static, ConfigUpdate> {
    let steps = stream::unfold((store, None::<ConfigUpdate>), |(store, told)| async move {
        let news =
            |content: &Content| content.config.clone().filter(|now| told.as_ref() != Some(now));
        let update = store.when(news).await;
        Some((update.clone(), (store, Some(update))))
    });
    steps.boxed()
}

pub(super) struct MemorySource {
    store: MemoryStore,
    /// Length of the history that was read.
    known: usize,
}

impl MemorySource {
    pub(super) const fn new(store: MemoryStore) -> Self {
        Self { store, known: 0 }
    }
}

impl Source for MemorySource {
    async fn list(&mut self) -> Result<Vec<Record>, Interrupted> {
        let all = |content: &Content| {
            Some((content.history.len(), content.records.values().cloned().collect()))
        };
        let (known, records) = self.store.when(all).await;
        self.known = known;
        Ok(records)
    }

    async fn follow(&mut self) -> Result<Vec<LeaseUpdate>, Interrupted> {
        let known = self.known;
        let news = |content: &Content| {
            let gap = known < content.compacted;
            let news = content.history.get(known..).filter(|news| !news.is_empty());
            news.map(|news| if gap { Err(Interrupted::Gap) } else { Ok(news.to_vec()) })
        };
        let news = self.store.when(news).await?;
        self.known += news.len();
        Ok(news)
    }
}
