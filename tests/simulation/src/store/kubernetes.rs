//! An API server of Kubernetes in memory, reached over links that may fail.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;
use tower::Service;
use tweed_client::transport::Transport;
use tweed_lab::{ApiBody, ApiServer, Backup};

use super::{FULL, Health, think};
use crate::act::name;
use crate::network::{Direction, Link};
use crate::packets::stack::Stack;

/// Clones share one server.
#[derive(Clone, Debug)]
pub struct Kubernetes {
    server: Arc<ApiServer>,
    stack: Stack,
    health: Arc<Mutex<Health>>,
    /// How often the server has closed all connections.
    closings: watch::Sender<u64>,
}

/// As clients name it.
pub(crate) const SERVER: &str = "http://kubernetes";
/// The namespace of tweed's own objects.
pub const NAMESPACE: &str = "kube-flannel";
/// The object from which nodes mount the network config.
const CONFIG_MAPS: &str = "/api/v1/namespaces/kube-flannel/configmaps";
pub const CONFIG_MAP: &str = "kube-flannel-cfg";
const CONFIG: &str = "net-conf.json";
/// What a daemon writes into the annotations of its Node.
const PUBLISHED: [&str; 6] = [
    "public-ip",
    "public-ipv6",
    "backend-type",
    "backend-data",
    "backend-v6-data",
    "kube-subnet-manager",
];
const PREFIX: &str = "flannel.alpha.coreos.com/";

impl Kubernetes {
    pub fn new(stack: Stack) -> Self {
        let server = Arc::new(ApiServer::in_memory());
        let health = Arc::new(Mutex::new(Health::Up));
        Self { server, stack, health, closings: watch::Sender::new(0) }
    }

    /// A machine joins the cluster, which assigns the subnet of this number to it.
    pub fn add_node(&self, index: usize, number: usize) {
        let subnets = self.stack.subnets(number);
        let subnets: Vec<String> = subnets.iter().map(ToString::to_string).collect();
        let subnets: Vec<&str> = subnets.iter().map(String::as_str).collect();
        self.server.add_node(&name(index), &subnets);
    }

    /// The kubelet of a node reports its state, at this time.
    pub fn heartbeat(&self, index: usize, time: Duration) {
        self.server.heartbeat(&name(index), time.as_secs());
    }

    /// The network config; none if there is none.
    pub fn config(&self) -> Option<String> {
        let object = self.server.get(CONFIG_MAPS, CONFIG_MAP)?;
        object.pointer("/data")?.get(CONFIG)?.as_str().map(ToOwned::to_owned)
    }

    /// Writes the network config, or removes it, as `kubectl` does.
    pub fn set_config(&self, text: Option<&str>) {
        let data = json!({ "data": { CONFIG: text } });
        match self.server.get(CONFIG_MAPS, CONFIG_MAP) {
            Some(_) => self.server.patch(CONFIG_MAPS, CONFIG_MAP, &data),
            None => self.server.add(CONFIG_MAPS, CONFIG_MAP, &data),
        }
    }

    /// How a client reaches the server by `link`.
    pub fn transport(&self, link: &Link) -> Transport<Client> {
        let connection = Connection { kubernetes: self.clone(), link: link.clone() };
        Transport::Channels(Arc::new(move |_| Ok(Client::new(connection.clone(), NAMESPACE))))
    }

    pub fn health(&self) -> Health {
        *self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_health(&self, health: Health) {
        *self.health.lock().unwrap_or_else(PoisonError::into_inner) = health;
        if health == Health::Down {
            self.close();
        }
    }

    /// A watch that has not followed has to list all objects again.
    pub fn compact(&self) {
        self.server.compact();
    }

    pub fn back_up(&self) -> Backup {
        self.server.back_up()
    }

    /// The machine is removed from the cluster, as `kubectl` does.
    pub fn delete_node(&self, index: usize) {
        self.server.delete_node(&name(index));
    }

    /// Kubelets register those `nodes` that the backup does not have.
    pub fn restore(&self, backup: Backup, nodes: &[usize]) {
        self.server.restore(backup);
        let lacks = |it: &&usize| self.server.node(&name(**it)).is_none();
        nodes.iter().filter(lacks).for_each(|it| self.add_node(*it, it + 1));
        self.close();
    }

    /// An operator removes what the daemon of a node has published.
    pub fn remove_annotations(&self, index: usize) {
        for key in PUBLISHED {
            self.server.annotate(&name(index), key, None);
        }
    }

    pub fn version(&self) -> u64 {
        self.server.version()
    }

    /// The subnets of all nodes whose daemons have published something, and that.
    pub fn leases(&self) -> Vec<(String, String)> {
        let nodes = self.server.nodes();
        nodes.iter().filter_map(published).collect()
    }

    /// What the daemon of one node has published, with its subnet.
    pub fn lease(&self, index: usize) -> Option<(String, String)> {
        published(&self.node(index)?)
    }

    /// All Nodes.
    pub fn nodes(&self) -> Vec<Value> {
        self.server.nodes()
    }

    pub fn node(&self, index: usize) -> Option<Value> {
        self.server.node(&name(index))
    }

    /// Writes an annotation of flannel's.
    pub fn annotate(&self, index: usize, key: &str, value: &str) {
        self.server.annotate(&name(index), key, Some(value));
    }

    fn close(&self) {
        self.closings.send_modify(|count| *count += 1);
    }
}

fn published(node: &Value) -> Option<(String, String)> {
    let subnet = node.pointer("/spec/podCIDR")?.as_str()?.replace('/', "-");
    let of = |key: &str| annotation(node, key);
    of("public-ip").or_else(|| of("public-ipv6"))?;
    let values: Vec<String> =
        PUBLISHED.iter().filter_map(|key| of(key)).map(Value::to_string).collect();
    Some((subnet, values.join(" ")))
}

/// An annotation of flannel's; a text.
pub(crate) fn annotation<'a>(node: &'a Value, key: &str) -> Option<&'a Value> {
    node.pointer("/metadata/annotations")?.get(format!("{PREFIX}{key}"))
}

#[derive(Clone)]
struct Connection {
    kubernetes: Kubernetes,
    link: Link,
}

type Answer = Response<ApiBody>;

impl Service<Request<Body>> for Connection {
    type Response = Answer;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Answer>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let connection = self.clone();
        Box::pin(async move { connection.answer(request).await })
    }
}

impl Connection {
    async fn answer(&self, request: Request<Body>) -> io::Result<Answer> {
        let Self { kubernetes, link } = self;
        link.count();
        let closings = kubernetes.closings.subscribe();
        if kubernetes.health() == Health::Down {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        link.arrive(Direction::Request).await;
        think(kubernetes.health()).await;
        let response = match kubernetes.health() {
            Health::Down => return Err(closed()),
            Health::Leaderless => ApiServer::failure("etcdserver: leader changed"),
            Health::Full if request.method() != Method::GET => ApiServer::failure(FULL),
            Health::Up | Health::Full | Health::Slow(_) => kubernetes.server.answer(request).await,
        };
        link.arrive(Direction::Answer).await;
        if closings.has_changed().unwrap_or(true) {
            return Err(closed());
        }
        let (parts, body) = response.into_parts();
        let frames = stream::unfold(Some((BodyStream::new(body), link.clone(), closings)), frame);
        Ok(Response::from_parts(parts, StreamBody::new(frames).boxed_unsync()))
    }
}

type Frames = (BodyStream<ApiBody>, Link, watch::Receiver<u64>);

/// Takes the next frame back, until the server closes the connection.
async fn frame(frames: Option<Frames>) -> Option<(io::Result<Frame<Bytes>>, Option<Frames>)> {
    let (mut body, link, mut closings) = frames?;
    let next = tokio::select! {
        biased;
        _ = closings.changed() => Some(Err(closed())),
        next = body.next() => next,
    };
    let frame = next?;
    link.arrive(Direction::Answer).await;
    let rest = frame.is_ok().then_some((body, link, closings));
    Some((frame, rest))
}

fn closed() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}
