//! The leases of all other nodes: accepted, rejected, and missing from the store.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;

use super::index::{Claimed, Index, Rank};
use super::validation::{BadSource, Contested, Rejected, Rules};
use super::{Endpoint, Lease, LeaseId, LeaseUpdate, Malformed, Record};

/// All leases by id. A lease that is missing from the store stays until it is withdrawn.
#[derive(Clone, Debug, Default)]
pub struct Peers {
    rules: Rules,
    records: BTreeMap<LeaseId, PeerRecord>,
    claims: Index,
    missing: BTreeMap<LeaseId, Absence>,
    /// Leases whose VTEP is new since the last full listing, with their sequence numbers.
    arrivals: BTreeMap<LeaseId, u64>,
    arrival: u64,
    complete: bool,
    /// The leases that have changed since the last call of [`Peers::take_affected`].
    changed: BTreeSet<LeaseId>,
    /// The claims whose holder has changed since then, which affects other leases.
    reassigned: BTreeSet<Claimed>,
}

/// The lease of a peer, or why it is rejected.
pub type Peer<'a> = Result<&'a Arc<Lease>, Rejected>;

/// One record: the last valid lease that was read from it, and what is wrong with it now. The lease
/// is shared with its other users.
#[derive(Clone, Debug)]
struct PeerRecord {
    lease: Option<Arc<Lease>>,
    malformed: Option<Malformed>,
    validity: Validity,
}

/// The result of validating a lease alone.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Validity {
    Unread,
    Own,
    /// The lease, without a bad source of tunnel packets and without an address family that this node
    /// does not have.
    Allowed(Arc<Lease>, Option<Box<BadSource>>),
    Rejected(Box<Rejected>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// It is known only from a checkpoint: the store has not listed it since the start.
    FromCheckpoint,
    /// The last listing does not contain it.
    Unlisted,
    /// The store reported that the record was removed.
    Removed,
    /// The store reported that the node was deleted.
    NodeDeleted,
}

impl Absence {
    /// Whether the loss of the store's data would look the same.
    const fn is_doubtful(self) -> bool {
        matches!(self, Self::Unlisted | Self::Removed)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Withdrawal {
    /// They are removed. The leases listed here have to be planned again.
    Done(BTreeSet<LeaseId>),
    /// They are more than the withdrawal limit, and are kept.
    Limited { missing: usize, of: usize },
}

/// With fewer peers than this, one peer is a large share. If it is the first of several losses, the
/// withdrawal limit has to see them together.
const FEW: usize = 10;

impl Peers {
    /// The last known peers. They count as missing until the store lists them.
    pub fn from_checkpoint(leases: impl IntoIterator<Item = Arc<Lease>>) -> Self {
        let mut peers = Self::default();
        for lease in leases {
            let id = lease.id.clone();
            let validity = Validity::by(&peers.rules, &id, Some(&lease));
            peers.missing.insert(id.clone(), Absence::FromCheckpoint);
            peers.records.insert(id, PeerRecord { lease: Some(lease), malformed: None, validity });
        }
        peers
    }

    /// Validates by `rules` from now on.
    pub fn validate_by(&mut self, rules: Rules) {
        if self.rules == rules {
            return;
        }
        self.rules = rules;
        let validity = |(id, held): (&LeaseId, &PeerRecord)| {
            let validity = Validity::by(&self.rules, id, held.lease.as_ref());
            (validity != held.validity).then(|| (id.clone(), validity))
        };
        let update: Vec<_> = self.records.iter().filter_map(validity).collect();
        for (id, validity) in update {
            self.change(&id, |peers| {
                if let Some(held) = peers.records.get_mut(&id) {
                    held.validity = validity;
                }
            });
            self.changed.insert(id);
        }
    }

    pub fn update(&mut self, update: LeaseUpdate) {
        match update {
            LeaseUpdate::Snapshot(records) => self.take_listing(records),
            LeaseUpdate::Put(record) => self.put(record),
            LeaseUpdate::Remove(id) => self.lose(&id, Absence::Removed),
            LeaseUpdate::DeleteNode(id) => self.lose(&id, Absence::NodeDeleted),
        }
    }

    /// The leases that have to be planned again since the last call: those that changed, and those
    /// that depend on them. One call for many changes is cheaper than one call per change.
    pub fn take_affected(&mut self) -> BTreeSet<LeaseId> {
        let mut leases = mem::take(&mut self.changed);
        let reassigned = mem::take(&mut self.reassigned).into_iter();
        leases.extend(reassigned.flat_map(|claimed| self.claims.dependents(claimed)).cloned());
        leases
    }

    /// Removes the missing leases, unless they are more than `max_percent` of all peers, or this
    /// node's own lease is missing too: then the store has probably lost its data.
    ///
    /// Peers that are known only from a checkpoint, and peers whose nodes were deleted, are not
    /// evidence of data loss: they are not counted and always removed.
    pub fn withdraw(&mut self, max_percent: u8) -> Withdrawal {
        let (missing, of) = self.count_missing();
        let forgot_us = self.missing.len() > missing;
        if forgot_us {
            self.mark_all_unlisted();
        }
        if forgot_us && missing > 0 {
            return Withdrawal::Limited { missing, of };
        }
        self.forget_all(|absence| !absence.is_doubtful());
        let (missing, of) = self.count_missing();
        if missing > 1 && missing * 100 > of * usize::from(max_percent) {
            return Withdrawal::Limited { missing, of };
        }
        self.forget_all(|_| true);
        Withdrawal::Done(self.take_affected())
    }

    /// Marks all missing leases as possible data loss: the store lacks, or lacked, this node's own
    /// lease.
    pub fn mark_all_unlisted(&mut self) {
        self.missing.values_mut().for_each(|absence| *absence = Absence::Unlisted);
    }

    /// Whether exactly one peer is missing and the store reported its removal. Then there is no
    /// reason to wait for more.
    pub fn is_single_removal(&self) -> bool {
        let (missing, of) = self.count_missing();
        let is_reported = |absence: &Absence| match absence {
            Absence::NodeDeleted => true,
            Absence::Removed => of >= FEW,
            Absence::FromCheckpoint | Absence::Unlisted => false,
        };
        (missing, self.missing.len()) == (1, 1) && self.missing.values().all(is_reported)
    }

    pub fn count_missing(&self) -> (usize, usize) {
        let own = self.rules.own.as_ref().map(|own| &own.id);
        let is_missing = own.is_some_and(|own| self.missing.contains_key(own));
        let is_there = own.is_some_and(|own| self.records.contains_key(own));
        let (missing, of) = (self.missing.len(), self.records.len());
        (missing - usize::from(is_missing), of - usize::from(is_there))
    }

    /// Whether there was at least one full listing. Before, nothing may be removed.
    pub const fn is_complete(&self) -> bool {
        self.complete
    }

    /// Whether the store has the lease `id`, as far as it has reported.
    pub fn is_listed(&self, id: &LeaseId) -> bool {
        self.records.contains_key(id) && !self.missing.contains_key(id)
    }

    /// Whether the store has no lease `id`, and has reported all that it has.
    pub fn is_gone(&self, id: &LeaseId) -> bool {
        self.complete && !self.is_listed(id)
    }

    /// The leases that the store no longer has and that are not withdrawn yet.
    pub const fn missing(&self) -> &BTreeMap<LeaseId, Absence> {
        &self.missing
    }

    /// The number of leases that the store no longer has. Before its first listing, no lease is known
    /// to have vanished.
    pub fn vanished(&self) -> usize {
        if self.complete { self.missing.len() } else { 0 }
    }

    pub fn ids(&self) -> impl Iterator<Item = &LeaseId> {
        self.records.keys()
    }

    /// Every lease that could be read, accepted or not, including our own.
    pub fn leases(&self) -> impl Iterator<Item = &Arc<Lease>> {
        self.records.values().filter_map(|held| held.lease.as_ref())
    }

    /// The last lease that was read from the record `id`, accepted or not.
    pub fn lease(&self, id: &LeaseId) -> Option<&Lease> {
        self.records.get(id)?.lease.as_deref()
    }

    /// The leases with a subnet that starts with the address `base`, as far as they may be accepted.
    pub fn starting_at(&self, base: IpAddr) -> impl Iterator<Item = &LeaseId> {
        self.claims.starting_at(base)
    }

    /// What is wrong with the record `id`, although its previous lease may still be accepted.
    pub fn malformed(&self, id: &LeaseId) -> Option<&Malformed> {
        self.records.get(id)?.malformed.as_ref()
    }

    /// Why the tunnel source of the record `id` is rejected, although the lease may be accepted.
    pub fn bad_source(&self, id: &LeaseId) -> Option<BadSource> {
        match &self.records.get(id)?.validity {
            Validity::Allowed(_, bad) => bad.as_deref().copied(),
            Validity::Unread | Validity::Own | Validity::Rejected(_) => None,
        }
    }

    /// The peer `id`, or why it is rejected; none if it does not exist or is this node.
    pub fn peer(&self, id: &LeaseId) -> Option<Peer<'_>> {
        self.judge(self.records.get(id)?)
    }

    /// As [`Self::peer`], for all records, without lookups.
    pub fn all(&self) -> impl Iterator<Item = (&LeaseId, Option<Peer<'_>>)> {
        self.records.iter().map(|(id, held)| (id, self.judge(held)))
    }

    /// A full listing resets the order of arrival, so that a daemon that starts now resolves
    /// conflicts in the same way.
    fn take_listing(&mut self, records: Vec<Record>) {
        for id in self.arrivals.keys().cloned().collect::<Vec<_>>() {
            self.change(&id, |peers| {
                peers.arrivals.remove(&id);
            });
        }
        let listed: BTreeSet<&LeaseId> = records.iter().map(|record| &record.id).collect();
        let lost = self.ids().filter(|id| self.is_listed(id) && !listed.contains(id));
        for id in lost.cloned().collect::<Vec<_>>() {
            self.lose(&id, Absence::Unlisted);
        }
        self.complete = true;
        for record in records {
            self.take_record(record, None);
        }
    }

    fn put(&mut self, record: Record) {
        let is_arrival = record.lease.as_ref().is_ok_and(|lease| {
            !self.lease(&record.id).is_some_and(|known| has_vteps_of(known, lease))
        });
        self.arrival += u64::from(is_arrival);
        self.take_record(record, is_arrival.then_some(self.arrival));
    }

    fn take_record(&mut self, Record { id, lease }: Record, arrival: Option<u64>) {
        let is_known = self.records.get(&id).is_some_and(|held| held.is_of(&lease));
        if is_known && !self.missing.contains_key(&id) {
            return;
        }
        let update = (!is_known).then(|| self.read(&id, lease));
        if update.is_some() {
            self.changed.insert(id.clone());
        }
        self.change(&id, |peers| {
            peers.missing.remove(&id);
            peers.arrivals.extend(arrival.map(|arrival| (id.clone(), arrival)));
            peers.records.extend(update.map(|update| (id.clone(), update)));
        });
    }

    /// A record that becomes unreadable keeps its last valid lease: its node still exists, and its
    /// pods must not lose their routes because of what was written there.
    fn read(&self, id: &LeaseId, lease: Result<Lease, Malformed>) -> PeerRecord {
        let last_read = || self.records.get(id)?.lease.clone();
        let (lease, malformed) = match lease {
            Ok(lease) => (Some(Arc::new(lease)), None),
            Err(malformed) => (last_read(), Some(malformed)),
        };
        let validity = Validity::by(&self.rules, id, lease.as_ref());
        PeerRecord { lease, malformed, validity }
    }

    fn lose(&mut self, id: &LeaseId, absence: Absence) {
        if self.records.contains_key(id) {
            self.change(id, |peers| {
                peers.missing.insert(id.clone(), absence);
            });
        }
    }

    fn forget_all(&mut self, is_gone: impl Fn(Absence) -> bool) {
        let gone = self.missing.iter().filter(|(_, absence)| is_gone(**absence));
        let gone: Vec<LeaseId> = gone.map(|(id, _)| id.clone()).collect();
        for id in gone {
            self.change(&id, |peers| {
                peers.missing.remove(&id);
                peers.arrivals.remove(&id);
                peers.records.remove(&id);
            });
            self.changed.insert(id);
        }
    }

    /// Runs `change` on the record `id`, and records which claims have another holder afterwards,
    /// as far as other leases depend on them.
    fn change(&mut self, id: &LeaseId, change: impl FnOnce(&mut Self)) {
        let old = self.claims_of(id);
        change(self);
        let new = self.claims_of(id);
        if old == new {
            return;
        }
        let claimed: BTreeSet<Claimed> = old.iter().chain(&new).map(|(it, _)| *it).collect();
        let holder = |claimed| (claimed, self.claims.holder(claimed).cloned());
        let before: Vec<_> = claimed.into_iter().map(holder).collect();
        for claim in &old {
            self.claims.remove(claim);
        }
        for (claimed, rank) in new {
            self.claims.insert(claimed, rank);
        }
        for (claimed, before) in before {
            let is_other = self.claims.holder(claimed) != before.as_ref();
            if is_other && self.claims.dependents(claimed).any(|other| other != id) {
                self.reassigned.insert(claimed);
            }
        }
    }

    /// The claims of the record `id`; none if its lease is invalid.
    fn claims_of(&self, id: &LeaseId) -> Vec<(Claimed, Rank)> {
        let validity = self.records.get(id).map(|held| &held.validity);
        let Some(Validity::Allowed(lease, _)) = validity else { return Vec::new() };
        let claims = lease.endpoints.iter().flat_map(|endpoint| {
            let subnet = (Claimed::Subnet(endpoint.subnet), self.rank(lease));
            [Some(subnet), self.claim_of_mac(lease, endpoint)]
        });
        claims.flatten().collect()
    }

    fn claim_of_mac(&self, lease: &Lease, endpoint: &Endpoint) -> Option<(Claimed, Rank)> {
        let claimed = Claimed::Mac(endpoint.subnet.family(), endpoint.vtep?.mac);
        let arrival = self.arrivals.get(&lease.id).copied().unwrap_or_default();
        let borrowed = !endpoint.has_derived_mac();
        Some((claimed, Rank { borrowed, arrival, ..self.rank(lease) }))
    }

    fn rank(&self, lease: &Lease) -> Rank {
        Rank {
            missing: self.missing.contains_key(&lease.id),
            borrowed: false,
            arrival: 0,
            created: lease.created,
            id: lease.id.clone(),
        }
    }

    fn judge<'a>(&self, held: &'a PeerRecord) -> Option<Peer<'a>> {
        match &held.validity {
            Validity::Own => None,
            Validity::Rejected(why) => Some(Err(Rejected::clone(why))),
            Validity::Allowed(lease, _) => Some(self.check_conflicts(lease).map(|()| lease)),
            Validity::Unread => {
                let reason = held.malformed.as_ref().map(ToString::to_string).unwrap_or_default();
                Some(Err(Rejected::Malformed(reason)))
            }
        }
    }

    fn check_conflicts(&self, lease: &Lease) -> Result<(), Rejected> {
        let conflict = |what, id: &LeaseId| Err(Rejected::ConflictsWith { what, id: id.clone() });
        let rank = self.rank(lease);
        if let Some(id) = lease.subnets().find_map(|subnet| self.claims.before(subnet, &rank)) {
            return conflict(Contested::Subnet, id);
        }
        let mut endpoints = lease.endpoints.iter();
        let holder = endpoints.find_map(|endpoint| self.holder_of_mac(endpoint));
        holder.map_or(Ok(()), |id| conflict(Contested::VtepMac, id))
    }

    /// The lease of another public IP that holds the VTEP MAC of `endpoint`. Nodes that share a
    /// public IP are one end of the tunnel, with one forwarding entry for all of them.
    fn holder_of_mac(&self, endpoint: &Endpoint) -> Option<&LeaseId> {
        let family = endpoint.subnet.family();
        let holder = self.claims.holder(Claimed::Mac(family, endpoint.vtep?.mac))?;
        let held = self.lease(&holder.id)?.endpoint(family)?;
        (held.public_ip != endpoint.public_ip).then_some(&holder.id)
    }

    /// The number of claims that were visited so far.
    #[cfg(test)]
    pub(super) fn visited(&self) -> usize {
        self.claims.visited.get()
    }
}

impl PeerRecord {
    /// Whether it was read from an equal record.
    fn is_of(&self, lease: &Result<Lease, Malformed>) -> bool {
        match lease {
            Ok(lease) => self.malformed.is_none() && self.lease.as_deref() == Some(lease),
            Err(malformed) => self.malformed.as_ref() == Some(malformed),
        }
    }
}

impl Validity {
    fn by(rules: &Rules, id: &LeaseId, lease: Option<&Arc<Lease>>) -> Self {
        match lease {
            _ if rules.is_own(id) => Self::Own,
            None => Self::Unread,
            Some(lease) => {
                let part = rules.without_other_families(lease).map(Arc::new);
                let lease = part.as_ref().unwrap_or(lease);
                match rules.check(lease).map(|()| rules.without_bad_sources(lease)) {
                    Err(why) => Self::Rejected(Box::new(why)),
                    Ok(None) => Self::Allowed(Arc::clone(lease), None),
                    Ok(Some((lease, bad))) => Self::Allowed(Arc::new(lease), Some(Box::new(bad))),
                }
            }
        }
    }
}

/// Whether both leases have the same VTEPs and public IPs.
fn has_vteps_of(known: &Lease, lease: &Lease) -> bool {
    let ends = |lease: &Lease| -> Vec<_> {
        let mac = |endpoint: &Endpoint| Some((endpoint.public_ip, endpoint.vtep?.mac));
        lease.endpoints.iter().filter_map(mac).collect()
    };
    ends(known) == ends(lease)
}
