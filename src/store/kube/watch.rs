//! The history of all nodes: a listing, streamed if the server supports that, else page by page,
//! never all nodes in memory; then a watch that is resumed where it was interrupted.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kube::core::Status;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};
use tracing::{debug, info, warn};

use super::client::{Client, lacks_history};
use super::node::{NodeObject, Reader};
use super::open::Open;
use super::own::{Ours, OwnNode};
use super::request::ApiRequest;
use super::{Shared, request};
use crate::excerpt;
use crate::model::lease::{LeaseId, LeaseUpdate, Record};
use crate::random::random_range;
use crate::store::failover::{Failure, Refusal};
use crate::store::watch::{Interrupted, Source};

pub(super) struct KubeSource {
    shared: Arc<Shared>,
    reader: Reader,
    /// The version up to which all changes are known.
    version: String,
    open: Option<Open>,
    known: HashMap<Arc<str>, Known>,
    /// The event with the latest version of a node.
    latest: Latest,
    /// Whether the server streams lists, as far as known.
    has_streamed_lists: bool,
    /// Whether the last watch failed: then history is checked before the watch is reopened.
    is_broken: bool,
}

/// What was last reported of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    fingerprint: u64,
    /// Whether flannel or tweed manages its lease, which is then reported.
    is_managed: bool,
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: NodeObject<'a>,
}

/// An event that a cluster has in its history, as it was received.
#[derive(Default)]
struct Latest {
    version: u64,
    line: Vec<u8>,
    /// Whether a node was deleted after it.
    is_followed_by_deletion: bool,
}

#[derive(Deserialize)]
struct ErrorEvent {
    object: Status,
}

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

/// The timeout of a streamed list without progress: an old server may start one and never end it.
const STALL: Duration = Duration::from_secs(10);

/// The longest page, in bytes. If a page is longer, fewer nodes are read per page.
const LONGEST_PAGE: usize = 16 * 1024 * 1024;

/// The annotation that ends a streamed list.
const END: (&str, &str) = ("k8s.io/initial-events-end", "true");

impl Source for KubeSource {
    async fn list(&mut self) -> Result<Vec<Record>, Interrupted> {
        (self.open, self.is_broken) = (None, false);
        self.reader = self.shared.reader();
        self.shared.ours.send_if_modified(Ours::forget_version);
        self.known.clear();
        self.latest = Latest::default();
        let listed = self.list_all().await;
        let client = &self.shared.client;
        listed
            .inspect(|_| client.report.withholds_leases(None))
            .map_err(|failure| client.interrupted(failure))
    }

    async fn follow(&mut self) -> Result<Vec<LeaseUpdate>, Interrupted> {
        let update = self.next().await;
        update.map(|it| vec![it]).map_err(|failure| self.shared.client.interrupted(failure))
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
            latest: Latest::default(),
            has_streamed_lists: true,
            is_broken: false,
        }
    }

    async fn next(&mut self) -> Result<LeaseUpdate, Failure> {
        let shared = Arc::clone(&self.shared);
        loop {
            let mut open = match self.open.take() {
                Some(open) => open,
                None => self.reopen().await?,
            };
            let received = open.line(&shared.client).await;
            self.is_broken |= received.is_err();
            let Some(line) = received? else {
                if open.has_events {
                    continue;
                }
                return Err(Failure::Unreachable);
            };
            let event = event(line)?;
            let is_event = event.is_some();
            let update = event.and_then(|event| {
                self.latest.note(&event, line);
                self.update(&event)
            });
            open.has_events |= is_event;
            self.open = Some(open);
            if let Some(update) = update {
                return Ok(update);
            }
        }
    }

    async fn reopen(&mut self) -> Result<Open, Failure> {
        if self.is_broken {
            // Bookmarks after that event may be of a history that a backup has replaced.
            let history = self.shared.check_history(&self.latest).await?;
            // A deletion leaves nothing to compare: a backup may have undone it.
            if self.latest.is_followed_by_deletion {
                return Err(GAP);
            }
            if let History::Has(version) = history {
                self.version = version.to_string();
            }
        }
        let opened = self.shared.open(&request::watch(&self.version, duration())).await;
        self.is_broken = opened.is_err();
        if opened.is_ok() {
            self.shared.client.report.withholds_leases(None);
        }
        opened
    }

    fn update(&mut self, event: &Event<'_>) -> Option<LeaseUpdate> {
        let version = event.object.metadata.resource_version.as_ref();
        if !version.is_empty() {
            version.clone_into(&mut self.version);
        }
        match event.kind.as_ref() {
            "BOOKMARK" => None,
            "DELETED" => self.remove(&event.object),
            _ => self.put(&event.object),
        }
    }

    /// The update for a changed node; none for a mere heartbeat.
    fn put(&mut self, node: &NodeObject<'_>) -> Option<LeaseUpdate> {
        let name = node.metadata.name.as_ref();
        let fingerprint = self.reader.fingerprint(node, self.known.hasher());
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
        let is_managed = record.is_some();
        self.known.insert(Arc::clone(&name), Known { fingerprint, is_managed });
        let was_managed = before.is_some_and(|before| before.is_managed);
        let left = || was_managed.then(|| LeaseUpdate::Remove(LeaseId::new(name)));
        record.map(LeaseUpdate::Put).or_else(left)
    }

    fn remove(&mut self, node: &NodeObject<'_>) -> Option<LeaseUpdate> {
        let name = node.metadata.name.as_ref();
        if self.is_own(name) {
            self.shared.ours.send_if_modified(|ours| ours.set_seen(None));
        }
        let known = self.known.remove(name)?;
        known.is_managed.then(|| LeaseUpdate::DeleteNode(LeaseId::new(name)))
    }

    /// Notes that our node does not exist, if a listing of all nodes lacks it.
    fn note_missing_own(&self) {
        let name = self.shared.ours.borrow().name.clone();
        if name.is_some_and(|name| !self.known.contains_key(name.as_str())) {
            self.shared.ours.send_if_modified(|ours| ours.set_seen(None));
        }
    }

    fn is_own(&self, name: &str) -> bool {
        self.shared.ours.borrow().name.as_deref() == Some(name)
    }

    async fn list_all(&mut self) -> Result<Vec<Record>, Failure> {
        if self.has_streamed_lists {
            if let Some(records) = self.list_streamed().await? {
                return Ok(records);
            }
            info!("the API server does not stream lists: reading the nodes page by page");
            self.has_streamed_lists = false;
            self.known.clear();
        }
        self.list_paged().await
    }

    /// The same watch continues with the changes. None if the server does not stream lists.
    async fn list_streamed(&mut self) -> Result<Option<Vec<Record>>, Failure> {
        let shared = Arc::clone(&self.shared);
        let mut open = match shared.open(&request::streamed_list(duration())).await {
            Err(Failure::Refused(Refusal::Invalid(_))) => return Ok(None),
            opened => opened?,
        };
        let (mut records, mut progress) = (BTreeMap::new(), Instant::now());
        loop {
            let Ok(line) = timeout_at(progress + STALL, open.line(&shared.client)).await else {
                return Ok(None);
            };
            let line = line?.ok_or(Failure::Unreachable)?;
            let Some(event) = event(line)? else { continue };
            self.latest.note(&event, line);
            note(&mut records, self.update(&event));
            match event.kind.as_ref() {
                "BOOKMARK" if event.object.metadata.annotations().any(|it| it == END) => {
                    // Changes may follow.
                    self.open = Some(open);
                    self.note_missing_own();
                    return Ok(Some(records.into_values().collect()));
                }
                // A server that supports streamed lists sends no other bookmark first.
                "BOOKMARK" => return Ok(None),
                "ADDED" => progress = Instant::now(),
                _ => {}
            }
        }
    }

    async fn list_paged(&mut self) -> Result<Vec<Record>, Failure> {
        let (mut records, shared) = (BTreeMap::new(), Arc::clone(&self.shared));
        self.version = pages(&shared.client, |node| note(&mut records, self.put(node))).await?;
        self.note_missing_own();
        Ok(records.into_values().collect())
    }
}

impl Shared {
    /// Checks that the history of the cluster has the `latest` event. This detects a cluster
    /// restored from a backup, even if its versions have reached the known ones. Without such an
    /// event in the history, checks that our own node is not older than known.
    async fn check_history(&self, latest: &Latest) -> Result<History, Failure> {
        let Some((ask, object)) = latest.ask() else { return self.check_own_version().await };
        match self.client.once(&ask).await {
            Ok(body) if only_item(&body).is_some_and(|item| item == object) => {
                // The watch has not read what this node wrote last: a backup may lack only that.
                let is_ahead = self.ours.borrow().is_after(latest.version);
                if is_ahead {
                    self.check_own_version().await?;
                }
                Ok(History::Has(latest.version))
            }
            // Other nodes may reach that version before the watch opens.
            Ok(_) | Err(Failure::Refused(Refusal::Future)) => Err(restored()),
            // The version is compacted, or the server has no such lists.
            Err(Failure::Refused(Refusal::NoHistory | Refusal::Invalid(_))) => {
                self.check_own_version().await
            }
            Err(failure) => Err(failure),
        }
    }

    async fn check_own_version(&self) -> Result<History, Failure> {
        let known = self.ours.borrow().clone();
        let Some((name, known)) = known.name.as_deref().zip(known.node()) else {
            return Ok(History::Unknown);
        };
        match self.client.once(&request::node(name)).await {
            Ok(body) => match self.decode(&body) {
                Some(node) if known.is_later_than(&node) => Err(restored()),
                // Versions may have reached ours: then what differs from our write shows it.
                node => {
                    let see = |node| self.ours.send_if_modified(|ours| ours.see(node));
                    node.map(see);
                    Ok(History::Unknown)
                }
            },
            Err(Failure::Refused(Refusal::Absent)) => Err(GAP),
            Err(failure) => Err(failure),
        }
    }
}

/// Whether a cluster has the history that a watch has read.
enum History {
    /// Up to this version.
    Has(u64),
    Unknown,
}

impl Latest {
    fn note(&mut self, event: &Event<'_>, line: &[u8]) {
        let version = event.object.metadata.resource_version.parse().unwrap_or_default();
        match event.kind.as_ref() {
            "ADDED" | "MODIFIED" if version > self.version => {
                (self.version, self.is_followed_by_deletion) = (version, false);
                line.clone_into(&mut self.line);
            }
            "DELETED" if version > self.version => self.is_followed_by_deletion = true,
            _ => {}
        }
    }

    /// The request for the node of the event at its version, and the node; none without an event.
    fn ask(&self) -> Option<(ApiRequest, Value)> {
        let mut event: Value = serde_json::from_slice(&self.line).ok()?;
        let object = without_kind(event.get_mut("object")?.take());
        let name = object.pointer("/metadata/name")?.as_str()?;
        Some((request::node_at(name, &self.version.to_string()), object))
    }
}

/// The only item of a list; none if it has none, or several.
fn only_item(list: &[u8]) -> Option<Value> {
    let mut list: Value = serde_json::from_slice(list).ok()?;
    match list.get_mut("items")?.as_array_mut()?.as_mut_slice() {
        [item] => Some(without_kind(item.take())),
        _ => None,
    }
}

/// The items of a list have no kind.
fn without_kind(mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    object
}

/// The store has deleted the next changes, or never had them.
const GAP: Failure = Failure::Refused(Refusal::NoHistory);

fn restored() -> Failure {
    info!("the cluster was restored from a backup: reading all nodes again");
    GAP
}

/// None if the line is empty, or an event of an object that cannot be read; the watch continues.
fn event(line: &[u8]) -> Result<Option<Event<'_>>, Failure> {
    if line.is_empty() {
        return Ok(None);
    }
    match serde_json::from_slice::<Event<'_>>(line) {
        Ok(event) if event.kind == "ERROR" => Err(interruption(line)),
        Ok(event) => Ok(Some(event)),
        Err(error) => {
            let error = excerpt::sentence(&error.to_string());
            warn!(%error, "an event of the API server cannot be read");
            // Another line is not of an API server, but of a proxy in between.
            if is_event(line) { Ok(None) } else { Err(Failure::Unreachable) }
        }
    }
}

fn is_event(line: &[u8]) -> bool {
    serde_json::from_slice::<Value>(line).is_ok_and(|event| event.get("type").is_some())
}

/// The interruption that an event of type ERROR causes.
fn interruption(line: &[u8]) -> Failure {
    let Ok(ErrorEvent { object: status }) = serde_json::from_slice(line) else {
        return Failure::Unreachable;
    };
    let reason = excerpt::sentence(&status.message);
    debug!(reason, "the watch on the nodes was ended");
    if lacks_history(status.code, &status) { GAP } else { Failure::Unreachable }
}

/// Nodes may change, be removed, or stop being managed while they are listed.
fn note(records: &mut BTreeMap<LeaseId, Record>, update: Option<LeaseUpdate>) {
    match update {
        Some(LeaseUpdate::Put(record)) => drop(records.insert(record.id.clone(), record)),
        Some(LeaseUpdate::Remove(id) | LeaseUpdate::DeleteNode(id)) => drop(records.remove(&id)),
        Some(LeaseUpdate::Snapshot(_)) | None => {}
    }
}

/// The duration of a watch, in seconds, random so that watches of many nodes do not end together.
fn duration() -> u32 {
    random_range(240..290)
}

/// Calls `each` for all nodes, and returns the version of the list.
pub(super) async fn pages(
    client: &Client,
    mut each: impl FnMut(&NodeObject<'_>),
) -> Result<String, Failure> {
    let (mut token, mut limit) = (String::new(), request::PAGE);
    loop {
        let body = match client.once_within(&request::page(&token, limit), LONGEST_PAGE).await {
            Err(Failure::Refused(Refusal::TooLarge(_))) if limit > 1 => {
                limit /= 2;
                continue;
            }
            body => body?,
        };
        let page: Page<'_> = serde_json::from_slice(&body).map_err(|error| {
            client.report.unreachable(&format!("the list of nodes cannot be read: {error}"));
            Failure::Unreachable
        })?;
        page.items.iter().for_each(&mut each);
        token = page.metadata.token;
        if token.is_empty() {
            return Ok(page.metadata.version.into_owned());
        }
        limit = request::PAGE.min(limit * 2);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::kube::{
        AnnotationPrefix, ApiOptions, KubeOptions, KubeSubnetManager, NetworkCondition, NodeRef,
    };

    fn source() -> KubeSource {
        let options = KubeOptions {
            api: ApiOptions::default(),
            annotation_prefix: AnnotationPrefix::default(),
            node: NodeRef::Name("n1".to_owned()),
            pod: None,
            namespace: None,
            net_config: "/nowhere/net-conf.json".into(),
            condition: NetworkCondition::Untouched,
        };
        KubeSource::new(Arc::clone(&KubeSubnetManager::new(options).shared))
    }

    /// An event of node n3, which flannel manages if it has this public IP.
    fn line(kind: &str, public_ip: Option<&str>) -> Vec<u8> {
        let prefix = "flannel.alpha.coreos.com";
        let annotations = public_ip.map(|public_ip| {
            json!({
                format!("{prefix}/kube-subnet-manager"): "true",
                format!("{prefix}/backend-type"): "host-gw",
                format!("{prefix}/public-ip"): public_ip,
            })
        });
        let metadata = json!({ "name": "n3", "annotations": annotations.unwrap_or(json!({})) });
        let spec = json!({ "podCIDR": "10.244.3.0/24" });
        let object = json!({ "metadata": metadata, "spec": spec });
        json!({ "type": kind, "object": object }).to_string().into_bytes()
    }

    /// The public IPs of n3 in the listing after these events.
    fn listed(lines: &[Vec<u8>]) -> Vec<String> {
        let (mut source, mut records) = (source(), BTreeMap::new());
        for line in lines {
            note(&mut records, source.update(&event(line).unwrap().unwrap()));
        }
        let public_ips = records.values().map(|record| record.lease.as_ref().unwrap());
        public_ips.map(|lease| lease.endpoints[0].public_ip.to_string()).collect()
    }

    #[test]
    fn a_node_that_changes_during_the_listing_has_its_last_version() {
        let (added, changed) =
            (line("ADDED", Some("172.18.0.3")), line("MODIFIED", Some("172.18.0.33")));
        assert_eq!(listed(&[added.clone(), changed]), ["172.18.0.33"]);
        assert_eq!(listed(&[added.clone(), added.clone()]), ["172.18.0.3"]);
        assert_eq!(listed(&[added.clone(), line("MODIFIED", None)]), [""; 0]);
        assert_eq!(listed(&[added, line("DELETED", None)]), [""; 0]);
    }
}
