//! All nodes there are: streamed where the server can, else page by page. Never all in memory.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::{Instant, timeout_at};
use tracing::info;

use super::answer::Refusal;
use super::client::{Client, Failure};
use super::node::{Metadata, NodeObject};
use super::request;
use super::watch::{Event, KubeSource, Lists, duration, event, first_line, interruption};
use crate::lease::{LeaseUpdate, Record};
use crate::subnet::watch::Interrupted;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Page<'a> {
    #[serde(borrow)]
    metadata: PageMetadata<'a>,
    #[serde(borrow)]
    items: Vec<NodeObject<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PageMetadata<'a> {
    #[serde(rename = "continue")]
    token: String,
    #[serde(borrow, rename = "resourceVersion")]
    version: Cow<'a, str>,
}

/// A server that knows nothing of streamed lists may begin one and never end it.
const STALL: Duration = Duration::from_secs(10);

const END: &str = "k8s.io/initial-events-end";

impl KubeSource {
    /// The watch that told them goes on with what changes.
    pub(super) async fn list_streamed(&mut self) -> Result<Vec<Record>, Interrupted> {
        let mut open = match self.shared.try_open(&request::streamed_list(duration())).await {
            Ok(open) => open,
            Err(Failure::Refused(Refusal::Invalid(_))) => {
                return self.list_paged_from_now_on().await;
            }
            Err(failure) => return Err(self.shared.interrupted(failure)),
        };
        let (mut records, mut progress) = (Vec::new(), Instant::now());
        loop {
            let listening = open.listen(&self.shared.client);
            let Ok(more) = timeout_at(progress + STALL, listening).await else {
                return self.list_paged_from_now_on().await;
            };
            if !more? {
                return Err(Interrupted::Away);
            }
            let lines = open.lines.take();
            let mut rest = lines.as_slice();
            while let Some((line, behind)) = first_line(rest) {
                rest = behind;
                let Some(event) = event(line) else { continue };
                match event.kind.as_ref() {
                    "ERROR" => return Err(interruption(line)),
                    "BOOKMARK" if is_end(&event.object.metadata) => {
                        self.pass(&event.object);
                        // What changed meanwhile may stand behind it.
                        open.lines.put_back(rest);
                        self.open = Some(open);
                        self.look_for_own();
                        return Ok(records);
                    }
                    // A server that streams lists says nothing else first.
                    "BOOKMARK" => return self.list_paged_from_now_on().await,
                    "ADDED" => progress = Instant::now(),
                    _ => {}
                }
                self.note(&mut records, &event);
            }
        }
    }

    /// Nodes may change, or go, while they are listed.
    fn note(&mut self, records: &mut Vec<Record>, event: &Event<'_>) {
        if event.kind == "DELETED" {
            let gone = event.object.metadata.name.as_ref();
            self.lose(&event.object);
            records.retain(|record| record.id.as_str() != gone);
        } else {
            records.extend(record(self.put(&event.object)));
        }
    }

    async fn list_paged_from_now_on(&mut self) -> Result<Vec<Record>, Interrupted> {
        info!("the API server streams no lists: reading the nodes page by page");
        self.lists = Lists::Paged;
        self.forget();
        self.list_paged().await
    }

    pub(super) async fn list_paged(&mut self) -> Result<Vec<Record>, Interrupted> {
        let (mut records, shared) = (Vec::new(), Arc::clone(&self.shared));
        let read = pages(&shared.client, |node| records.extend(record(self.put(node)))).await;
        self.version = read.map_err(|failure| shared.interrupted(failure))?;
        self.look_for_own();
        Ok(records)
    }
}

/// Shows `each` node there is, and returns the version of what it was shown.
pub(super) async fn pages(
    client: &Client,
    mut each: impl FnMut(&NodeObject<'_>),
) -> Result<String, Failure> {
    let mut token = String::new();
    loop {
        let body = client.once(&request::page(&token)).await?;
        let page: Page<'_> = serde_json::from_slice(&body).map_err(|error| {
            client.report.away(&format!("the list of nodes cannot be read: {error}"));
            Failure::Away
        })?;
        page.items.iter().for_each(&mut each);
        token = page.metadata.token;
        if token.is_empty() {
            return Ok(page.metadata.version.into_owned());
        }
    }
}

fn is_end(metadata: &Metadata<'_>) -> bool {
    metadata.annotations.get(END) == Some("true")
}

fn record(update: Option<LeaseUpdate>) -> Option<Record> {
    match update? {
        LeaseUpdate::Put(record) => Some(record),
        LeaseUpdate::Snapshot(_) | LeaseUpdate::Remove(_) => None,
    }
}
