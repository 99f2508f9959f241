//! What the API server knows of Services, their endpoints and the Node of this host: each a stream that
//! starts with a snapshot and never ends.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::stream::BoxStream;
use tokio::time::Instant;
use tracing::{info, warn};
use tweed_client::api::{Client, Collection, Event, History, Kind};
use tweed_client::failover::{Failure, Outcomes};
use tweed_client::random::random;
use tweed_client::watch::{self, Interrupted, Listed, Source, Spread};
use tweed_netlink::excerpt;

use super::endpoints::{Slice, SliceName};
use super::object::{EndpointSliceObject, NodeObject, ServiceObject};
use super::service::{LABELS, Service, ServiceName};

/// A kind of objects, and what is kept of each.
pub trait Watched: Kind {
    type Key: Clone + Eq + Hash + Send + 'static;
    type Value: Send + 'static;

    /// None if the object is of no use here. `node`: the name of this node.
    fn read(object: &Self::Object<'_>, node: &str) -> (Self::Key, Option<Self::Value>);
}

/// A change of the objects of one kind.
pub enum Update<W: Watched> {
    /// These are all.
    All(HashMap<W::Key, W::Value>),
    /// None if it is gone, or of no use any more.
    One(W::Key, Option<W::Value>),
}

pub struct Services;

pub struct Slices;

pub struct Nodes;

impl Kind for Services {
    const PLURAL: &'static str = "services";

    type Object<'a> = ServiceObject;

    fn version(object: &ServiceObject) -> &str {
        &object.metadata.resource_version
    }
}

impl Watched for Services {
    type Key = ServiceName;
    type Value = Service;

    fn read(object: &ServiceObject, _: &str) -> (ServiceName, Option<Service>) {
        let name = ServiceName::of(&object.metadata.namespace, &object.metadata.name);
        (name, Service::of(object))
    }
}

impl Kind for Slices {
    const PLURAL: &'static str = "endpoint slices";

    type Object<'a> = EndpointSliceObject;

    fn version(object: &EndpointSliceObject) -> &str {
        &object.metadata.resource_version
    }
}

impl Watched for Slices {
    type Key = SliceName;
    type Value = (ServiceName, Slice);

    fn read(object: &EndpointSliceObject, node: &str) -> (SliceName, Option<(ServiceName, Slice)>) {
        (SliceName::of(object), Slice::of(object, node))
    }
}

impl Kind for Nodes {
    const PLURAL: &'static str = "nodes";

    type Object<'a> = NodeObject;

    fn version(object: &NodeObject) -> &str {
        &object.metadata.resource_version
    }
}

impl Watched for Nodes {
    type Key = String;
    /// The internal addresses.
    type Value = Vec<IpAddr>;

    fn read(object: &NodeObject, _: &str) -> (String, Option<Vec<IpAddr>>) {
        (object.metadata.name.clone(), Some(object.internal_addresses().collect()))
    }
}

/// All that is followed, by one client.
pub struct Watches {
    client: Arc<Client<Access>>,
    /// The name of this node.
    node: Arc<str>,
    /// Services without their endpoints, or with former ones, would be programmed meanwhile: after a
    /// gap, all kinds are listed at the same time.
    spread: Spread,
}

/// Over this time, all nodes spread new listings: until then, a node sees no change.
const SPREAD: Duration = Duration::from_secs(2);

impl Watches {
    /// `node`: the name of this node.
    pub fn new(client: Client<Access>, node: &str) -> Self {
        let spread = Spread::Fixed(SPREAD.mul_f64(random()));
        Self { client: Arc::new(client), node: node.into(), spread }
    }

    /// All services that no other proxy serves.
    pub fn services(&self) -> BoxStream<'static, Update<Services>> {
        self.updates(Collection { labels: LABELS, ..Collection::all("/api/v1/services") })
    }

    /// Their endpoint slices.
    pub fn slices(&self) -> BoxStream<'static, Update<Slices>> {
        let path = "/apis/discovery.k8s.io/v1/endpointslices";
        self.updates(Collection { labels: LABELS, ..Collection::all(path) })
    }

    /// This node only.
    pub fn nodes(&self) -> BoxStream<'static, Update<Nodes>> {
        let fields = format!("metadata.name={}", self.node);
        self.updates(Collection { fields, ..Collection::all("/api/v1/nodes") })
    }

    fn updates<W: Watched>(&self, collection: Collection) -> BoxStream<'static, Update<W>> {
        let (client, node) = (Arc::clone(&self.client), Arc::clone(&self.node));
        client.report.falls_silent(W::PLURAL);
        let history = History::new(Arc::clone(&client), collection);
        watch::updates(Objects { client, history, node }, self.spread)
    }
}

struct Objects<W> {
    client: Arc<Client<Access>>,
    history: History<W, Access>,
    node: Arc<str>,
}

impl<W: Watched> Source for Objects<W> {
    type Update = Update<W>;

    async fn list(&mut self) -> Result<Listed<Update<W>>, Interrupted> {
        let (mut all, node) = (HashMap::new(), Arc::clone(&self.node));
        let listed = self.history.list(|event| match update::<W>(event, &node) {
            Some(Update::One(key, Some(value))) => drop(all.insert(key, value)),
            Some(Update::One(key, None)) => drop(all.remove(&key)),
            Some(Update::All(new)) => all = new,
            None => {}
        });
        listed.await.map_err(|failure| self.interrupted(failure))?;
        self.client.report.lists(W::PLURAL);
        Ok(Listed { size: all.len(), snapshot: Update::All(all) })
    }

    async fn follow(&mut self) -> Result<Vec<Update<W>>, Interrupted> {
        let (client, node) = (Arc::clone(&self.client), Arc::clone(&self.node));
        let next = self.history.next(|event| {
            if matches!(event, Event::Resumed) {
                client.report.lists(W::PLURAL);
            }
            update(event, &node)
        });
        let next = next.await;
        next.map(|update| vec![update]).map_err(|failure| self.interrupted(failure))
    }
}

impl<W: Watched> Objects<W> {
    fn interrupted(&self, failure: Failure) -> Interrupted {
        self.client.report.falls_silent(W::PLURAL);
        Interrupted::by(failure, |refusal| {
            self.client.report.withholds(W::PLURAL, &refusal.to_string());
        })
    }
}

fn update<W: Watched>(event: Event<'_, W>, node: &str) -> Option<Update<W>> {
    match event {
        Event::Listing => Some(Update::All(HashMap::new())),
        Event::Resumed => None,
        Event::Put(object) => {
            let (key, value) = W::read(&object, node);
            Some(Update::One(key, value))
        }
        Event::Removed(object) => Some(Update::One(W::read(&object, node).0, None)),
    }
}

/// Whether the API server can be used; the log has each change of that.
#[derive(Clone, Debug, Default)]
pub struct Access(Arc<Mutex<Problems>>);

#[derive(Debug, Default)]
struct Problems {
    /// Why no server can be used.
    server: Option<String>,
    /// Why it does not list the objects of a kind.
    withheld: BTreeMap<&'static str, String>,
    /// Since when the watch of a kind is without an answer; none if it has one.
    silent: BTreeMap<&'static str, Option<Instant>>,
}

impl Access {
    /// For how long the watch of each kind has been without an answer.
    pub fn silences(&self) -> Vec<(&'static str, Duration)> {
        let silent = self.change(|problems| problems.silent.clone()).into_iter();
        let silence = |since: Option<Instant>| since.map(|at| at.elapsed()).unwrap_or_default();
        silent.map(|(plural, since)| (plural, silence(since))).collect()
    }

    /// The watch of a kind begins, or is interrupted.
    fn falls_silent(&self, plural: &'static str) {
        let since = |problems: &mut Problems| {
            problems.silent.entry(plural).or_default().get_or_insert_with(Instant::now);
        };
        self.change(since);
    }

    /// The objects of a kind were listed, or their watch is open.
    fn lists(&self, plural: &'static str) {
        self.change(|problems| problems.silent.insert(plural, None));
        if self.change(|problems| problems.withheld.remove(plural)).is_some() {
            info!("the API server lists the {plural} again");
        }
    }

    /// The API server answers, but does not list the objects of a kind.
    fn withholds(&self, plural: &'static str, reason: &str) {
        self.reachable();
        let reason = excerpt::sentence(reason);
        let known = self.change(|problems| problems.withheld.insert(plural, reason.clone()));
        if known.as_ref() != Some(&reason) {
            warn!(reason, "the API server does not list the {plural}");
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut Problems) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Outcomes for Access {
    fn reachable(&self) {
        if self.change(|problems| problems.server.take()).is_some() {
            info!("the API server answers again");
        }
    }

    fn unreachable(&self, reason: &str) {
        let reason = excerpt::sentence(reason);
        let known = self.change(|problems| problems.server.replace(reason.clone()));
        if known.is_none() {
            warn!(reason, "the API server cannot be used");
        }
    }

    fn unusable(&self) -> Option<String> {
        self.change(|problems| problems.server.clone())
    }

    /// A watch is no such request.
    fn refuses(&self, _sentence: &str) {}

    fn request_ended(&self, _asked: Instant) {}
}
