//! Watches: existing objects if requested, then every change, and bookmarks.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::watch::Receiver;
use tokio::time::timeout;

use super::fault::{Gone, Lists};
use super::reply::{Body, refusal, status, too_large};
use super::selector::{Query, Selector};
use super::state::Shared;
use crate::wait::lock;

/// The number of objects per write.
const AT_ONCE: usize = 100;
/// Tests do not wait for a minute.
const BOOKMARK: Duration = Duration::from_millis(500);
/// The time between bookmarks of a real server.
pub(super) const REAL_BOOKMARK: Duration = Duration::from_secs(60);

struct Watch {
    shared: Arc<Shared>,
    selector: Selector,
    version: u64,
    changed: Receiver<u64>,
    dropped: Receiver<u64>,
    /// Sent before all else.
    first: Vec<Value>,
    until: Option<tokio::time::Instant>,
}

pub(super) fn answer(shared: &Arc<Shared>, collection: &str, query: &Query) -> Response<Body> {
    let lists = lock(&shared.faults).lists;
    let streams = query.is("sendInitialEvents", "true");
    if streams && lists == Lists::Paged {
        let message =
            "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
        return refusal(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message);
    }
    if streams && lists == Lists::Stalled {
        let nothing = stream::pending::<io::Result<Frame<Bytes>>>();
        return Response::new(StreamBody::new(nothing).boxed_unsync());
    }
    let (changed, dropped) = (shared.changed.subscribe(), shared.watches.subscribe());
    let store = lock(&shared.store);
    let asked: Option<u64> = query.get("resourceVersion").and_then(|text| text.parse().ok());
    let selector = Selector::of(collection, query);
    let mut first = Vec::new();
    if let Some(asked) = asked.filter(|asked| *asked > store.version()) {
        return too_large(asked, store.version());
    }
    if asked.is_some_and(|asked| asked < store.compacted()) {
        let gone = status(StatusCode::GONE, "Expired", "too old resource version");
        if lock(&shared.faults).gone == Gone::AsAnswer {
            return refusal(StatusCode::GONE, "Expired", "too old resource version");
        }
        first.push(json!({ "type": "ERROR", "object": gone }));
    }
    if asked.is_none() {
        let objects = store.list(&selector, None);
        first.extend(objects.map(|(_, object)| json!({ "type": "ADDED", "object": object })));
        if streams && lists == Lists::Streamed {
            let mut end = bookmark(store.version());
            end["object"]["metadata"]["annotations"] =
                json!({ "k8s.io/initial-events-end": "true" });
            first.push(end);
        }
    }
    let seconds = query.get("timeoutSeconds").and_then(|text| text.parse().ok());
    let until = seconds.map(|seconds| tokio::time::Instant::now() + Duration::from_secs(seconds));
    let version = asked.unwrap_or(store.version());
    let shared = Arc::clone(shared);
    let watch = Watch { shared, selector, version, changed, dropped, first, until };
    drop(store);
    let lines = stream::unfold(watch, |mut watch| async {
        let next = watch.next().await?;
        Some((next, watch))
    });
    Response::new(StreamBody::new(lines.map(|line| line.map(Frame::data))).boxed_unsync())
}

impl Watch {
    /// The next lines; none at the end of the watch.
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if !self.first.is_empty() {
            let some = self.first.len().min(AT_ONCE);
            return Some(Ok(lines(&self.first.drain(..some).collect::<Vec<_>>())));
        }
        let bookmark_due = self.shared.bookmarks.unwrap_or(BOOKMARK);
        loop {
            self.changed.mark_unchanged();
            let changes = {
                let store = lock(&self.shared.store);
                // After a restore, another history is there.
                if self.dropped.has_changed().unwrap_or(true) {
                    return Some(Err(io::Error::other("dropped")));
                }
                // A server ends a watch that has not kept up.
                if self.version < store.compacted() {
                    return None;
                }
                store.since(&self.selector, self.version)
            };
            if let Some(last) = changes.last() {
                self.version = last.version;
                let events =
                    changes.iter().map(|it| json!({ "type": it.kind, "object": it.object }));
                return Some(Ok(lines(&events.collect::<Vec<_>>())));
            }
            if self.until.is_some_and(|until| until <= tokio::time::Instant::now()) {
                return None;
            }
            tokio::select! {
                _ = self.dropped.changed() => {
                    return Some(Err(io::Error::other("dropped")));
                }
                waited = timeout(bookmark_due, self.changed.changed()) => if waited.is_err() {
                    let store = lock(&self.shared.store);
                    // A bookmark must not skip changes that occurred after the wait.
                    if store.since(&self.selector, self.version).is_empty() {
                        self.version = self.version.max(store.version());
                        return Some(Ok(lines(&[bookmark(self.version)])));
                    }
                },
            }
        }
    }
}

/// As of a server before version 1.34, which writes `null` for a time that is not set.
fn bookmark(version: u64) -> Value {
    let metadata = json!({ "resourceVersion": version.to_string(), "creationTimestamp": null });
    let status = json!({ "daemonEndpoints": { "kubeletEndpoint": { "Port": 0 } } });
    json!({
        "type": "BOOKMARK",
        "object": {
            "kind": "Node",
            "apiVersion": "v1",
            "metadata": metadata,
            "spec": {},
            "status": status,
        },
    })
}

fn lines(events: &[Value]) -> Bytes {
    let lines: Vec<String> = events.iter().map(|event| format!("{event}\n")).collect();
    lines.concat().into()
}
