//! Operators, who run `tweedctl migrate` somewhere with a good link to the store.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use futures::FutureExt;
use tokio::task::{JoinHandle, LocalSet};
use tweed::operator::migrate;
use tweed::store::ClusterStore;
use tweed::store::etcd::{EtcdClusterStore, EtcdOptions};
use tweed::store::kube::{AnnotationPrefix, ApiOptions, KubeClusterOptions, KubeClusterStore};

use crate::act::Order;
use crate::network::Link;
use crate::store::kubernetes::{CONFIG_MAP, NAMESPACE};
use crate::store::{Store, etcd, kubernetes};

/// The commands that run, and what has become of the others.
#[derive(Default)]
pub(crate) struct Operators {
    commands: LocalSet,
    running: RefCell<Vec<JoinHandle<()>>>,
    ended: Rc<RefCell<Vec<String>>>,
}

impl Operators {
    /// Runs a command in a terminal of its own.
    pub(crate) fn run(&self, store: &Store, order: Order) {
        let ended = Rc::clone(&self.ended);
        let store = store.clone();
        let running = self.commands.spawn_local(async move {
            let link = Link::default();
            let result = match store {
                Store::Etcd(etcd) => {
                    let transport = etcd.transport(&link);
                    let endpoints = vec![etcd::SERVER.to_owned()];
                    let prefix = etcd::CONFIG.trim_end_matches("/config").to_owned();
                    let options =
                        EtcdOptions { endpoints, prefix, transport, ..EtcdOptions::default() };
                    command(&EtcdClusterStore::new(options), order).await
                }
                Store::Kubernetes(server) => {
                    let transport = server.transport(&link);
                    let urls = vec![kubernetes::SERVER.to_owned()];
                    let options = KubeClusterOptions {
                        api: ApiOptions { urls, transport, ..ApiOptions::default() },
                        annotation_prefix: AnnotationPrefix::default(),
                        namespace: NAMESPACE.to_owned(),
                        config_map: CONFIG_MAP.to_owned(),
                    };
                    command(&KubeClusterStore::new(options), order).await
                }
            };
            tracing::info!(?order, result, "a command of tweedctl has ended");
            ended.borrow_mut().push(format!("{order:?}: {result}"));
        });
        self.running.borrow_mut().push(running);
    }

    /// Lets the commands run as far as they get.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.commands).poll(context)
    }

    /// The results of the commands that have ended since the last call.
    pub(crate) fn take_ended(&self) -> Vec<String> {
        std::mem::take(&mut *self.ended.borrow_mut())
    }

    /// Whether a command has panicked.
    pub(crate) fn have_panicked(&self) -> bool {
        let mut panicked = false;
        self.running.borrow_mut().retain_mut(|running| {
            let ended = running.now_or_never();
            panicked |= matches!(ended, Some(Err(_)));
            ended.is_none()
        });
        panicked
    }
}

/// Its exit status or error, and its output.
async fn command(store: &impl ClusterStore, order: Order) -> String {
    let (mut output, arguments) = (Vec::new(), order.arguments().split(' '));
    let arguments: Vec<&str> = arguments.collect();
    let result = migrate(store, &arguments, "operator", &mut output).await;
    let output = String::from_utf8_lossy(&output);
    match result {
        Ok(status) => format!("{status:?}: {output}"),
        Err(error) => format!("{error}: {output}"),
    }
}
