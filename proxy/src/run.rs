//! Follows the API server, and programs what changes.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::{Future, pending};
use std::io;
use std::mem;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use tokio::select;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;
use tweed_client::api::{ApiOptions, Client, Program};
use tweed_client::backoff::Backoff;
use tweed_client::random::random;
use tweed_netlink::Monitor;

use crate::metrics::{Figures, Servers};
use crate::options::{NodeOptions, Run, own_addresses};
use tweed_proxy::kernel::{self, Kernel};
use tweed_proxy::objects::watch::{Access, Nodes, Services, Slices, Update, Watches};
use tweed_proxy::plan::cluster::{Cluster, NodeAddresses};
use tweed_proxy::reconciler::Reconciler;

const PROGRAM: Program = Program {
    agent: concat!("tweed-proxy/", env!("CARGO_PKG_VERSION")),
    flags: "set --kubeconfig or --kube-api-url",
    permissions: "docs/guides/services.md",
};

/// Room for changes of addresses, in bytes.
const ADDRESSES: usize = 64 << 10;

/// The longest time between a refused change and the next attempt.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The time between two repairs, if one follows the other sooner.
const BETWEEN_REPAIRS: Duration = Duration::from_secs(1);

/// The time between two reports of services that are not programmed as their objects ask for it.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(10);

/// The most events of the API server that are taken together, if as many are waiting.
const MOST_EVENTS: usize = 1000;

/// Ends when the process is asked to. What is programmed stays.
pub(crate) fn run(options: &Run) -> anyhow::Result<()> {
    let filter = EnvFilter::new("warn,kube_client=off,tweed=info");
    let events = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
    events.with_ansi(false).with_writer(io::stderr).init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminated = signal(SignalKind::terminate())?;
        let mut interrupted = signal(SignalKind::interrupt())?;
        let servers = Servers::bind(options)?;
        let figures = RefCell::new(Figures::default());
        select! {
            biased;
            _ = terminated.recv() => Ok(()),
            _ = interrupted.recv() => Ok(()),
            failed = follow(options, &figures) => failed,
            () = servers.serve(&figures) => Ok(()),
        }
    })
}

/// Ends only for an error.
async fn follow(options: &Run, figures: &RefCell<Figures>) -> anyhow::Result<()> {
    let mut kernel = Kernel::open(options.node.policy())?;
    kernel.listen(kernel::BACKLOG)?;
    let actual = kernel.read()?;
    let (addresses, affinity) = (NodeAddresses::default(), options.node.affinity());
    let cluster = Cluster::adopt(addresses, affinity, actual.clone());
    let mut reconciler = Reconciler::new(kernel, cluster, actual);
    let mut inputs = Inputs::open(options)?;
    figures.borrow_mut().access = inputs.access.clone();
    let (mut warnings, mut progress) = (Warnings::default(), Progress::new());
    let mut due = None::<Instant>;
    loop {
        let times = [due, warnings.due].map(|at| at.filter(|_| inputs.are_complete()));
        let wake = progress.wake(times);
        select! {
            biased;
            damaged = reconciler.damaged() => {
                let (damage, now) = (damaged?, Instant::now());
                due = Some(now);
                let is_first = progress.damaged(now);
                figures.borrow_mut().note_damage(damage, is_first);
            }
            event = inputs.next() => inputs.take(event?, reconciler.cluster()),
            () = wake => {}
        }
        inputs.take_waiting(reconciler.cluster())?;
        let now = Instant::now();
        figures.borrow_mut().unlisted = inputs.unlisted();
        figures.borrow_mut().node_problem.clone_from(&inputs.problem);
        if !inputs.are_complete() || progress.is_paused(now) {
            continue;
        }
        progress.repairs(now);
        if progress.take_retry(now) {
            reconciler.forget();
        }
        match reconciler.reconcile() {
            Ok(left) => {
                due = left.due.into_iter().chain(left.undeleted.map(|it| it.retry_at)).min();
                warnings.report(reconciler.cluster(), now);
                let mut figures = figures.borrow_mut();
                figures.note(now.elapsed());
                figures.frontends = reconciler.cluster().desired().frontends.len();
                progress.reconciled(left.refused, now);
            }
            Err(error) => {
                progress.failed(error, now);
                due = Some(now);
            }
        }
        let mut figures = figures.borrow_mut();
        figures.changes = reconciler.changes();
        (figures.problem, figures.is_programmed) =
            (progress.problem.clone(), progress.is_programmed);
        figures.warnings = warnings.known.len();
    }
}

/// Whether all services were programmed once, and when the next attempt is made at what is not.
struct Progress {
    backoff: Backoff,
    is_programmed: bool,
    problem: Option<String>,
    /// Before this time, nothing is written.
    paused_until: Option<Instant>,
    /// When what the kernel has refused is tried again.
    retry_at: Option<Instant>,
    /// Whether another program has changed the table since it was read.
    is_damaged: bool,
    /// When that was repaired the last time.
    repaired_at: Option<Instant>,
}

impl Progress {
    const fn new() -> Self {
        let backoff = Backoff::up_to(LONGEST_PAUSE);
        Self {
            backoff,
            is_programmed: false,
            problem: None,
            paused_until: None,
            retry_at: None,
            is_damaged: false,
            repaired_at: None,
        }
    }

    /// Waits for the first of these times and of the next attempt, and no pause is cut short.
    fn wake<const N: usize>(
        &self,
        times: [Option<Instant>; N],
    ) -> impl Future<Output = ()> + use<N> {
        let first = times.into_iter().chain([self.retry_at]).flatten().min();
        let at = first.max(self.paused_until.filter(|_| first.is_some()));
        async move {
            match at {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        }
    }

    /// Another program has changed the table. Returns whether it is the first time for a while.
    fn damaged(&mut self, now: Instant) -> bool {
        self.is_damaged = true;
        // Two programs that disagree would change it without end. The pause holds up all other changes,
        // too: it ends at a fixed time, however often the other one writes.
        let next = self.repaired_at.map(|before| before + BETWEEN_REPAIRS);
        let pause = next.filter(|next| now < *next);
        if let Some(next) = pause {
            self.pause_until(next);
        }
        pause.is_none()
    }

    /// The table is read again now, if it is damaged.
    fn repairs(&mut self, now: Instant) {
        if mem::take(&mut self.is_damaged) {
            self.repaired_at = Some(now);
        }
    }

    fn pause_until(&mut self, at: Instant) {
        self.paused_until = self.paused_until.max(Some(at));
    }

    fn is_paused(&self, now: Instant) -> bool {
        self.paused_until.is_some_and(|until| now < until)
    }

    /// Ends the pause after a refusal if it is over; returns whether to try again now.
    fn take_retry(&mut self, now: Instant) -> bool {
        self.retry_at.take_if(|at| *at <= now).is_some()
    }

    fn reconciled(&mut self, refused: Option<kernel::Error>, now: Instant) {
        if let Some(error) = refused {
            let pause = self.note(error);
            self.retry_at.get_or_insert(now + pause);
        } else if self.retry_at.is_none() {
            self.backoff.reset();
            let was_programmed = mem::replace(&mut self.is_programmed, true);
            if self.problem.take().is_some() || !was_programmed {
                info!("all services are programmed");
            }
        }
    }

    fn failed(&mut self, error: kernel::Error, now: Instant) {
        let pause = self.note(error);
        self.pause_until(now + pause);
    }

    /// Returns how long to wait.
    fn note(&mut self, error: kernel::Error) -> Duration {
        let error = format!("{:#}", anyhow::Error::from(error));
        if self.problem.as_ref() != Some(&error) {
            warn!(error, "the table is not up to date; trying again");
        }
        self.problem = Some(error);
        self.backoff.delay(random()).max(Backoff::SHORTEST)
    }
}

/// Where changes come from, other than the tables.
struct Inputs<'a> {
    options: &'a NodeOptions,
    access: Access,
    services: BoxStream<'static, Update<Services>>,
    slices: BoxStream<'static, Update<Slices>>,
    nodes: BoxStream<'static, Update<Nodes>>,
    /// Changes of this host's addresses.
    addresses: Monitor,
    /// The internal addresses of the Node of this host, or what took their place; none if unknown.
    node: Option<Vec<IpAddr>>,
    /// What is wrong with the Node.
    problem: Option<String>,
    has_services: bool,
    has_slices: bool,
    has_node: bool,
}

enum Input {
    Services(Update<Services>),
    Slices(Update<Slices>),
    Nodes(Update<Nodes>),
    Addresses,
}

impl<'a> Inputs<'a> {
    fn open(options: &'a Run) -> anyhow::Result<Self> {
        let Run { node: options, kubeconfig, kube_api_url, .. } = options;
        let (urls, kubeconfig) = (kube_api_url.clone(), kubeconfig.clone());
        let api = ApiOptions { urls, kubeconfig, ..ApiOptions::default() };
        let access = Access::default();
        let client = Client::new(api, PROGRAM, access.clone());
        let watches = Watches::new(client, &options.hostname_override);
        Ok(Self {
            options,
            access,
            services: watches.services(),
            slices: watches.slices(),
            nodes: watches.nodes(),
            addresses: Monitor::of_addresses(ADDRESSES)?,
            node: None,
            problem: None,
            has_services: false,
            has_slices: false,
            has_node: false,
        })
    }

    /// Whether all snapshots have come: before, nothing is known to be gone.
    fn are_complete(&self) -> bool {
        self.unlisted().is_empty()
    }

    /// The kinds whose snapshot has not come.
    fn unlisted(&self) -> Vec<&'static str> {
        let all = [
            ("services", self.has_services),
            ("endpointslices", self.has_slices),
            ("nodes", self.has_node),
        ];
        all.into_iter().filter(|(_, is_listed)| !is_listed).map(|(kind, _)| kind).collect()
    }

    async fn next(&mut self) -> anyhow::Result<Input> {
        let ended = || anyhow::anyhow!("a watch has ended");
        select! {
            biased;
            update = self.nodes.next() => update.map(Input::Nodes).with_context(ended),
            update = self.services.next() => update.map(Input::Services).with_context(ended),
            update = self.slices.next() => update.map(Input::Slices).with_context(ended),
            // All are read again, so that lost changes are no loss.
            _ = self.addresses.receive(|_| ()) => Ok(Input::Addresses),
        }
    }

    fn take(&mut self, input: Input, cluster: &mut Cluster) {
        match input {
            Input::Services(Update::All(services)) => {
                cluster.set_services(services);
                self.has_services = true;
            }
            Input::Services(Update::One(name, service)) => cluster.set_service(&name, service),
            Input::Slices(Update::All(slices)) => {
                cluster.set_slices(slices);
                self.has_slices = true;
            }
            Input::Slices(Update::One(name, slice)) => cluster.set_slice(&name, slice),
            Input::Nodes(update) => {
                let own = match update {
                    Update::All(nodes) => nodes.into_values().next(),
                    Update::One(_, addresses) => addresses,
                };
                self.note_node(own);
                self.set_addresses(cluster);
            }
            Input::Addresses => self.set_addresses(cluster),
        }
        self.adopt_node(cluster);
    }

    /// `own`: the internal addresses of the Node; none if there is no such Node.
    fn note_node(&mut self, own: Option<Vec<IpAddr>>) {
        let name = &self.options.hostname_override;
        let problem = match &own {
            None => Some(format!("there is no Node {name}: see --hostname-override")),
            Some(own) if own.is_empty() => Some(format!("Node {name} has no internal address")),
            Some(_) => None,
        };
        if let Some(problem) = problem.as_ref().filter(|_| problem != self.problem) {
            warn!("{problem}");
        }
        self.problem = problem;
        // One that is created again keeps the addresses that it had.
        self.node = own.filter(|own| !own.is_empty()).or_else(|| self.node.take());
        self.has_node = true;
    }

    /// Also across a restart: those of this host by which a former process made node ports reachable.
    /// The services show which frontends are node ports.
    fn adopt_node(&mut self, cluster: &mut Cluster) {
        if self.node.is_some() || !self.has_node || !self.has_services {
            return;
        }
        let known = cluster.adopted_for_node_ports();
        let own = own_addresses().unwrap_or_default().into_iter();
        self.node = Some(own.filter(|address| known.contains(address)).collect());
        self.set_addresses(cluster);
    }

    /// If they cannot be read, the known ones stay.
    fn set_addresses(&self, cluster: &mut Cluster) {
        match self.options.addresses(self.node.as_deref().unwrap_or_default()) {
            Ok(addresses) => cluster.set_addresses(addresses),
            Err(error) => {
                let error = format!("{error:#}");
                warn!(error, "cannot read the addresses of this host: keeping the known ones");
            }
        }
    }

    /// Those that need no waiting: they are programmed together.
    fn take_waiting(&mut self, cluster: &mut Cluster) -> anyhow::Result<()> {
        for _ in 0..MOST_EVENTS {
            let Some(input) = self.next().now_or_never() else { break };
            self.take(input?, cluster);
        }
        Ok(())
    }
}

/// Which services are not programmed as their objects ask for it.
#[derive(Default)]
struct Warnings {
    known: BTreeSet<String>,
    /// When there may be others.
    due: Option<Instant>,
    /// No earlier than this.
    next: Option<Instant>,
}

impl Warnings {
    /// Logs those that are new.
    fn report(&mut self, cluster: &Cluster, now: Instant) {
        if let Some(next) = self.next.filter(|next| *next > now) {
            self.due = Some(next);
            return;
        }
        let found: BTreeSet<String> = cluster.warnings().into_iter().collect();
        found.difference(&self.known).for_each(|warning| warn!("{warning}"));
        *self = Self { known: found, due: None, next: Some(now + BETWEEN_WARNINGS) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_writes_without_end_delays_changes_by_a_second_at_most() {
        let (mut progress, start) = (Progress::new(), Instant::now());
        let (mut reconciled, mut longest) = (start, Duration::ZERO);
        let mut count = 0;
        for milliseconds in (0..60_000).step_by(50) {
            let now = start + Duration::from_millis(milliseconds);
            progress.damaged(now);
            if !progress.is_paused(now) {
                progress.repairs(now);
                longest = longest.max(now - reconciled);
                (reconciled, count) = (now, count + 1);
            }
        }
        assert_eq!((count, longest), (60, BETWEEN_REPAIRS));
    }
}
