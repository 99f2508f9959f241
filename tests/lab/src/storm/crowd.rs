//! All simulated daemons, and waits until all of them have reached a state.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tweed::model::config::BackendType;
use tweed::model::lease::{Lease, LeaseAttributes};
use tweed::store::claim::Previous;
use tweed::store::etcd::{EtcdOptions, LeaseTimes};

use super::node::{Node, Orders, Seen, attributes};
use super::scene::{LEASE, PREFIX};
use super::view::Digest;
use super::{Settings, gauge};
use crate::stores::etcd::Etcd;
use crate::wait::{eventually, lock};

const POLL: Duration = Duration::from_millis(5);
/// The interval of reads, because each costs etcd time.
const GLANCE: Duration = Duration::from_millis(200);
/// The interval of progress messages.
const PROGRESS: Duration = Duration::from_secs(2);
/// Timeout for all nodes to reach a state.
const TIMEOUT: Duration = Duration::from_secs(900);

pub(super) struct Crowd {
    members: Vec<Member>,
    tasks: JoinSet<()>,
    runtime: Handle,
    /// Members use them in turn.
    servers: Vec<EtcdOptions>,
    follow: watch::Sender<bool>,
    lease: LeaseTimes,
    spread: Duration,
    progress: fn(&str),
}

struct Member {
    number: usize,
    seen: Arc<Mutex<Seen>>,
    attributes: watch::Sender<LeaseAttributes>,
    task: AbortHandle,
}

impl Crowd {
    /// Has no members yet.
    pub(super) fn new(runtime: &Handle, servers: Vec<EtcdOptions>, settings: &Settings) -> Self {
        Self {
            members: Vec::new(),
            tasks: JoinSet::new(),
            runtime: runtime.clone(),
            servers,
            follow: watch::Sender::new(true),
            lease: LEASE,
            spread: settings.spread,
            progress: settings.progress,
        }
    }

    /// Nodes that hold a lease do not observe the others'.
    pub(super) fn follow_none(&self) {
        self.follow.send_replace(false);
    }

    pub(super) fn renew_with_margin(&mut self, margin: Duration) {
        self.lease.renew_margin = margin;
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// Starts `count` more, evenly over the time of a start.
    pub(super) fn join(&mut self, numbers: std::ops::Range<usize>) {
        let count = numbers.len();
        for (place, number) in numbers.enumerate() {
            let published = watch::Sender::new(attributes(number, BackendType::Vxlan));
            let delay = share(self.spread, place, count);
            let member = self.start(number, published, Previous::default(), delay);
            self.members.push(member);
        }
    }

    /// Stops all and starts them again from their saved state.
    pub(super) fn restart(&mut self) {
        let members = std::mem::take(&mut self.members);
        let count = members.len();
        for (place, member) in members.into_iter().enumerate() {
            member.task.abort();
            let previous = lock(&member.seen).lease.as_ref().map(previous).unwrap_or_default();
            let delay = share(self.spread, place, count);
            let member = self.start(member.number, member.attributes, previous, delay);
            self.members.push(member);
        }
    }

    /// Stops the last `count`; returns their remaining leases.
    pub(super) fn leave(&mut self, count: usize) -> Vec<Lease> {
        let gone = self.members.split_off(self.members.len().saturating_sub(count));
        let leave = |member: Member| {
            member.task.abort();
            lock(&member.seen).lease.clone()
        };
        gone.into_iter().filter_map(leave).collect()
    }

    /// Changes the backend of the member at `index`, which then publishes it.
    pub(super) fn flip(&self, index: usize) -> Result<()> {
        let member = self.members.get(index).context("no such node")?;
        member.attributes.send_modify(|published| {
            published.backend = match published.backend {
                BackendType::Vxlan => BackendType::HostGw,
                BackendType::HostGw => BackendType::Vxlan,
            };
        });
        Ok(())
    }

    /// The lease of the member at `index`, once it has the attributes to publish.
    pub(super) fn published(&self, index: usize) -> Result<Option<Lease>> {
        let member = self.members.get(index).context("no such node")?;
        Ok(lock(&member.seen).lease.clone().filter(|lease| member.has_published(lease)))
    }

    /// Waits until etcd has a key for each member.
    pub(super) fn wait_for_keys(&self, etcd: &Etcd) -> Result<Duration> {
        eventually(TIMEOUT, || {
            std::thread::sleep(GLANCE);
            let (keys, nodes) = (etcd.count(&format!("{PREFIX}/subnets/"))?, self.members.len());
            ensure!(keys == nodes, "etcd holds {keys} leases of {nodes} nodes");
            Ok(())
        })
    }

    /// Waits until all hold a lease with the attributes to publish.
    pub(super) fn wait_for_leases(&self, etcd: &Etcd) -> Result<Duration> {
        let published = |member: &Member, seen: &Seen| {
            seen.lease.as_ref().is_some_and(|lease| member.has_published(lease))
        };
        self.wait(etcd, "hold a lease", published)
    }

    /// Waits until all see the same leases.
    pub(super) fn wait_for_view(&self, etcd: &Etcd, digest: Digest) -> Result<Duration> {
        self.wait(etcd, "see every lease", |_, seen| seen.digest == digest)
    }

    /// The time from `start` to the last update of each member, in order.
    pub(super) fn latencies(&self, start: Instant) -> Vec<Duration> {
        let seen = |member: &Member| lock(&member.seen).updated;
        let updated = self.members.iter().filter_map(seen);
        let mut latencies: Vec<Duration> =
            updated.map(|updated| updated.saturating_duration_since(start)).collect();
        latencies.sort_unstable();
        latencies
    }

    /// Listings of all leases so far, by all members.
    pub(super) fn listings(&self) -> u64 {
        self.members.iter().map(|member| lock(&member.seen).snapshots).sum()
    }

    /// Leases lost so far, by all members.
    pub(super) fn losses(&self) -> u64 {
        self.members.iter().map(|member| lock(&member.seen).losses).sum()
    }

    /// An error if two members hold the same subnet.
    pub(super) fn ensure_distinct(&self) -> Result<()> {
        let leases = self.members.iter().filter_map(|member| lock(&member.seen).lease.clone());
        let subnets: BTreeSet<_> =
            leases.flat_map(|lease| lease.subnets().collect::<Vec<_>>()).collect();
        let (held, nodes) = (subnets.len(), self.members.len());
        ensure!(held == nodes, "{nodes} nodes hold {held} subnets");
        Ok(())
    }

    fn start(
        &mut self,
        number: usize,
        attributes: watch::Sender<LeaseAttributes>,
        previous: Previous,
        delay: Duration,
    ) -> Member {
        let seen = Arc::default();
        let orders = Orders { attributes: attributes.subscribe(), follow: self.follow.subscribe() };
        let server =
            self.servers.get(number % self.servers.len().max(1)).cloned().unwrap_or_default();
        let node = Node::new(server, previous, self.lease, orders, Arc::clone(&seen));
        let task = self.tasks.spawn_on(node.live(delay), &self.runtime);
        Member { number, seen, attributes, task }
    }

    fn wait(
        &self,
        etcd: &Etcd,
        what: &str,
        done: impl Fn(&Member, &Seen) -> bool,
    ) -> Result<Duration> {
        let start = Instant::now();
        let mut reported = start;
        loop {
            let ready = self.count(&done)?;
            if ready == self.members.len() {
                return Ok(start.elapsed());
            }
            if reported.elapsed() >= PROGRESS {
                reported = Instant::now();
                self.log_progress(etcd, &format!("{ready} of {} {what}", self.members.len()));
            }
            if start.elapsed() >= TIMEOUT {
                bail!("only {ready} of {} {what} after {TIMEOUT:?}", self.members.len());
            }
            std::thread::sleep(POLL);
        }
    }

    fn count(&self, done: impl Fn(&Member, &Seen) -> bool) -> Result<usize> {
        let mut ready = 0;
        for member in &self.members {
            let seen = lock(&member.seen);
            if let Some(reason) = &seen.gave_up {
                bail!("node {} stopped: {reason}", member.number);
            }
            ready += usize::from(done(member, &seen));
        }
        Ok(ready)
    }

    fn log_progress(&self, etcd: &Etcd, text: &str) {
        let memory = gauge::resident_kib(etcd).unwrap_or(0) / 1024;
        let cpu = gauge::cpu(etcd).unwrap_or(0.0);
        (self.progress)(&format!("  {text}; etcd: {cpu:.1} s of CPU, {memory} MiB"));
    }
}

impl Member {
    fn has_published(&self, lease: &Lease) -> bool {
        let wanted = &self.attributes.borrow().backend;
        lease.endpoints.iter().all(|endpoint| endpoint.backend.supported() == Some(*wanted))
    }
}

fn previous(lease: &Lease) -> Previous {
    Previous {
        subnets: lease.subnets().collect(),
        grant: lease.grant,
        created: Some(lease.created),
        public_ips: lease.endpoints.iter().map(|endpoint| endpoint.public_ip).collect(),
        subnet_file: "/run/flannel/subnet.env".to_owned(),
    }
}

/// The start time of number `place` of `count`.
pub(super) fn share(spread: Duration, place: usize, count: usize) -> Duration {
    let part = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    spread.saturating_mul(part(place)) / part(count).max(1)
}
