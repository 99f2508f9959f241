//! Builds the parts of the daemon and runs their tasks; when the first task ends, all end.

pub mod checkpoint;
mod files;
mod keep;
mod log;
pub mod metrics;
pub mod options;
mod preflight;
mod probe;
mod report;
pub mod resources;
mod serve;
mod systemd;

use files::{Content, Turns, WithdrawalReason};
pub use files::{load_checkpoint, previous};
use keep::OwnLease;
pub use log::{LogFormat, log_to_stderr};
pub use serve::trace_path;
use tweed_http::page::Histogram;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use jiff::Timestamp;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinSet, LocalSet, spawn_blocking};
use tokio::time::{Instant, timeout};

use crate::control::{Event, Outputs, Progress, Query, Reconciler};
use crate::daemon::options::{Options, StoreOptions};
use crate::kernel::{Kernel, NetlinkKernel};
use crate::model::checkpoint::{Checkpoint, HostId};
use crate::plan::preflight::Level;
use crate::store::etcd::EtcdSubnetManager;
use crate::store::kube::KubeSubnetManager;
use crate::store::{self, Documents, LeaseTerm, Leases};
use serve::Servers;

/// The number of events that may wait for the loop; a sender of more waits.
const EVENTS: usize = 1024;

/// The timeout for an answer of the loop: a later one means that it is stuck.
const ANSWER: Duration = Duration::from_secs(5);

/// How often the subnet file, the checkpoint and the control socket are looked for: another program may remove them.
const CHECK: Duration = Duration::from_secs(10);

/// What the tasks around the loop share.
#[derive(Clone)]
struct Shared {
    options: Rc<Options>,
    host: HostId,
    events: mpsc::Sender<Event>,
    progress: watch::Receiver<Progress>,
    heartbeat: watch::Receiver<Instant>,
    turns: Turns,
    /// What subnet.env has had since it was written last, or why it could not be written.
    subnet_file: watch::Sender<Result<Content, String>>,
    /// The findings of the last check of the host, by level; none before the first one.
    findings: watch::Sender<Option<BTreeMap<Level, usize>>>,
    requests: watch::Receiver<Histogram>,
    term: watch::Receiver<LeaseTerm>,
    started: SystemTime,
    begun: Instant,
    blocking: Blocking,
}

impl Shared {
    /// The time for reports. A simulation has a clock of its own, or a history could not be repeated.
    fn now(&self) -> Timestamp {
        match self.blocking {
            Blocking::Threads => Timestamp::now(),
            Blocking::Inline => {
                let passed = i64::try_from(self.begun.elapsed().as_secs()).unwrap_or_default();
                Timestamp::from_second(passed).unwrap_or_default()
            }
        }
    }

    async fn send(&self, event: Event) -> Result<()> {
        self.events.send(event).await.context("the loop has ended")
    }

    /// The loop's answer to `query`; an error if it takes longer than [`ANSWER`].
    async fn ask<T>(&self, query: impl FnOnce(oneshot::Sender<T>) -> Query) -> Result<T> {
        timeout(ANSWER, self.wait_for(query)).await.context("the loop does not answer")?
    }

    /// The loop's answer to `query`, however long it takes.
    async fn wait_for<T>(&self, query: impl FnOnce(oneshot::Sender<T>) -> Query) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.send(Event::Query(query(reply))).await?;
        answer.await.context("the loop has ended")
    }

    /// Waits until the node is ready and the subnet file is written.
    async fn until_ready(&self) -> Result<()> {
        let (mut progress, mut file) = (self.progress.clone(), self.subnet_file.subscribe());
        while !self.readiness().ready {
            tokio::select! {
                biased;
                changed = progress.changed() => changed.context("the loop has ended")?,
                changed = file.changed() => changed.context("the subnet file is not written")?,
            }
        }
        Ok(())
    }
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// What waiting would not fix, as a message for the operator.
pub async fn run(options: Options) -> Result<()> {
    preflight::refuse_other_daemons()?;
    options.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    files::warn_of_readable_keys(&options);
    let host = checkpoint::this_host();
    let remembered = files::load_checkpoint(&options, &host);
    let tasks = async {
        match options.store.clone() {
            StoreOptions::Etcd(etcd) => {
                let previous = files::previous(&options, remembered.as_ref());
                let manager = EtcdSubnetManager::new(etcd, previous, options.lease);
                run_tasks((options, host), manager, remembered).await
            }
            StoreOptions::Kube(kube) => {
                let previous = remembered.as_ref().map(Checkpoint::granted_subnets);
                let manager = KubeSubnetManager::with_previous(kube, previous.unwrap_or_default());
                run_tasks((options, host), manager, remembered).await
            }
        }
    };
    LocalSet::new().run_until(Box::pin(tasks)).await
}

/// Runs all tasks of a daemon on this host.
async fn run_tasks<S: Leases + Documents + 'static>(
    (options, host): (Options, HostId),
    manager: Arc<S>,
    remembered: Option<Checkpoint>,
) -> Result<()> {
    let kernel = NetlinkKernel::open().context("opening a netlink socket")?;
    let endpoints = Servers::bind(&options)?;
    let parts = Parts { options, host, manager, kernel, remembered, blocking: Blocking::Threads };
    let mut daemon = Daemon::start(parts).await?;
    let (tasks, shared, manager) = (&mut daemon.tasks, &daemon.shared, &daemon.manager);
    tasks.spawn_local(probe::probe_paths(manager.clone(), shared.clone()));
    tasks.spawn_local(systemd::notify_when_ready(shared.clone()));
    tasks.spawn_local(preflight::check_host(shared.clone()));
    tasks.spawn_local(endpoints.serve(shared.clone()));
    tasks.spawn_local(wait_for_stop(shared.clone()));
    daemon.ended().await
}

/// What a daemon is made of. A simulation has another kernel, store and host.
pub struct Parts<S, K> {
    pub options: Options,
    pub host: HostId,
    pub manager: Arc<S>,
    pub kernel: K,
    /// The checkpoint of the last run.
    pub remembered: Option<Checkpoint>,
    pub blocking: Blocking,
}

/// The loop, and the tasks between it, the store and the files.
pub struct Daemon<S> {
    tasks: JoinSet<Result<()>>,
    shared: Shared,
    manager: Arc<S>,
}

impl<S: Leases + Documents + 'static> Daemon<S> {
    /// Starts the tasks, which run until the first one ends. To be called in a [`LocalSet`].
    ///
    /// # Errors
    /// The loop has ended already.
    pub async fn start<K: Kernel + 'static>(parts: Parts<S, K>) -> Result<Self> {
        let Parts { options, host, manager, kernel, remembered, blocking } = parts;
        let (events, inbox) = mpsc::channel(EVENTS);
        let outputs = Outputs::default();
        let [reported, changed] =
            [&outputs.reported, &outputs.changed].map(watch::Sender::subscribe);
        let read_again = outputs.read_again.subscribe();
        let shared = Shared {
            options: Rc::new(options),
            host,
            events,
            progress: outputs.progress.subscribe(),
            heartbeat: outputs.heartbeat.subscribe(),
            turns: Turns::default(),
            subnet_file: watch::Sender::new(Err(files::NOT_WRITTEN.to_owned())),
            findings: watch::Sender::default(),
            requests: manager.report().requests(),
            term: manager.report().term(),
            started: SystemTime::now(),
            begun: Instant::now(),
            blocking,
        };
        let reconciler = Reconciler::new(kernel, shared.options.control.clone(), inbox, outputs);
        let own = watch::Sender::new(OwnLease::Unknown);
        let lease =
            remembered.as_ref().and_then(|it| it.local.own.as_ref()).map(|own| own.id.clone());
        if let Some(checkpoint) = remembered {
            // The loop must have it before the first event of the store.
            shared.send(Event::Remembered(Box::new(checkpoint))).await?;
        }

        let mut tasks = JoinSet::new();
        let leases =
            keep::forward_leases(manager.clone(), shared.clone(), own.subscribe(), read_again);
        tasks.spawn_local(leases);
        let noted = reported.clone();
        tasks.spawn_local(report::forward_events(manager.clone(), shared.clone(), noted));
        let triggers = (reported, own.subscribe());
        tasks.spawn_local(report::keep_report(manager.clone(), shared.clone(), triggers));
        tasks.spawn_local(keep::forward_state(manager.clone(), shared.clone()));
        tasks.spawn_local(keep::forward_config(manager.clone(), shared.clone()));
        tasks.spawn_local(keep::announce_when_ready(manager.clone(), shared.clone()));
        tasks.spawn_local(keep::keep_lease(manager.clone(), shared.clone(), lease, own));
        tasks.spawn_local(files::keep_subnet_file(shared.clone()));
        tasks.spawn_local(files::keep_checkpoint(shared.clone(), changed));
        tasks.spawn_local(async {
            reconciler.run().await;
            Ok(())
        });
        Ok(Self { tasks, shared, manager })
    }

    /// Where events for the loop are sent.
    pub fn events(&self) -> mpsc::Sender<Event> {
        self.shared.events.clone()
    }

    pub fn manager(&self) -> Arc<S> {
        self.manager.clone()
    }

    /// Waits for the first task that ends; all others end with it.
    ///
    /// # Errors
    /// Why it ended, if that was not intended.
    pub async fn ended(self) -> Result<()> {
        let Self { mut tasks, shared, manager } = self;
        let (options, turns) = (Rc::clone(&shared.options), shared.turns.clone());
        let files = (shared.blocking, &turns);
        let content = shared.subnet_file.subscribe();
        // Only the tasks may keep senders of the loop's events.
        drop(shared);
        let ended = tasks.join_next().await.context("no task was started")?;
        drop(tasks);
        let ended = ended.context("a task panicked")?;
        let lost = ended.as_ref().err().and_then(|error| match error.downcast_ref() {
            Some(store::Error::Taken { .. }) => Some(WithdrawalReason::Taken),
            Some(store::Error::OutsideNetwork { subnet, .. }) => {
                Some(WithdrawalReason::Outside(*subnet))
            }
            _ => None,
        });
        let content = content.borrow().clone().ok();
        if let Some(reason) = lost {
            files::withdraw_subnet_file(&options, files, reason, content).await;
        } else if ended.is_ok() && options.release_on_exit {
            release(&options, files, content, &*manager).await;
        }
        ended
    }
}

/// Gives the lease back: no pod may get an address of it any more, so the subnet file is removed first.
async fn release(
    options: &Options,
    files: (Blocking, &Turns),
    content: Option<Content>,
    manager: &impl Leases,
) {
    if !files::withdraw_subnet_file(options, files, WithdrawalReason::Released, content).await {
        tracing::warn!("the lease is not released: it ends with its TTL");
        return;
    }
    match timeout(ANSWER, manager.release()).await {
        Ok(true) => tracing::info!("gave the lease back"),
        Ok(false) => tracing::info!("no lease with a term is held, so none is given back"),
        Err(_) => tracing::warn!("the store does not answer: the lease ends with its term"),
    }
}

/// Where work is done that a slow disk may delay, and whose clock counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocking {
    /// In a thread of its own, so that a disk that hangs does not delay the other tasks.
    Threads,
    /// At once: for a simulation, in which nothing may depend on other threads.
    Inline,
}

impl Blocking {
    async fn run<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        match self {
            Self::Threads => spawn_blocking(work).await.context("waiting for a disk"),
            Self::Inline => Ok(work()),
        }
    }
}

async fn wait_for_stop(shared: Shared) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => tracing::info!("stopping on SIGTERM: the kernel entries stay"),
        _ = interrupt.recv() => tracing::info!("stopping on SIGINT: the kernel entries stay"),
    }
    files::save_at_stop(&shared).await;
    Ok(())
}
