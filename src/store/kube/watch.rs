//! The history of all nodes: a listing, streamed if the server supports that, else page by page,
//! never all nodes in memory; then a watch that is resumed where it was interrupted.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::hash::RandomState;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::{Instant, timeout_at};
use tracing::{debug, info, warn};

use super::client::{Client, Status};
use super::node::{NodeObject, Reader};
use super::open::Open;
use super::own::{Ours, OwnNode};
use super::{Shared, request};
use crate::excerpt;
use crate::model::lease::{LeaseId, LeaseUpdate, Record};
use crate::store::failover::{Failure, Refusal};
use crate::store::watch::{Interrupted, Source};

pub(super) struct KubeSource {
    shared: Arc<Shared>,
    reader: Reader,
    /// The version up to which all changes are known.
    version: String,
    open: Option<Open>,
    known: HashMap<Arc<str>, Known>,
    hasher: RandomState,
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
        let listed = if self.has_streamed_lists {
            self.list_streamed().await
        } else {
            self.list_paged().await
        };
        if listed.is_ok() {
            self.shared.client.report.withholds_leases(None);
        }
        listed
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
            let received = open.wait_for_data(&self.shared.client).await;
            self.is_broken |= received.is_err();
            if received? {
                self.open = Some(open);
            } else if !open.has_data {
                return Err(Interrupted::Unreachable);
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
            has_streamed_lists: true,
            is_broken: false,
        }
    }

    async fn reopen(&mut self) -> Result<Open, Interrupted> {
        if self.is_broken {
            self.shared.check_history().await?;
        }
        let opened = self.shared.open(&request::watch(&self.version, duration())).await;
        self.is_broken = opened.is_err();
        if opened.is_ok() {
            self.shared.client.report.withholds_leases(None);
        }
        opened
    }

    /// The updates in the complete lines.
    fn absorb(&mut self, open: &mut Open) -> Result<Vec<LeaseUpdate>, Interrupted> {
        let mut updates = Vec::new();
        while let Some(line) = open.line() {
            let Some(event) = event(line) else { continue };
            match event.kind.as_ref() {
                "ERROR" if updates.is_empty() => return Err(interruption(line)),
                // Updates before the error are used; the next watch ends with the same error.
                "ERROR" => break,
                "BOOKMARK" => {}
                "DELETED" => updates.extend(self.remove(&event.object)),
                _ => updates.extend(self.put(&event.object)),
            }
            self.note_version(&event.object);
        }
        Ok(updates)
    }

    fn note_version(&mut self, object: &NodeObject<'_>) {
        let version = object.metadata.resource_version.as_ref();
        if !version.is_empty() {
            version.clone_into(&mut self.version);
        }
    }

    /// The update for a changed node; none for a mere heartbeat.
    fn put(&mut self, node: &NodeObject<'_>) -> Option<LeaseUpdate> {
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
}

impl KubeSource {
    /// The same watch continues with the changes.
    async fn list_streamed(&mut self) -> Result<Vec<Record>, Interrupted> {
        let mut open = match self.shared.try_open(&request::streamed_list(duration())).await {
            Ok(open) => open,
            Err(Failure::Refused(Refusal::Invalid(_))) => {
                return self.list_paged_from_now_on().await;
            }
            Err(failure) => return Err(self.shared.client.interrupted(failure)),
        };
        let (mut records, mut progress) = (BTreeMap::new(), Instant::now());
        loop {
            let waiting = open.wait_for_data(&self.shared.client);
            let Ok(more) = timeout_at(progress + STALL, waiting).await else {
                return self.list_paged_from_now_on().await;
            };
            if !more? {
                return Err(Interrupted::Unreachable);
            }
            while let Some(line) = open.line() {
                let Some(event) = event(line) else { continue };
                match event.kind.as_ref() {
                    "ERROR" => return Err(interruption(line)),
                    "BOOKMARK" if event.object.metadata.annotations().any(|it| it == END) => {
                        self.note_version(&event.object);
                        // Changes may follow.
                        self.open = Some(open);
                        self.note_missing_own();
                        return Ok(records.into_values().collect());
                    }
                    // A server that supports streamed lists sends no other bookmark first.
                    "BOOKMARK" => return self.list_paged_from_now_on().await,
                    "ADDED" => progress = Instant::now(),
                    _ => {}
                }
                self.note(&mut records, &event);
            }
        }
    }

    /// Nodes may change, be removed, or stop being managed while they are listed.
    fn note(&mut self, records: &mut BTreeMap<LeaseId, Record>, event: &Event<'_>) {
        let update = match event.kind.as_ref() {
            "DELETED" => self.remove(&event.object),
            _ => self.put(&event.object),
        };
        match update {
            Some(LeaseUpdate::Put(record)) => drop(records.insert(record.id.clone(), record)),
            Some(LeaseUpdate::Remove(id) | LeaseUpdate::DeleteNode(id)) => {
                records.remove(&id);
            }
            Some(LeaseUpdate::Snapshot(_)) | None => {}
        }
    }

    async fn list_paged_from_now_on(&mut self) -> Result<Vec<Record>, Interrupted> {
        info!("the API server does not stream lists: reading the nodes page by page");
        self.has_streamed_lists = false;
        self.known.clear();
        self.list_paged().await
    }

    async fn list_paged(&mut self) -> Result<Vec<Record>, Interrupted> {
        let (mut records, shared) = (Vec::new(), Arc::clone(&self.shared));
        let read = pages(&shared.client, |node| records.extend(record(self.put(node)))).await;
        self.version = read.map_err(|failure| shared.client.interrupted(failure))?;
        self.note_missing_own();
        Ok(records)
    }
}

impl Shared {
    /// Checks that our own node is not older than known. This detects a cluster restored from a
    /// backup, even if its versions have reached the known ones.
    async fn check_history(&self) -> Result<(), Interrupted> {
        let known = self.ours.borrow().clone();
        let Some((name, known)) = known.name.as_deref().zip(known.node()) else { return Ok(()) };
        match self.client.once(&request::node(name)).await {
            Ok(body) => match self.decode(&body) {
                Some(node) if known.is_later_than(&node) => Err(Interrupted::Gap),
                Some(_) | None => Ok(()),
            },
            Err(Failure::Refused(Refusal::Absent)) => Err(Interrupted::Gap),
            Err(failure) => Err(self.client.interrupted(failure)),
        }
    }
}

/// None if the line is no event; the watch continues.
fn event(line: &[u8]) -> Option<Event<'_>> {
    if line.is_empty() {
        return None;
    }
    let event = serde_json::from_slice(line);
    let log = |error: &serde_json::Error| {
        let error = excerpt::sentence(&error.to_string());
        warn!(%error, "an event of the API server cannot be read");
    };
    event.inspect_err(log).ok()
}

/// The interruption that an event of type ERROR causes.
fn interruption(line: &[u8]) -> Interrupted {
    let Ok(ErrorEvent { object: status }) = serde_json::from_slice(line) else {
        return Interrupted::Unreachable;
    };
    debug!(reason = status.message, "the watch on the nodes was ended");
    if status.ends_history() { Interrupted::Gap } else { Interrupted::Unreachable }
}

/// The duration of a watch, in seconds, random so that watches of many nodes do not end together.
fn duration() -> u32 {
    rand::random_range(240..290)
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

fn record(update: Option<LeaseUpdate>) -> Option<Record> {
    match update? {
        LeaseUpdate::Put(record) => Some(record),
        LeaseUpdate::Snapshot(_) | LeaseUpdate::Remove(_) | LeaseUpdate::DeleteNode(_) => None,
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
            api: ApiOptions { urls: Vec::new(), kubeconfig: None },
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
            source.note(&mut records, &event(line).unwrap());
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
