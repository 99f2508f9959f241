//! Leads the sets to what they are to hold, whatever the reason is that they differ: an object changed,
//! another program changed a table, this program begins, or something may now be removed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use tweed_netlink::Family;

use crate::cluster::Cluster;
use crate::conntrack;
use crate::diff::{Change, Changed, Changes, Pending};
use crate::kernel::{Error, Kernel};
use crate::ruleset::Count;
use crate::state::{Element, Frontend, List, State};

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
    start: Instant,
}

impl Reconciler {
    /// `actual`: what the sets hold, which `cluster` has adopted.
    pub fn new(kernel: Kernel, cluster: Cluster, actual: State) -> Self {
        let mut pending = Pending::default();
        pending.add(Changed::between(cluster.desired(), &actual));
        let (actual, counts, start) = (Some(actual), BTreeSet::new(), Instant::now());
        Self { kernel, cluster, actual, pending, has_chains: false, counts, start }
    }

    pub const fn cluster(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// Waits until another program has changed a table: then all sets are read again. Cancel safe.
    pub async fn damaged(&mut self) -> Result<(), Error> {
        self.kernel.damaged().await?;
        self.actual = None;
        Ok(())
    }

    /// Writes what differs. Returns when this must be called again even if nothing happens.
    ///
    /// # Errors
    /// The sets are read again at the next call.
    pub fn reconcile(&mut self) -> Result<Option<Instant>, Error> {
        self.pending.add(self.cluster.revise());
        let mut actual = match self.actual.take() {
            Some(actual) => actual,
            None => self.read()?,
        };
        let desired = self.cluster.desired();
        let changes = self.pending.changes(desired, &actual, self.start.elapsed());
        let stale = stale(&changes, desired, &actual);
        self.put_chains(&changes)?;
        self.kernel.apply(&changes.first)?;
        self.kernel.apply(&changes.then)?;
        self.kernel.forget(&stale)?;
        self.kernel.apply(&changes.last)?;
        for change in changes.all() {
            change.apply(&mut actual);
        }
        self.actual = Some(actual);
        Ok(self.pending.due().map(|due| self.start + due))
    }

    fn read(&mut self) -> Result<State, Error> {
        self.has_chains = false;
        self.counts.clear();
        let actual = self.kernel.read()?;
        self.pending.add(Changed::between(self.cluster.desired(), &actual));
        Ok(actual)
    }

    /// Has a chain for each number of endpoints that `changes` need; after the sets were read, all
    /// chains.
    fn put_chains(&mut self, changes: &Changes) -> Result<(), Error> {
        for family in Family::ALL {
            let wanted: Vec<Count> = if self.has_chains {
                let needed = changes.then.iter().filter_map(|change| needed_count(change, family));
                needed.filter(|count| !self.counts.contains(&(family, *count))).collect()
            } else {
                counts(self.cluster.desired(), family)
            };
            if !self.has_chains || !wanted.is_empty() {
                let chains = self.kernel.missing_chains(family, &wanted)?;
                self.kernel.put_chains(family, &chains)?;
                self.counts.extend(wanted.into_iter().map(|count| (family, count)));
            }
        }
        self.has_chains = true;
        Ok(())
    }
}

/// The connections of UDP that `changes` leave without their endpoint.
fn stale(changes: &Changes, desired: &State, actual: &State) -> Vec<conntrack::Stale> {
    let frontends: BTreeSet<Frontend> =
        changes.then.iter().filter_map(|change| change.element().frontend()).collect();
    // On a node without any frontend, no connection was translated.
    let frontends = frontends.into_iter().filter(|_| !actual.frontends.is_empty());
    let of_frontend = |frontend| {
        let want = desired.frontends.get(&frontend);
        conntrack::stale(frontend, want, actual.frontends.get(&frontend))
    };
    frontends.flat_map(of_frontend).collect()
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
