//! The leases of everybody else: what the store says, what of it is believed, what has gone missing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::belief::{BadSource, Contested, Rejected, Rules};
use super::index::{Claimed, Index, Rank};
use super::{Endpoint, Lease, LeaseId, LeaseUpdate, Malformed, Record};

/// All leases by id. What has gone missing from the store stays until it is withdrawn.
#[derive(Clone, Debug, Default)]
pub struct Peers {
    rules: Rules,
    records: BTreeMap<LeaseId, Held>,
    /// What the leases claim that the rules allow.
    claims: Index,
    missing: BTreeMap<LeaseId, Absence>,
    /// Those whose VTEP is new since the last full listing, in the order in which they came.
    latecomers: BTreeMap<LeaseId, u64>,
    /// How many have come so.
    came: u64,
    complete: bool,
    changed: Changed,
}

/// The lease of a peer, or why it is set aside.
pub type Peer<'a> = Result<&'a Arc<Lease>, Rejected>;

/// One record: the last lease that could be read from it, and what is wrong with it now. The lease
/// is shared with those who go on with it as it is now.
#[derive(Clone, Debug)]
struct Held {
    lease: Option<Arc<Lease>>,
    malformed: Option<Malformed>,
    judged: Judged,
}

/// What the rules make of a lease by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Judged {
    /// There is none.
    Unread,
    /// It is our own.
    Ours,
    Allowed,
    /// It is allowed without a source of its tunnel's packets.
    Trimmed(Box<(Arc<Lease>, BadSource)>),
    Rejected(Box<Rejected>),
}

/// How a lease went missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// It is known from a checkpoint alone: the store has not named it since the start.
    Remembered,
    /// A listing does not name it any more.
    Unlisted,
    /// The store reported that it was removed.
    Removed,
    /// The store reported that its node was deleted.
    NodeDeleted,
}

impl Absence {
    /// Whether a store that lost its data would look like this.
    const fn is_doubtful(self) -> bool {
        matches!(self, Self::Unlisted | Self::Removed)
    }
}

/// What has changed since [`Peers::affected`] was last asked.
#[derive(Clone, Debug, Default)]
struct Changed {
    leases: BTreeSet<LeaseId>,
    /// These have other holders, which concerns other leases, too.
    claimed: BTreeSet<Claimed>,
}

/// What became of the leases that went missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Withdrawal {
    /// They are forgotten; these leases must be looked at again.
    Done(BTreeSet<LeaseId>),
    /// They are too many to be true: they are kept.
    Held { missing: usize, of: usize },
}

/// With fewer peers than this, one of them is a large share. If it is the first of several that are
/// lost, the brake must see them together.
const FEW: usize = 10;

impl Peers {
    /// The peers as they were last known. They count as missing until the store names them.
    pub fn remembered(leases: impl IntoIterator<Item = Arc<Lease>>) -> Self {
        let mut peers = Self::default();
        for lease in leases {
            let id = lease.id.clone();
            let judged = Judged::by(&peers.rules, &id, Some(&lease));
            peers.missing.insert(id.clone(), Absence::Remembered);
            peers.records.insert(id, Held { lease: Some(lease), malformed: None, judged });
        }
        peers
    }

    /// Judges by `rules` from now on.
    pub fn judge_by(&mut self, rules: Rules) {
        if self.rules == rules {
            return;
        }
        self.rules = rules;
        let judged = |(id, held): (&LeaseId, &Held)| {
            let judged = Judged::by(&self.rules, id, held.lease.as_deref());
            (judged != held.judged).then(|| (id.clone(), judged))
        };
        let news: Vec<_> = self.records.iter().filter_map(judged).collect();
        for (id, judged) in news {
            self.change(&id, |peers| {
                if let Some(held) = peers.records.get_mut(&id) {
                    held.judged = judged;
                }
            });
            self.changed.leases.insert(id);
        }
    }

    /// As [`Self::take_in`] and [`Self::affected`].
    pub fn apply(&mut self, update: LeaseUpdate) -> BTreeSet<LeaseId> {
        self.take_in(update);
        self.affected()
    }

    /// Takes in what the store says.
    pub fn take_in(&mut self, update: LeaseUpdate) {
        match update {
            LeaseUpdate::Snapshot(records) => self.take_listing(records),
            LeaseUpdate::Put(record) => self.put(record),
            LeaseUpdate::Remove(id) => self.lose(&id, Absence::Removed),
            LeaseUpdate::DeleteNode(id) => self.lose(&id, Absence::NodeDeleted),
        }
    }

    /// The leases that must be looked at again since this was last asked: those that changed, and
    /// those whose standing depends on them. To ask once for many changes takes less than to ask
    /// after each of them.
    pub fn affected(&mut self) -> BTreeSet<LeaseId> {
        let Changed { mut leases, claimed } = std::mem::take(&mut self.changed);
        leases.extend(claimed.into_iter().flat_map(|it| self.claims.dependents(it)).cloned());
        leases
    }

    /// Forgets what has gone missing, unless that is more than `max_percent` of all peers, or the
    /// store has forgotten us too: then the store lost its data, not the cluster its nodes. Peers
    /// that are known from a checkpoint alone, and those whose nodes were reported as deleted, say
    /// nothing of the store: they are not counted, and forgotten however many they are.
    pub fn withdraw(&mut self, max_percent: u8) -> Withdrawal {
        let (missing, of) = self.vanished();
        let forgot_us = self.missing.len() > missing;
        if forgot_us {
            self.doubt_all();
        }
        if forgot_us && missing > 0 {
            return Withdrawal::Held { missing, of };
        }
        self.forget_all(|absence| !absence.is_doubtful());
        let (missing, of) = self.vanished();
        if missing > 1 && missing * 100 > of * usize::from(max_percent) {
            return Withdrawal::Held { missing, of };
        }
        self.forget_all(|_| true);
        Withdrawal::Done(self.affected())
    }

    /// The store has forgotten us, or had: nothing that it does not name is proven to be gone.
    pub fn doubt_all(&mut self) {
        self.missing.values_mut().for_each(|absence| *absence = Absence::Unlisted);
    }

    /// Whether one peer alone is missing, and the store reported that: there is nothing to wait for.
    pub fn is_single_removal(&self) -> bool {
        let (missing, of) = self.vanished();
        let is_reported = |absence: &Absence| match absence {
            Absence::NodeDeleted => true,
            Absence::Removed => of >= FEW,
            Absence::Remembered | Absence::Unlisted => false,
        };
        (missing, self.missing.len()) == (1, 1) && self.missing.values().all(is_reported)
    }

    /// How many peers have gone missing, and of how many.
    pub fn vanished(&self) -> (usize, usize) {
        let own = self.rules.own.as_ref().map(|own| &own.id);
        let is_missing = own.is_some_and(|own| self.missing.contains_key(own));
        let is_there = own.is_some_and(|own| self.records.contains_key(own));
        let (missing, of) = (self.missing.len(), self.records.len());
        (missing - usize::from(is_missing), of - usize::from(is_there))
    }

    /// Whether the store has told everything at least once. Before, nothing may be removed.
    pub const fn is_complete(&self) -> bool {
        self.complete
    }

    /// Whether the store named the lease `id` when it was last asked.
    pub fn names(&self, id: &LeaseId) -> bool {
        self.records.contains_key(id) && !self.missing.contains_key(id)
    }

    /// The leases that the store no longer names but that have not been withdrawn.
    pub const fn missing(&self) -> &BTreeMap<LeaseId, Absence> {
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

    /// What of the lease of the record `id` is not accepted, although the lease itself may be.
    pub fn bad_source(&self, id: &LeaseId) -> Option<BadSource> {
        match &self.records.get(id)?.judged {
            Judged::Trimmed(trimmed) => Some(trimmed.1),
            Judged::Unread | Judged::Ours | Judged::Allowed | Judged::Rejected(_) => None,
        }
    }

    /// The peer `id`, or why it is set aside; none if there is no such peer, or it is us.
    pub fn peer(&self, id: &LeaseId) -> Option<Peer<'_>> {
        self.judge(self.records.get(id)?)
    }

    /// As [`Self::peer`], for every record: nobody is looked up.
    pub fn all(&self) -> impl Iterator<Item = (&LeaseId, Option<Peer<'_>>)> {
        self.records.iter().map(|(id, held)| (id, self.judge(held)))
    }

    /// A full listing is judged by itself: a daemon that has seen nothing else judges alike.
    fn take_listing(&mut self, records: Vec<Record>) {
        for id in self.latecomers.keys().cloned().collect::<Vec<_>>() {
            self.change(&id, |peers| {
                peers.latecomers.remove(&id);
            });
        }
        let known = self.ids().filter(|id| !self.missing.contains_key(id));
        let mut lost: BTreeSet<LeaseId> = known.cloned().collect();
        for record in &records {
            lost.remove(&record.id);
        }
        for id in &lost {
            self.lose(id, Absence::Unlisted);
        }
        self.complete = true;
        for record in records {
            self.take_record(record, None);
        }
    }

    fn put(&mut self, record: Record) {
        let is_late = record.lease.as_ref().is_ok_and(|lease| {
            !self.lease(&record.id).is_some_and(|known| has_vteps_of(known, lease))
        });
        self.came += u64::from(is_late);
        self.take_record(record, is_late.then_some(self.came));
    }

    fn take_record(&mut self, Record { id, lease }: Record, came: Option<u64>) {
        let is_known = self.records.get(&id).is_some_and(|held| held.is_of(&lease));
        if is_known && !self.missing.contains_key(&id) {
            return;
        }
        let news = (!is_known).then(|| self.read(&id, lease));
        if news.is_some() {
            self.changed.leases.insert(id.clone());
        }
        self.change(&id, |peers| {
            peers.missing.remove(&id);
            peers.latecomers.extend(came.map(|came| (id.clone(), came)));
            peers.records.extend(news.map(|news| (id.clone(), news)));
        });
    }

    /// A record that can no longer be read keeps the lease that was last read from it: its node has
    /// not gone, and its pods cannot help what was written there.
    fn read(&self, id: &LeaseId, lease: Result<Lease, Malformed>) -> Held {
        let last_read = || self.records.get(id)?.lease.clone();
        let (lease, malformed) = match lease {
            Ok(lease) => (Some(Arc::new(lease)), None),
            Err(malformed) => (last_read(), Some(malformed)),
        };
        let judged = Judged::by(&self.rules, id, lease.as_deref());
        Held { lease, malformed, judged }
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
            self.forget(id);
        }
    }

    fn forget(&mut self, id: LeaseId) {
        self.change(&id, |peers| {
            peers.missing.remove(&id);
            peers.latecomers.remove(&id);
            peers.records.remove(&id);
        });
        self.changed.leases.insert(id);
    }

    /// Lets `change` happen to the record `id`, and notes which claims have other holders with it,
    /// where that concerns other leases.
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
                self.changed.claimed.insert(claimed);
            }
        }
    }

    /// What the lease of the record `id` claims; nothing if the rules do not allow it.
    fn claims_of(&self, id: &LeaseId) -> Vec<(Claimed, Rank)> {
        let held = self.records.get(id).filter(|held| held.judged.may_claim());
        let Some(lease) = held.and_then(|held| held.lease.as_deref()) else { return Vec::new() };
        let claims = lease.endpoints.iter().flat_map(|endpoint| {
            let subnet = (Claimed::Subnet(endpoint.subnet), self.rank(lease));
            [Some(subnet), self.claim_of_mac(lease, endpoint)]
        });
        claims.flatten().collect()
    }

    fn claim_of_mac(&self, lease: &Lease, endpoint: &Endpoint) -> Option<(Claimed, Rank)> {
        let claimed = Claimed::Mac(endpoint.subnet.family(), endpoint.vtep?.mac);
        let came = self.latecomers.get(&lease.id).copied().unwrap_or_default();
        let borrowed = !endpoint.has_derived_mac();
        Some((claimed, Rank { borrowed, came, ..self.rank(lease) }))
    }

    fn rank(&self, lease: &Lease) -> Rank {
        Rank {
            missing: self.missing.contains_key(&lease.id),
            borrowed: false,
            came: 0,
            created: lease.created,
            id: lease.id.clone(),
        }
    }

    fn judge<'a>(&self, held: &'a Held) -> Option<Peer<'a>> {
        match (&held.judged, &held.lease) {
            (Judged::Ours, _) => None,
            (Judged::Rejected(why), _) => Some(Err(Rejected::clone(why))),
            (Judged::Allowed, Some(lease)) => Some(self.check_conflicts(lease).map(|()| lease)),
            (Judged::Trimmed(trimmed), _) => {
                let (lease, _) = trimmed.as_ref();
                Some(self.check_conflicts(lease).map(|()| lease))
            }
            (Judged::Allowed | Judged::Unread, _) => {
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

    /// The lease that has the VTEP MAC of `endpoint` for another public IP. Nodes with one public IP
    /// are one end of the tunnel: one entry leads to all of them.
    fn holder_of_mac(&self, endpoint: &Endpoint) -> Option<&LeaseId> {
        let family = endpoint.subnet.family();
        let holder = self.claims.holder(Claimed::Mac(family, endpoint.vtep?.mac))?;
        let held = self.lease(&holder.id)?.endpoint(family)?;
        (held.public_ip != endpoint.public_ip).then_some(&holder.id)
    }

    /// How many claims were looked at so far.
    #[cfg(test)]
    pub(super) fn looked_at(&self) -> usize {
        self.claims.looked_at.get()
    }
}

impl Held {
    /// Whether it was read from a record that said the same.
    fn is_of(&self, lease: &Result<Lease, Malformed>) -> bool {
        match lease {
            Ok(lease) => self.malformed.is_none() && self.lease.as_deref() == Some(lease),
            Err(malformed) => self.malformed.as_ref() == Some(malformed),
        }
    }
}

impl Judged {
    fn by(rules: &Rules, id: &LeaseId, lease: Option<&Lease>) -> Self {
        let trimmed = |(lease, bad)| Self::Trimmed(Box::new((Arc::new(lease), bad)));
        match lease {
            _ if rules.is_own(id) => Self::Ours,
            None => Self::Unread,
            Some(lease) => match rules.check(lease) {
                Ok(()) => rules.without_bad_sources(lease).map_or(Self::Allowed, trimmed),
                Err(why) => Self::Rejected(Box::new(why)),
            },
        }
    }

    const fn may_claim(&self) -> bool {
        matches!(self, Self::Allowed | Self::Trimmed(_))
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
