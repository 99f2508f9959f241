//! Leads the sets to what they are to hold, whatever the reason is that they differ: an object changed,
//! another program changed a table, this program begins, or something may now be removed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};
use tweed_netlink::{Family, Refusal};

use crate::kernel::{Damage, Error, Kernel, Lacking, Refused};
use crate::plan::cluster::Cluster;
use crate::plan::conntrack::{self, Stale};
use crate::plan::deletions::Deletions;
use crate::plan::diff::{self, Change, Changes, Pending};
use crate::plan::ruleset::Count;
use crate::state::{Element, Frontend, List, State};

/// How many parts of the state are looked at together, to bound memory. A cluster IP and each of its
/// ports is one.
const AT_ONCE: usize = 2000;

/// The only one that changes the tables.
pub struct Reconciler {
    kernel: Kernel,
    cluster: Cluster,
    /// What the sets hold; none if they must be read.
    actual: Option<State>,
    pending: Pending,
    /// Whether all chains are there, as far as known.
    has_chains: bool,
    /// The numbers of endpoints that have a chain.
    counts: BTreeSet<(Family, Count)>,
    /// The families whose chains the kernel has refused while nothing needed them.
    refused: BTreeSet<Family>,
    /// Of connections of UDP.
    deletions: Deletions,
    /// Why they could not be deleted the last time.
    problem: Option<String>,
    start: Instant,
}

/// What one call of [`Reconciler::reconcile`] leaves to later ones.
#[derive(Debug)]
pub struct Left {
    /// When there must be one, even if nothing happens.
    pub due: Option<Instant>,
    /// What the kernel refused first.
    pub refused: Option<Error>,
    /// Connections that could not be deleted.
    pub undeleted: Option<Undeleted>,
}

#[derive(Debug)]
pub struct Undeleted {
    pub reason: String,
    /// When there must be a call for them.
    pub retry_at: Instant,
}

impl Reconciler {
    /// `actual`: what the sets hold, which `cluster` has adopted.
    pub fn new(kernel: Kernel, cluster: Cluster, actual: State) -> Self {
        let mut pending = Pending::new(AT_ONCE);
        pending.add(diff::parts(cluster.desired(), &actual));
        let mut deletions = Deletions::default();
        // What happened before is not known.
        deletions.review();
        Self {
            kernel,
            cluster,
            actual: Some(actual),
            pending,
            has_chains: false,
            counts: BTreeSet::new(),
            refused: BTreeSet::new(),
            deletions,
            problem: None,
            start: Instant::now(),
        }
    }

    pub const fn cluster(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// Waits until another program may have changed a table: then all sets are read again. Cancel safe.
    pub async fn damaged(&mut self) -> Result<Damage, Error> {
        let damage = self.kernel.damaged().await?;
        self.forget();
        Ok(damage)
    }

    /// How many elements were put or removed.
    pub const fn changes(&self) -> u64 {
        self.kernel.changes()
    }

    /// All sets are read again by the next call of [`Self::reconcile`].
    pub fn forget(&mut self) {
        self.actual = None;
    }

    /// Writes what differs. What the kernel refuses stops nothing else; it is tried again when the sets
    /// have been read again.
    ///
    /// # Errors
    /// Without an answer of the kernel; likewise.
    pub fn reconcile(&mut self) -> Result<Left, Error> {
        let outcome = self.write();
        if outcome.is_err() {
            self.kernel.reopen()?;
        }
        outcome
    }

    fn write(&mut self) -> Result<Left, Error> {
        self.pending.add(self.cluster.revise());
        let mut actual = match self.actual.take() {
            Some(actual) => actual,
            None => self.read()?,
        };
        let mut refused = Refused::default();
        if !self.has_chains && self.put_tables(&mut refused)? {
            actual = self.read()?;
        }
        self.has_chains = true;
        self.kernel.remove_foreign(&mut refused)?;
        let begun = self.start.elapsed();
        let mut last = Vec::new();
        self.pending.add_due(begun);
        while let Some(changes) = self.pending.next(self.cluster.desired(), &actual, begun) {
            // Before they are carried out: what an error leaves undone must not be forgotten.
            self.deletions.add(stale(&changes, self.cluster.desired(), &actual));
            self.put_chains(&changes, &mut refused)?;
            self.kernel.apply_unseen(&changes.first, &mut actual, &mut refused)?;
            self.kernel.apply(&changes.then, &mut actual, &mut refused)?;
            self.kernel.apply(&changes.after, &mut actual, &mut refused)?;
            last.extend(changes.last);
        }
        let now = self.start.elapsed();
        self.pending.mark_applied(now);
        self.delete_connections(begun)?;
        self.kernel.apply_unseen(&last, &mut actual, &mut refused)?;
        self.pending.leave(refused.parts());
        self.actual = Some(actual);
        let due = self.pending.due().into_iter().chain(self.deletions.due()).min();
        let due = due.map(|due| self.start + due);
        let (refused, undeleted) = (refused.first, self.undeleted());
        Ok(Left { due, refused, undeleted })
    }

    /// The table is as it is to be. On a kernel that lists no connections, all else goes on.
    fn delete_connections(&mut self, begun: Duration) -> Result<(), Error> {
        let now = self.start.elapsed();
        self.deletions.add(self.cluster.take_stale());
        self.deletions.mark_applied(now);
        if !self.deletions.are_due(now) {
            return Ok(());
        }
        let outcome = self.try_delete_connections();
        let before = self.problem.take();
        self.problem = outcome.err().map(|error| format!("{:#}", anyhow::Error::from(error)));
        if let Some(error) = self.problem.as_ref().filter(|_| self.problem != before) {
            warn!(error, "cannot delete UDP connections to former endpoints: trying again");
        }
        if self.problem.is_some() {
            self.deletions.failed(now);
            return self.kernel.reopen();
        }
        if before.is_some() {
            info!("deleted UDP connections to former endpoints");
        }
        self.deletions.succeeded(begun);
        Ok(())
    }

    fn try_delete_connections(&mut self) -> Result<(), Error> {
        if self.deletions.is_review_due() {
            for family in Family::ALL {
                let ports = conntrack::ports(self.cluster.desired(), family);
                self.cluster.review(&self.kernel.answered(family, &ports)?);
            }
            self.deletions.add(self.cluster.take_stale());
            self.deletions.mark_applied(self.start.elapsed());
        }
        self.kernel.delete_connections(&self.cluster.still_stale(&self.deletions.stale()))
    }

    fn undeleted(&self) -> Option<Undeleted> {
        let (reason, retry_at) = self.problem.clone().zip(self.deletions.retry_at())?;
        Some(Undeleted { reason, retry_at: self.start + retry_at })
    }

    fn read(&mut self) -> Result<State, Error> {
        self.has_chains = false;
        self.counts.clear();
        let actual = self.kernel.read()?;
        // Another order of the same endpoints is no difference.
        self.cluster.resume(&actual);
        self.pending.add(self.cluster.revise());
        self.pending.add(diff::parts(self.cluster.desired(), &actual));
        Ok(actual)
    }

    /// Has both tables with all chains. Returns whether one of them was replaced: then its sets are
    /// empty.
    fn put_tables(&mut self, refused: &mut Refused) -> Result<bool, Error> {
        let mut is_replaced = false;
        for family in Family::ALL {
            let counts = counts(self.cluster.desired(), family);
            let Lacking { chains, is_unusable } = self.kernel.lacking(family, &counts)?;
            if is_unusable || !chains.is_empty() {
                self.deletions.add(conntrack::untranslated(self.cluster.desired(), family));
            }
            if is_unusable || self.kernel.put_chains(family, &chains)?.is_err() {
                match self.kernel.replace(family, &counts)? {
                    Ok(()) => {
                        let family = family.keyword();
                        warn!(family, "replaced a damaged table");
                        is_replaced = true;
                        self.deletions.review();
                    }
                    Err(refusal) if !self.is_needed(family) => self.do_without(family, &refusal),
                    Err(refusal) => refused.note_chains(family, Err(refusal)),
                }
            }
            self.counts.extend(counts.into_iter().map(|count| (family, count)));
        }
        Ok(is_replaced)
    }

    /// Whether the chains of this family decide about any packet.
    fn is_needed(&self, family: Family) -> bool {
        let mut frontends = self.cluster.desired().frontends.keys();
        self.kernel.policy().concerns(family)
            || frontends.any(|frontend| Family::of(frontend.address) == family)
    }

    /// The kernel refuses the chains of a family, such as one for which it has no nftables.
    fn do_without(&mut self, family: Family, refusal: &Refusal) {
        if self.refused.insert(family) {
            let (family, error) = (family.keyword(), refusal.to_string());
            warn!(
                family,
                error, "the kernel refuses the chains of a family: no service needs them"
            );
        }
    }

    /// Has a chain for each number of endpoints that `changes` need.
    fn put_chains(&mut self, changes: &Changes, refused: &mut Refused) -> Result<(), Error> {
        for family in Family::ALL {
            let needed = changes.then.iter().filter_map(|change| needed_count(change, family));
            let counts: Vec<Count> =
                needed.filter(|count| !self.counts.contains(&(family, *count))).collect();
            if !counts.is_empty() {
                let Lacking { chains, .. } = self.kernel.lacking(family, &counts)?;
                let outcome = self.kernel.put_chains(family, &chains)?;
                if outcome.is_ok() {
                    self.counts.extend(counts.into_iter().map(|count| (family, count)));
                }
                refused.note_chains(family, outcome);
            }
        }
        Ok(())
    }
}

/// The connections of UDP that `changes` leave without their endpoint.
fn stale(changes: &Changes, desired: &State, actual: &State) -> Vec<Stale> {
    let frontends: BTreeSet<Frontend> =
        changes.all().filter_map(|change| change.element().frontend()).collect();
    let of_frontend =
        |frontend| conntrack::stale(frontend, desired.entry(&frontend), actual.entry(&frontend));
    frontends.into_iter().flat_map(of_frontend).collect()
}

/// The number of endpoints that `change` gives a frontend of this family.
fn needed_count(change: &Change, family: Family) -> Option<Count> {
    match change {
        Change::Put(Element::Count(list, frontend, count)) => {
            (Family::of(frontend.address) == family).then_some((*list, *count))
        }
        Change::Put(_) | Change::Remove(_) => None,
    }
}

/// The numbers of endpoints that frontends have, the most frequent first.
pub fn counts(state: &State, family: Family) -> Vec<Count> {
    let mut found = BTreeMap::<Count, usize>::new();
    let of_family = state.frontends.iter().filter(|(one, _)| Family::of(one.address) == family);
    for (_, entry) in of_family {
        for list in List::ALL {
            for count in &entry.list(list).counts {
                *found.entry((list, *count)).or_default() += 1;
            }
        }
    }
    let mut counts: Vec<Count> = found.keys().copied().collect();
    counts.sort_by_key(|count| Reverse(found.get(count)));
    counts
}
