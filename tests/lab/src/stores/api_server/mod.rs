//! An API server of Kubernetes in a thread: real HTTP, with injected faults.

#![allow(clippy::indexing_slicing, reason = "an index into JSON finds null where nothing is")]

mod fault;
mod merge;
mod reply;
mod selector;
mod serve;
mod state;
mod store;
mod watch;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use serde_json::{Value, json};
use tokio::sync::oneshot;

pub use fault::{Faults, Gone, Lists, Page};
use hyper::body::Body as HttpBody;
use hyper::{Request, Response, StatusCode};
pub use reply::Body as ApiBody;

use crate::network::namespace::Namespace;
use crate::network::segment::Segment;
use crate::wait::{PATIENCE, eventually, lock};
use crate::world::World;
use selector::Selector;
use state::Shared;

const NODES: &str = "/api/v1/nodes";
const PORT: u16 = 6443;

/// Objects are kept while the server is stopped.
#[derive(Debug)]
pub struct ApiServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    /// The namespace of the address, if not the caller's.
    namespace: Option<Namespace>,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<io::Result<()>>,
}

/// All objects at some time.
#[derive(Clone, Debug)]
pub struct Backup(store::Store);

/// A request that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// `PATCH /api/v1/nodes/n1/status`.
    pub what: String,
    pub query: String,
    pub content_type: String,
    pub body: String,
}

impl ApiServer {
    /// On an unused port of this host.
    pub fn start() -> Result<Self> {
        Self::serve(SocketAddr::from(([127, 0, 0, 1], 0)), None)
    }

    /// On an unused port of a namespace.
    pub fn start_in(namespace: &Namespace) -> Result<Self> {
        Self::serve(SocketAddr::from(([127, 0, 0, 1], 0)), Some(namespace.clone()))
    }

    /// On the management network of a lab.
    pub(crate) fn build(world: &World, management: &Segment) -> Result<Self> {
        let namespace = world.namespace(&format!("api{}", world.number()))?;
        let wire = management.join(&namespace, "eth0")?;
        let address = wire.addresses.first().context("the management network is empty")?.ip();
        Self::serve(SocketAddr::new(address, PORT), Some(namespace))
    }

    fn serve(wanted: SocketAddr, namespace: Option<Namespace>) -> Result<Self> {
        let listener = bind(wanted, namespace.as_ref())?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let running = Some(run(&shared, listener)?);
        Ok(Self { shared, address, namespace, running })
    }

    /// Without sockets: only [`answer`](Self::answer) reaches it. Bookmarks are as rare as those of
    /// a real server.
    pub fn in_memory() -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let shared = Shared { bookmarks: Some(watch::REAL_BOOKMARK), ..Shared::default() };
        Self { shared: Arc::new(shared), address, namespace: None, running: None }
    }

    /// The answer to a request, as over a socket.
    pub async fn answer<B: HttpBody>(&self, request: Request<B>) -> Response<ApiBody> {
        serve::answer(&self.shared, request).await
    }

    /// The answer of a server that cannot use its etcd.
    pub fn failure(message: &str) -> Response<ApiBody> {
        reply::refusal(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Ends every connection, and accepts no new ones.
    pub fn stop(&mut self) -> Result<()> {
        let Some(Running { stop, thread }) = self.running.take() else { return Ok(()) };
        // The server may have ended already.
        stop.send(()).unwrap_or_default();
        thread.join().map_err(|_| anyhow!("the API server panicked"))??;
        Ok(())
    }

    /// After a [`stop`](Self::stop), at the same address.
    pub fn start_again(&mut self) -> Result<()> {
        let mut bound = None;
        // A process that is just being started may hold the earlier socket for a moment.
        eventually(PATIENCE, || {
            bound = Some(bind(self.address, self.namespace.as_ref())?);
            Ok::<_, anyhow::Error>(())
        })?;
        self.running = Some(run(&self.shared, bound.context("no socket")?)?);
        Ok(())
    }

    /// Changes the injected faults.
    pub fn fail(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut lock(&self.shared.faults));
    }

    pub fn add_node(&self, name: &str, pod_cidrs: &[&str]) {
        let spec = match pod_cidrs.first() {
            Some(first) => json!({ "podCIDR": first, "podCIDRs": pod_cidrs }),
            None => json!({}),
        };
        let node = json!({ "kind": "Node", "apiVersion": "v1", "spec": spec, "status": {} });
        self.shared.change(|store| store.create(node_place(name), node));
    }

    /// Adds a node as another daemon would leave it.
    pub fn add_peer(&self, name: &str, pod_cidr: &str, annotations: &[(&str, &str)]) {
        let annotations: serde_json::Map<String, Value> = annotations
            .iter()
            .map(|(key, value)| (format!("flannel.alpha.coreos.com/{key}"), (*value).into()))
            .collect();
        let node = json!({
            "kind": "Node",
            "apiVersion": "v1",
            "metadata": { "annotations": annotations },
            "spec": { "podCIDR": pod_cidr, "podCIDRs": [pod_cidr] },
            "status": { "conditions": [] },
        });
        self.shared.change(|store| store.create(node_place(name), node));
    }

    /// Adds any other object, in `/api/v1/namespaces/kube-flannel/pods` for example.
    pub fn add(&self, collection: &str, name: &str, object: &Value) {
        let place = (collection.to_owned(), name.to_owned());
        self.shared.change(|store| store.create(place, object.clone()));
    }

    /// As `kubectl patch`.
    pub fn patch(&self, collection: &str, name: &str, patch: &Value) {
        let place = (collection.to_owned(), name.to_owned());
        self.shared.change(|store| store.patch(&place, patch));
    }

    pub fn delete(&self, collection: &str, name: &str) {
        let place = (collection.to_owned(), name.to_owned());
        self.shared.change(|store| store.delete(&place));
    }

    pub fn get(&self, collection: &str, name: &str) -> Option<Value> {
        lock(&self.shared.store).get(&(collection.to_owned(), name.to_owned())).cloned()
    }

    /// Raises the resource version by a change of another object.
    pub fn change_something_else(&self) {
        self.shared.change(|store| {
            let name = format!("e{}", store.version());
            store.create(("/api/v1/events".to_owned(), name), json!({}))
        });
    }

    pub fn delete_node(&self, name: &str) {
        self.shared.change(|store| store.delete(&node_place(name)));
    }

    /// As `kubectl patch node`.
    pub fn patch_node(&self, name: &str, patch: &Value) {
        self.shared.change(|store| store.patch(&node_place(name), patch));
    }

    /// Writes an annotation of flannel's; none removes it.
    pub fn annotate(&self, name: &str, key: &str, value: Option<&str>) {
        let key = format!("flannel.alpha.coreos.com/{key}");
        self.patch_node(name, &json!({ "metadata": { "annotations": { key: value } } }));
    }

    /// The periodic status update of a node's kubelet.
    pub fn heartbeat(&self, name: &str, count: u64) {
        let condition = json!({ "type": "Ready", "lastHeartbeatTime": format!("beat {count}") });
        self.patch_node(name, &json!({ "status": { "conditions": [condition] } }));
    }

    /// None if there is no such node.
    pub fn node(&self, name: &str) -> Option<Value> {
        lock(&self.shared.store).get(&node_place(name)).cloned()
    }

    /// `None` if the node has no such annotation of flannel's.
    pub fn annotation(&self, name: &str, key: &str) -> Option<String> {
        let node = self.node(name)?;
        let value = &node["metadata"]["annotations"][format!("flannel.alpha.coreos.com/{key}")];
        value.as_str().map(ToOwned::to_owned)
    }

    /// Compacts the history: a watch that has not followed must list all objects again.
    pub fn compact(&self) {
        self.shared.change(store::Store::compact);
    }

    /// As after a restore from a backup: versions restart at `version`.
    pub fn rewind(&self, version: u64) {
        self.shared.change(|store| store.rewind(version));
    }

    /// A copy of all objects, and of the version.
    pub fn back_up(&self) -> Backup {
        Backup(lock(&self.shared.store).clone())
    }

    /// As after a restore of the etcd below the server: objects and history are those of the
    /// backup, and versions go on from there.
    pub fn restore(&self, Backup(store): Backup) {
        self.shared.change(|present| {
            present.restore(store);
            // Before any watch can read the new history.
            self.drop_watches();
        });
    }

    pub fn version(&self) -> u64 {
        lock(&self.shared.store).version()
    }

    pub fn nodes(&self) -> Vec<Value> {
        self.list(NODES)
    }

    /// All objects of a collection, such as `/api/v1/services`.
    pub fn list(&self, collection: &str) -> Vec<Value> {
        let selector = Selector::all(collection);
        lock(&self.shared.store).list(&selector, None).map(|(_, object)| object.clone()).collect()
    }

    /// Ends every watch; clients start new ones.
    pub fn drop_watches(&self) {
        self.shared.watches.send_modify(|generation| *generation += 1);
    }

    /// The requests since the last call.
    pub fn take_asked(&self) -> Vec<Asked> {
        std::mem::take(&mut lock(&self.shared.asked))
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        drop(self.stop());
    }
}

fn run(shared: &Arc<Shared>, listener: TcpListener) -> Result<Running> {
    let (stop, stopped) = oneshot::channel();
    listener.set_nonblocking(true)?;
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new()
        .name("api-server".to_owned())
        .spawn(move || serve::run(&shared, listener, stopped))?;
    Ok(Running { stop, thread })
}

/// A socket stays in the namespace where it was created.
fn bind(address: SocketAddr, namespace: Option<&Namespace>) -> Result<TcpListener> {
    let listener = match namespace {
        Some(namespace) => namespace.within(|| TcpListener::bind(address))?,
        None => TcpListener::bind(address),
    };
    listener.with_context(|| format!("binding {address}"))
}

fn node_place(name: &str) -> selector::Place {
    (NODES.to_owned(), name.to_owned())
}
