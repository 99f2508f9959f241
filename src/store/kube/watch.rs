//! The history of all nodes, as leases.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tweed_client::api::{Continuity, Event, GAP, History, Kind};
use tweed_client::failover::{Failure, Refusal};
use tweed_client::watch::{Interrupted, Listed, Source};

use super::node::{NodeObject, Reader};
use super::own::{OurNode, OwnNode};
use super::{KubeSubnetManager, request};
use crate::model::lease::{LeaseId, LeaseUpdate, Record};
use crate::store::report::Report;
use crate::store::snapshot;

pub(super) struct KubeSource {
    history: History<Nodes, Report>,
    nodes: KnownNodes,
}

pub(super) struct Nodes;

/// What is known of all nodes.
struct KnownNodes {
    manager: Arc<KubeSubnetManager>,
    reader: Reader,
    known: HashMap<Arc<str>, Known>,
}

/// What was last reported of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    fingerprint: u64,
    /// Whether flannel or tweed manages its lease, which is then reported.
    is_managed: bool,
}

impl Kind for Nodes {
    const PLURAL: &'static str = "nodes";

    type Object<'a> = NodeObject<'a>;

    fn version<'a>(node: &'a NodeObject<'_>) -> &'a str {
        &node.metadata.resource_version
    }
}

impl Source for KubeSource {
    type Update = LeaseUpdate;

    async fn list(&mut self) -> Result<Listed<LeaseUpdate>, Interrupted> {
        let manager = Arc::clone(&self.nodes.manager);
        self.nodes.reader = manager.reader();
        manager.ours.send_if_modified(OurNode::forget_version);
        let mut records = BTreeMap::new();
        let listed = self.history.list(|event| self.nodes.list(&mut records, event)).await;
        listed.map_err(|failure| manager.client.report.interrupted(failure))?;
        self.nodes.note_missing_own(self.history.listed());
        manager.client.report.withholds_leases(None);
        Ok(snapshot(records.into_values().collect()))
    }

    async fn follow(&mut self) -> Result<Vec<LeaseUpdate>, Interrupted> {
        let update = self.next().await;
        let report = &self.nodes.manager.client.report;
        update.map(|it| vec![it]).map_err(|failure| report.interrupted(failure))
    }
}

impl KubeSource {
    pub(super) fn new(manager: Arc<KubeSubnetManager>) -> Self {
        Self {
            history: History::new(Arc::clone(&manager.client), request::NODES),
            nodes: KnownNodes { reader: manager.reader(), manager, known: HashMap::new() },
        }
    }

    async fn next(&mut self) -> Result<LeaseUpdate, Failure> {
        if self.history.is_broken() {
            let continuity = self.history.check().await?;
            self.nodes.manager.check_own(continuity).await?;
            self.history.confirmed();
        }
        self.history.next(|event| self.nodes.follow(event)).await
    }
}

impl KnownNodes {
    /// Nodes may change, be removed, or stop being managed while they are listed.
    fn list(&mut self, records: &mut BTreeMap<LeaseId, Record>, event: Event<'_, Nodes>) {
        if matches!(event, Event::Listing) {
            records.clear();
        }
        match self.follow(event) {
            Some(LeaseUpdate::Put(record)) => drop(records.insert(record.id.clone(), record)),
            Some(LeaseUpdate::Remove(id) | LeaseUpdate::DeleteNode(id)) => {
                records.remove(&id);
            }
            Some(LeaseUpdate::Snapshot(_)) | None => {}
        }
    }

    fn follow(&mut self, event: Event<'_, Nodes>) -> Option<LeaseUpdate> {
        match event {
            Event::Listing => {
                self.known.clear();
                None
            }
            Event::Resumed => {
                self.manager.client.report.withholds_leases(None);
                None
            }
            Event::Put(node) => self.put(&node),
            Event::Removed(node) => self.remove(&node),
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
            self.manager.ours.send_if_modified(|ours| ours.see(own));
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
            let own = OwnNode::of(node, &self.reader);
            self.manager.ours.send_if_modified(|ours| ours.see_deleted(&own));
        }
        let known = self.known.remove(name)?;
        known.is_managed.then(|| LeaseUpdate::DeleteNode(LeaseId::new(name)))
    }

    /// Notes that our node does not exist, if a listing of all nodes of this version lacks it, and no
    /// request has returned it since then.
    fn note_missing_own(&self, version: u64) {
        let name = self.manager.ours.borrow().name.clone();
        if name.is_some_and(|name| !self.known.contains_key(name.as_str())) {
            let see = |ours: &mut OurNode| !ours.is_after(version) && ours.set_seen(None);
            self.manager.ours.send_if_modified(see);
        }
    }

    fn is_own(&self, name: &str) -> bool {
        self.manager.ours.borrow().name.as_deref() == Some(name)
    }
}

impl KubeSubnetManager {
    /// Checks, after an interruption, that our own node is not older than known. `continuity`: whether
    /// the cluster has what the watch has read.
    async fn check_own(&self, continuity: Continuity) -> Result<(), Failure> {
        let known = self.ours.borrow().clone();
        // The watch may not have read what this node wrote last: a backup may lack only that.
        if matches!(continuity, Continuity::UpTo(version) if !known.is_after(version)) {
            return Ok(());
        }
        let Some((name, known)) = known.name.as_deref().zip(known.node()) else { return Ok(()) };
        match self.client.once(&request::node(name)).await {
            Ok(body) => match self.decode(&body) {
                Some(node) if known.is_later_than(&node) => Err(self.client.was_restored()),
                // Versions may have reached ours: then what differs from our write shows it.
                node => {
                    let see = |node| self.ours.send_if_modified(|ours| ours.see(node));
                    node.map(see);
                    Ok(())
                }
            },
            Err(Failure::Refused(Refusal::Absent)) => Err(GAP),
            Err(failure) => Err(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tweed_client::api::ApiOptions;

    use super::*;
    use crate::store::kube::{AnnotationPrefix, KubeOptions, KubeSubnetManager, NodeRef};

    fn source() -> KubeSource {
        let options = KubeOptions {
            api: ApiOptions::default(),
            annotation_prefix: AnnotationPrefix::default(),
            node: NodeRef::Name("n1".to_owned()),
            pod: None,
            namespace: None,
            net_config: "/nowhere/net-conf.json".into(),
            clears_condition: false,
        };
        KubeSource::new(KubeSubnetManager::new(options))
    }

    /// Node n3, which flannel manages if it has this public IP.
    fn node(public_ip: Option<&str>) -> Value {
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
        json!({ "metadata": metadata, "spec": spec })
    }

    type MakeEvent = fn(NodeObject<'_>) -> Event<'_, Nodes>;

    /// The public IPs of n3 in the listing after these events.
    fn listed(events: &[(MakeEvent, Option<&str>)]) -> Vec<String> {
        let (mut source, mut records) = (source(), BTreeMap::new());
        for (event, public_ip) in events {
            let text = node(*public_ip).to_string();
            let node = serde_json::from_str(&text).unwrap();
            source.nodes.list(&mut records, event(node));
        }
        let public_ips = records.values().map(|record| record.lease.as_ref().unwrap());
        public_ips.map(|lease| lease.endpoints[0].public_ip.to_string()).collect()
    }

    #[test]
    fn a_node_that_changes_during_the_listing_has_its_last_version() {
        let put: MakeEvent = |node| Event::Put(node);
        let removed: MakeEvent = |node| Event::Removed(node);
        let added = (put, Some("172.18.0.3"));
        assert_eq!(listed(&[added, (put, Some("172.18.0.33"))]), ["172.18.0.33"]);
        assert_eq!(listed(&[added, added]), ["172.18.0.3"]);
        assert_eq!(listed(&[added, (put, None)]), [""; 0]);
        assert_eq!(listed(&[added, (removed, None)]), [""; 0]);
        assert_eq!(listed(&[added, (|_| Event::Listing, None)]), [""; 0]);
    }
}
