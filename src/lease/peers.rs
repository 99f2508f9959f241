//! The leases of everybody else: what the store says, what of it is believed, what has gone missing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::belief::{Contested, Rejected, Rules};
use super::index::Index;
use super::{Endpoint, Lease, LeaseId, LeaseUpdate, Malformed, Record};

/// All leases by id. What has gone missing from the store stays until it is withdrawn.
#[derive(Clone, Debug, Default)]
pub struct Peers {
    records: BTreeMap<LeaseId, Held>,
    index: Index,
    missing: BTreeSet<LeaseId>,
    /// Those whose VTEP is new since the last full listing, in the order in which they came.
    latecomers: BTreeMap<LeaseId, u64>,
    /// How many have come so.
    came: u64,
    complete: bool,
}

/// The lease of a peer, or why it is set aside.
pub type Peer<'a> = Result<&'a Arc<Lease>, Rejected>;

/// One record: the last lease that could be read from it, and what is wrong with it now. The lease
/// is shared with those who go on with it as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Held {
    lease: Option<Arc<Lease>>,
    malformed: Option<Malformed>,
}

/// What became of the leases that went missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Withdrawal {
    /// They are forgotten; these leases must be looked at again.
    Done(BTreeSet<LeaseId>),
    /// They are too many to be true: all are kept.
    Held { missing: usize, of: usize },
}

impl Peers {
    /// The peers as they were last known. They count as missing until the store names them.
    pub fn remembered(leases: impl IntoIterator<Item = Arc<Lease>>) -> Self {
        let mut peers = Self::default();
        for lease in leases {
            let id = lease.id.clone();
            peers.hold(id.clone(), Held { lease: Some(lease), malformed: None });
            peers.missing.insert(id);
        }
        peers
    }

    /// Takes in what the store says. Returns the leases that must be looked at again: those that
    /// changed, and those whose standing depends on them.
    pub fn apply(&mut self, update: LeaseUpdate) -> BTreeSet<LeaseId> {
        match update {
            LeaseUpdate::Snapshot(records) => self.apply_snapshot(records),
            LeaseUpdate::Put(record) => self.put(record),
            LeaseUpdate::Remove(id) => self.lose(id),
        }
    }

    /// Forgets what has gone missing, unless that is more than `max_percent` of all peers, or the
    /// store has forgotten us too: then the store lost its data, not the cluster its nodes.
    pub fn withdraw(&mut self, rules: &Rules, max_percent: u8) -> Withdrawal {
        let (missing, of) = self.vanished(rules);
        let forgot_us = self.missing.len() > missing;
        let too_many = missing > 1 && missing * 100 > of * usize::from(max_percent);
        if (forgot_us && missing > 0) || too_many {
            return Withdrawal::Held { missing, of };
        }
        let gone = std::mem::take(&mut self.missing);
        Withdrawal::Done(gone.iter().flat_map(|id| self.forget(id)).collect())
    }

    /// How many peers have gone missing, and of how many.
    pub fn vanished(&self, rules: &Rules) -> (usize, usize) {
        let missing = self.missing.iter().filter(|id| !rules.is_own(id)).count();
        (missing, self.records.keys().filter(|id| !rules.is_own(id)).count())
    }

    /// Whether the store has told everything at least once. Before, nothing may be removed.
    pub const fn is_complete(&self) -> bool {
        self.complete
    }

    /// Whether the store named the lease `id` when it was last asked.
    pub fn names(&self, id: &LeaseId) -> bool {
        self.records.contains_key(id) && !self.missing.contains(id)
    }

    /// The leases that the store no longer names but that have not been withdrawn.
    pub const fn missing(&self) -> &BTreeSet<LeaseId> {
        &self.missing
    }

    pub fn ids(&self) -> impl Iterator<Item = &LeaseId> {
        self.records.keys()
    }

    /// Every lease that could be read, believed or not, our own included.
    pub fn leases(&self) -> impl Iterator<Item = &Arc<Lease>> {
        self.records.values().filter_map(|held| held.lease.as_ref())
    }

    /// The lease last read from the record `id`, believed or not.
    pub fn lease(&self, id: &LeaseId) -> Option<&Lease> {
        self.records.get(id)?.lease.as_deref()
    }

    /// What is wrong with the record `id` as it stands, although an earlier lease of it may still be believed.
    pub fn malformed(&self, id: &LeaseId) -> Option<&Malformed> {
        self.records.get(id)?.malformed.as_ref()
    }

    /// The peer `id`, or why it is set aside; none if there is no such peer, or it is us.
    pub fn peer(&self, id: &LeaseId, rules: &Rules) -> Option<Peer<'_>> {
        let held = self.records.get(id).filter(|_| !rules.is_own(id))?;
        Some(self.judge(held, rules))
    }

    /// As [`Self::peer`], for every record: nobody is looked up.
    pub fn all(&self, rules: &Rules) -> impl Iterator<Item = (&LeaseId, Option<Peer<'_>>)> {
        let peer = |id, held| (!rules.is_own(id)).then(|| self.judge(held, rules));
        self.records.iter().map(move |(id, held)| (id, peer(id, held)))
    }

    /// A full listing is judged by itself: a daemon that has seen nothing else judges alike.
    fn apply_snapshot(&mut self, records: Vec<Record>) -> BTreeSet<LeaseId> {
        let latecomers = std::mem::take(&mut self.latecomers);
        let mut lost: BTreeSet<LeaseId> = self.ids().cloned().collect();
        for record in &records {
            lost.remove(&record.id);
        }
        let mut affected: Vec<LeaseId> = lost.into_iter().flat_map(|id| self.lose(id)).collect();
        self.complete = true;
        affected.extend(records.into_iter().flat_map(|record| self.take_in(record)));
        affected.extend(latecomers.keys().flat_map(|id| self.rivals(id)));
        // Sorted at once, not one by one.
        affected.into_iter().collect()
    }

    fn put(&mut self, record: Record) -> BTreeSet<LeaseId> {
        if let Ok(lease) = &record.lease
            && !self.lease(&record.id).is_some_and(|known| has_vteps_of(known, lease))
        {
            self.came += 1;
            self.latecomers.insert(record.id.clone(), self.came);
        }
        self.take_in(record)
    }

    /// A record that can no longer be read keeps the lease that was last read from it: its node has
    /// not gone, and its pods cannot help what was written there.
    fn take_in(&mut self, record: Record) -> BTreeSet<LeaseId> {
        let Record { id, lease } = record;
        let held = match lease {
            Ok(lease) => Held { lease: Some(Arc::new(lease)), malformed: None },
            Err(malformed) => {
                let last_read = self.records.get(&id).and_then(|held| held.lease.clone());
                Held { lease: last_read, malformed: Some(malformed) }
            }
        };
        let is_back = self.missing.remove(&id);
        let affected = self.hold(id.clone(), held);
        if is_back && affected.is_empty() { self.rivals(&id) } else { affected }
    }

    /// Returns nobody if that is what was held before.
    fn hold(&mut self, id: LeaseId, held: Held) -> BTreeSet<LeaseId> {
        let place = self.records.entry(id.clone()).or_default();
        if *place == held {
            return BTreeSet::new();
        }
        let before = std::mem::replace(place, held);
        let mut affected = BTreeSet::from([id]);
        if let Some(lease) = &before.lease {
            self.index.remove(lease);
            affected.extend(self.index.related(lease));
        }
        if let Some(lease) = &place.lease {
            affected.extend(self.index.related(lease));
            self.index.insert(lease);
        }
        affected
    }

    fn lose(&mut self, id: LeaseId) -> BTreeSet<LeaseId> {
        if !self.records.contains_key(&id) {
            return BTreeSet::new();
        }
        let rivals = self.rivals(&id);
        self.missing.insert(id);
        rivals
    }

    /// The lease `id` and those that it conflicts with; nothing if there are none.
    fn rivals(&self, id: &LeaseId) -> BTreeSet<LeaseId> {
        let related = self.lease(id).map(|lease| self.index.related(lease)).unwrap_or_default();
        if related.len() > 1 { related } else { BTreeSet::new() }
    }

    fn forget(&mut self, id: &LeaseId) -> BTreeSet<LeaseId> {
        let mut affected = BTreeSet::new();
        self.latecomers.remove(id);
        if let Some(Held { lease, .. }) = self.records.remove(id) {
            if let Some(lease) = lease {
                self.index.remove(&lease);
                affected.extend(self.index.related(&lease));
            }
            affected.insert(id.clone());
        }
        affected
    }

    fn judge<'a>(&self, held: &'a Held, rules: &Rules) -> Peer<'a> {
        match (&held.lease, &held.malformed) {
            (Some(lease), _) => {
                rules.check(lease).and_then(|()| self.check_conflicts(lease, rules)).map(|()| lease)
            }
            (None, malformed) => {
                let reason = malformed.as_ref().map(ToString::to_string).unwrap_or_default();
                Err(Rejected::Malformed(reason))
            }
        }
    }

    fn check_conflicts(&self, lease: &Lease, rules: &Rules) -> Result<(), Rejected> {
        let conflict = |what, id| Err(Rejected::ConflictsWith { what, id });
        let elders = self.index.overlapping(lease);
        if let Some(id) = elders.filter(|id| self.is_elder(id, lease, rules)).min() {
            return conflict(Contested::Subnet, id.clone());
        }
        let mut endpoints = lease.endpoints.iter();
        let winner = endpoints.find_map(|endpoint| self.holder_of_mac(endpoint, rules));
        winner.map_or(Ok(()), |id| conflict(Contested::VtepMac, id.clone()))
    }

    /// Whether the lease `id` is somebody's who is believed before `lease`.
    fn is_elder(&self, id: &LeaseId, lease: &Lease, rules: &Rules) -> bool {
        let rank = |lease: &Lease| (self.missing.contains(&lease.id), lease.created);
        let is_before = |other: &Lease| {
            (rank(other), id) < (rank(lease), &lease.id) && rules.check(other).is_ok()
        };
        *id != lease.id && !rules.is_own(id) && self.lease(id).is_some_and(is_before)
    }

    /// The lease that has the VTEP MAC of `endpoint` for another public IP, if that one is accepted.
    /// Nodes with one public IP are one end of the tunnel: one entry leads to all of them.
    fn holder_of_mac(&self, endpoint: &Endpoint, rules: &Rules) -> Option<&LeaseId> {
        let (family, mac) = (endpoint.subnet.family(), endpoint.vtep?.mac);
        let claims = self.index.holding_mac(family, mac).filter(|id| !rules.is_own(id));
        let claims = claims.filter_map(|id| self.lease(id)).filter(|it| rules.check(it).is_ok());
        let claims = claims.filter_map(|lease| Some((lease, lease.endpoint(family)?)));
        let (lease, holder) = claims.min_by_key(|(lease, claim)| self.rank(lease, claim))?;
        (holder.public_ip != endpoint.public_ip).then_some(&lease.id)
    }

    /// Of leases that claim one MAC the lowest has it: one that the store names, one to whose public
    /// IP the MAC belongs, one that had it before the others came, the oldest.
    fn rank<'a>(&self, lease: &'a Lease, claim: &Endpoint) -> impl Ord + use<'a> {
        let came = self.latecomers.get(&lease.id).copied().unwrap_or_default();
        let is_missing = self.missing.contains(&lease.id);
        (is_missing, !claim.has_derived_mac(), came, lease.created, &lease.id)
    }
}

/// Whether both leases name the same ends of tunnels.
fn has_vteps_of(known: &Lease, lease: &Lease) -> bool {
    let ends = |lease: &Lease| -> Vec<_> {
        let mac = |endpoint: &Endpoint| Some((endpoint.public_ip, endpoint.vtep?.mac));
        lease.endpoints.iter().filter_map(mac).collect()
    };
    ends(known) == ends(lease)
}
