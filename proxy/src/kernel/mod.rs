//! The table in the kernel: read, and changed in transactions.

pub mod codec;

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::{fmt, io, mem};

use futures::FutureExt;
use nix::errno::Errno;
use nix::libc::{EMSGSIZE, ENOBUFS};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::task::unconstrained;
use tweed_netlink::conntrack::{self, Connection};
use tweed_netlink::nftables::{
    self, Batch, Condition, ListedElement, MOST_ELEMENTS, Rule, Rules, Table, TableFamily, Verdict,
};
use tweed_netlink::{Family, Frame, Message, Monitor, Protocol, Refusal, Socket};

use crate::plan::conntrack::Stale;
use crate::plan::diff::{Change, Part};
use crate::plan::ruleset::{self, Chain, Count, Policy, TABLE};
use crate::state::{Set, State, Transport};

/// Both tables of this network namespace, one per family.
pub struct Kernel {
    socket: Socket,
    policy: Policy,
    listener: Option<Listener>,
    /// Elements of no form that this program writes, as of the last reading.
    foreign: BTreeMap<(Family, Set), Vec<nftables::Element>>,
    /// See [`Self::changes`].
    changes: u64,
}

/// Why the tables must be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Another program has changed one.
    Foreign,
    /// The kernel has dropped reports, maybe of such a change: more came than there is room for.
    LostReports,
}

/// What a table lacks.
pub struct Lacking {
    /// Chains that are missing or have other rules.
    pub chains: Vec<Chain>,
    /// Packets do not come to the table, or it has rules in chains of no known name: no chain helps.
    pub is_unusable: bool,
}

/// What the kernel refused; the rest was carried out.
#[derive(Debug, Default)]
pub struct Refused {
    /// Those whose chains were refused.
    families: BTreeSet<Family>,
    parts: BTreeSet<Part>,
    /// Why, at the first time.
    pub first: Option<Error>,
}

/// Reads what the kernel reports of all tables.
struct Listener {
    monitor: Monitor,
    /// The number of this process.
    own: u32,
    /// Whether the transaction that is received changed a table of ours.
    is_touched: bool,
}

/// The table could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("netlink, for table {TABLE}")]
    Netlink(#[from] io::Error),
    /// `what` of it: an address with protocol and port, or an element.
    #[error("the kernel refused {what} in table {} {TABLE}", .family.keyword())]
    Refused { what: String, family: Family, source: Refusal },
    #[error("the kernel refused to delete a connection")]
    Undeleted(#[source] Refusal),
}

/// Changes in one transaction. One with all elements takes ten times as long as many: a set grows
/// between transactions, and not within them.
const TRANSACTION: usize = 1000;

/// Half of the longest transaction, in bytes: the kernel grants twice as much.
const SEND_BUFFER: usize = 16 << 20;

/// The most questions for connections to one port; if there were more, all of UDP are listed once.
const MOST_QUESTIONS: usize = 4;

/// Room for what the kernel reports of our own changes until they are complete, in bytes. Without it,
/// a large load would end with a needless reading.
pub const BACKLOG: usize = 32 << 20;

impl Kernel {
    pub fn open(policy: Policy) -> Result<Self, Error> {
        let (socket, foreign) = (open()?, BTreeMap::new());
        Ok(Self { socket, policy, listener: None, foreign, changes: 0 })
    }

    /// After an error, the kernel may still be answering on the socket: a listing would be refused.
    pub fn reopen(&mut self) -> Result<(), Error> {
        self.socket = open()?;
        Ok(())
    }

    /// From now on, [`Self::damaged`] reports changes by other programs. `backlog`: room for reports, in
    /// bytes. Must be called within a tokio runtime.
    pub fn listen(&mut self, backlog: usize) -> Result<(), Error> {
        let own = nftables::own_number(&mut self.socket)?;
        let monitor = Monitor::of_tables(backlog)?;
        self.listener = Some(Listener { monitor, own, is_touched: false });
        Ok(())
    }

    /// Waits until another program may have changed a table of ours. Cancel safe.
    pub async fn damaged(&mut self) -> Result<Damage, Error> {
        let Some(listener) = &mut self.listener else { return pending().await };
        loop {
            match listener.receive().await {
                Ok(false) => {}
                Ok(true) => return Ok(Damage::Foreign),
                Err(error) if is_overrun(&error) => return Ok(listener.catch_up()?),
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// How many elements were put or removed.
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    /// What the sets hold.
    pub fn read(&mut self) -> Result<State, Error> {
        self.foreign.clear();
        let mut known = Vec::new();
        for family in Family::ALL {
            let names = table(family).sets(&mut self.socket)?;
            for set in names.iter().filter_map(|name| Set::parse(name)) {
                let read = |element: ListedElement<'_>| {
                    Some(codec::decode(set, family, element).ok_or_else(|| element.into()))
                };
                let name = set.to_string();
                for element in table(family).elements(&mut self.socket, &name, read)? {
                    match element {
                        Ok(element) => known.push(element),
                        Err(other) => self.foreign.entry((family, set)).or_default().push(other),
                    }
                }
            }
        }
        Ok(State::of(known))
    }

    /// The sets with elements of no known form, as of the last reading, and how many.
    pub fn foreign(&self) -> impl Iterator<Item = (Family, Set, usize)> {
        self.foreign.iter().map(|((family, set), elements)| (*family, *set, elements.len()))
    }

    /// Removes the elements of no known form that the last reading found: an interval among them may
    /// overlap what is to be put.
    pub fn remove_foreign(&mut self, refused: &mut Refused) -> Result<(), Error> {
        for ((family, set), elements) in mem::take(&mut self.foreign) {
            let name = set.to_string();
            let remove = |batch: Batch, some| batch.remove(&name, some);
            let batch = elements.chunks(MOST_ELEMENTS).fold(Batch::of(table(family)), remove);
            let outcome = self.commit(batch)?;
            refused.note("to remove elements of another program", family, outcome);
        }
        Ok(())
    }

    /// `counts`: the numbers of endpoints that need a chain, the most frequent first; those that have
    /// one keep it.
    pub fn lacking(&mut self, family: Family, counts: &[Count]) -> Result<Lacking, Error> {
        let contents = table(family).read(&mut self.socket)?;
        let is_hooked = contents.as_ref().is_none_or(|contents| contents.flags == 0);
        let found = contents.map(|contents| contents.chains).unwrap_or_default();
        let mut known = Vec::new();
        for count in order(&found).iter().chain(counts) {
            if !known.contains(count) {
                known.push(*count);
            }
        }
        let wanted = ruleset::chains(family, &self.policy, &known);
        let is_known = |rules: &Rules| wanted.iter().any(|chain| chain.name == rules.chain);
        let is_unusable = !is_hooked || !found.iter().all(is_known);
        let chains = wanted.into_iter().filter(|chain| !is_there(chain, &found)).collect();
        Ok(Lacking { chains, is_unusable })
    }

    /// Has these chains, with these rules and no others, and all sets that they look up.
    pub fn put_chains(
        &mut self,
        family: Family,
        chains: &[Chain],
    ) -> io::Result<Result<(), Refusal>> {
        if chains.is_empty() {
            return Ok(Ok(()));
        }
        self.commit(add_chains(Batch::of(table(family)).table(None), family, chains))
    }

    /// Has a table with chains for these numbers of endpoints, and nothing else, in the place of the
    /// one that is there; if the kernel refuses that, that one stays.
    pub fn replace(&mut self, family: Family, counts: &[Count]) -> io::Result<Result<(), Refusal>> {
        let chains = ruleset::chains(family, &self.policy, counts);
        // In one transaction, because connections of a host without any translating chain are cut.
        let batch = Batch::of(table(family)).table(None).delete_table().table(None);
        self.commit(add_chains(batch, family, &chains))
    }

    /// Deletes these connections.
    ///
    /// # Errors
    /// If the kernel refuses to delete one of them; the others are deleted.
    pub fn delete_connections(&mut self, stale: &BTreeSet<Stale>) -> Result<(), Error> {
        let mut refusals = Vec::new();
        for family in Family::ALL {
            let of_family = stale.iter().filter(|one| Family::of(one.to.ip()) == family);
            let ports: BTreeSet<u16> = of_family.map(|one| one.to.port()).collect();
            for question in questions(family, &ports) {
                let is_stale =
                    |one: &Connection| Stale::of(one).is_some_and(|it| stale.contains(&it));
                // There may be hundreds of thousands of others.
                let read = |frame: &Frame<'_>| conntrack::read(frame).filter(is_stale);
                let found = self.socket.list(&question, read)?;
                refusals
                    .extend(self.socket.execute(found.iter().map(Connection::delete).collect())?);
            }
        }
        undeleted(refusals).map_or(Ok(()), |refusal| Err(Error::Undeleted(refusal)))
    }

    /// By what the connections of UDP to these ports are answered.
    pub fn answered(
        &mut self,
        family: Family,
        ports: &BTreeSet<u16>,
    ) -> Result<BTreeSet<Stale>, Error> {
        let mut found = BTreeSet::new();
        let read = |frame: &Frame<'_>| {
            let one = conntrack::read(frame).as_ref().and_then(Stale::of);
            one.filter(|one| ports.contains(&one.to.port()))
        };
        for question in questions(family, ports) {
            found.extend(self.socket.list(&question, read)?);
        }
        Ok(found)
    }

    /// Removes both tables.
    pub fn remove(&mut self) -> Result<(), Error> {
        for family in Family::ALL {
            if table(family).read(&mut self.socket)?.is_some() {
                let removed = self.commit(Batch::of(table(family)).delete_table())?;
                let what = "to remove everything".to_owned();
                removed.map_err(|source| Error::Refused { what, family, source })?;
            }
        }
        Ok(())
    }

    /// Has all of these carried out, in as few transactions as it takes, and notes in `actual` what
    /// was. What the kernel refuses stops nothing else, but later changes of the same part.
    pub fn apply(
        &mut self,
        changes: &[Change],
        actual: &mut State,
        refused: &mut Refused,
    ) -> Result<(), Error> {
        self.apply_by(cut_by_address, changes, actual, refused)
    }

    /// The same for changes that no packet sees, however many there are.
    pub fn apply_unseen(
        &mut self,
        changes: &[Change],
        actual: &mut State,
        refused: &mut Refused,
    ) -> Result<(), Error> {
        self.apply_by(|rest| TRANSACTION.min(rest.len()), changes, actual, refused)
    }

    /// `cut`: how many of the first changes are one transaction.
    fn apply_by(
        &mut self,
        cut: impl Fn(&[Change]) -> usize,
        changes: &[Change],
        actual: &mut State,
        refused: &mut Refused,
    ) -> Result<(), Error> {
        for family in Family::ALL {
            let of_family = changes.iter().filter(|change| change.element().family() == family);
            let of_family: Vec<Change> =
                of_family.filter(|change| !refused.includes(change)).copied().collect();
            let mut rest = of_family.as_slice();
            while !rest.is_empty() {
                let (now, later) = rest.split_at_checked(cut(rest)).unwrap_or((rest, &[]));
                match self.commit(transaction(family, now))? {
                    Ok(()) => self.note(now, actual),
                    Err(_) => self.apply_apart(family, now, actual, refused)?,
                }
                rest = later;
            }
        }
        Ok(())
    }

    /// One transaction for each part, because the kernel refuses all of them together, and because all
    /// of them together may be too long.
    fn apply_apart(
        &mut self,
        family: Family,
        changes: &[Change],
        actual: &mut State,
        refused: &mut Refused,
    ) -> Result<(), Error> {
        let mut parts: BTreeMap<Part, Vec<Change>> = BTreeMap::new();
        for change in changes {
            parts.entry(Part::of(change.element())).or_default().push(*change);
        }
        for (part, changes) in parts {
            let outcome = self.commit(transaction(family, &changes))?;
            if outcome.is_ok() {
                self.note(&changes, actual);
            } else {
                refused.parts.insert(part);
            }
            refused.note(part, family, outcome);
        }
        Ok(())
    }

    /// The kernel has carried these out.
    fn note(&mut self, changes: &[Change], actual: &mut State) {
        for change in changes {
            change.apply(actual);
        }
        self.changes += u64::try_from(changes.len()).unwrap_or(u64::MAX);
    }

    fn commit(&mut self, batch: Batch) -> io::Result<Result<(), Refusal>> {
        match batch.commit(&mut self.socket) {
            Ok(refusals) => Ok(refusals.into_iter().next().map_or(Ok(()), Err)),
            // It was not sent: a part of it may be.
            Err(error) if error.raw_os_error() == Some(EMSGSIZE) => {
                let text = Some("longer than the send buffer".to_owned());
                Ok(Err(Refusal { index: 0, errno: Errno::EMSGSIZE, text }))
            }
            Err(error) => Err(error),
        }
    }
}

/// A connection that has ended meanwhile is no loss.
fn undeleted(refusals: Vec<Refusal>) -> Option<Refusal> {
    refusals.into_iter().find(|refusal| refusal.errno != Errno::ENOENT)
}

/// For the connections of UDP to these ports, and maybe others.
fn questions(family: Family, ports: &BTreeSet<u16>) -> Vec<Message> {
    let udp = Transport::Udp.number();
    if ports.len() > MOST_QUESTIONS {
        return vec![conntrack::list_protocol(family, udp)];
    }
    ports.iter().map(|port| conntrack::list(family, udp, *port)).collect()
}

fn open() -> io::Result<Socket> {
    let socket = Socket::open(Protocol::Netfilter)?;
    // What decides where connections go of one address is one transaction. Without the capability, the
    // default stays.
    let _ = setsockopt(&socket, sockopt::SndBufForce, &SEND_BUFFER);
    Ok(socket)
}

impl Refused {
    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter()
    }

    fn includes(&self, change: &Change) -> bool {
        let element = change.element();
        self.families.contains(&element.family()) || self.parts.contains(&Part::of(element))
    }

    fn note(&mut self, what: impl fmt::Display, family: Family, outcome: Result<(), Refusal>) {
        if let Err(source) = outcome {
            let what = what.to_string();
            self.first.get_or_insert(Error::Refused { what, family, source });
        }
    }

    pub fn note_chains(&mut self, family: Family, outcome: Result<(), Refusal>) {
        if outcome.is_err() {
            self.families.insert(family);
        }
        self.note("the chains", family, outcome);
    }
}

fn is_overrun(error: &io::Error) -> bool {
    error.raw_os_error() == Some(ENOBUFS)
}

impl Listener {
    /// Returns whether another program has changed a table of ours.
    async fn receive(&mut self) -> io::Result<bool> {
        let Self { monitor, own, is_touched } = self;
        let mut is_damaged = false;
        let read = |frame: &Frame<'_>| match nftables::committer(frame) {
            Some(process) => is_damaged |= mem::take(is_touched) && process != *own,
            None => *is_touched |= changes_table(frame),
        };
        monitor.receive(read).await?;
        Ok(is_damaged)
    }

    /// Reports were lost. Until all others are read, the kernel drops further ones silently.
    fn catch_up(&mut self) -> io::Result<Damage> {
        let mut damage = Damage::LostReports;
        while let Some(received) = unconstrained(self.receive()).now_or_never() {
            match received {
                Ok(true) => damage = Damage::Foreign,
                Ok(false) => {}
                Err(error) if is_overrun(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(damage)
    }
}

fn changes_table(frame: &Frame<'_>) -> bool {
    matches!(nftables::changed_table(frame), Some((TableFamily::Only(_), TABLE)))
}

const fn table(family: Family) -> Table<'static> {
    Table { family: TableFamily::Only(family), name: TABLE }
}

/// The numbers that have a chain already, in the order of their rules; last are those that no rule leads
/// to, as another program may have left them. Some are there twice.
fn order(found: &[Rules]) -> Vec<Count> {
    let mut counts = counts_of(found.iter().flat_map(|chain| chain.rules.iter().flatten()));
    counts.extend(found.iter().filter_map(|chain| ruleset::count_of(&chain.chain)));
    counts
}

fn counts_of<'a>(rules: impl Iterator<Item = &'a Rule>) -> Vec<Count> {
    let sets = rules.flat_map(|rule| &rule.conditions).filter_map(|condition| match condition {
        Condition::KeyIn(_, _, set) => Set::parse(set),
        _ => None,
    });
    let counts = sets.filter_map(|set| match set {
        Set::Count(list, count) => Some((list, count)),
        _ => None,
    });
    counts.collect()
}

fn is_there(chain: &Chain, found: &[Rules]) -> bool {
    if chain.rules.is_empty() {
        return is_empty(chain, found);
    }
    let same = |rules: &Rules| {
        let wanted = chain.rules.iter().map(Some);
        rules.hook == chain.hook && wanted.eq(rules.rules.iter().map(Option::as_ref))
    };
    found.iter().filter(|rules| rules.chain == chain.name).any(same)
}

/// A chain without rules is not listed, but a rule that leads to it is.
fn is_empty(chain: &Chain, found: &[Rules]) -> bool {
    let goes_there = |rule: &Rule| rule.verdict == Verdict::Goto(chain.name.clone());
    let mut rules = found.iter().flat_map(|rules| rules.rules.iter().flatten());
    rules.any(goes_there) && !found.iter().any(|rules| rules.chain == chain.name)
}

/// And all sets.
fn add_chains(batch: Batch, family: Family, chains: &[Chain]) -> Batch {
    let counts = counts_of(chains.iter().flat_map(|chain| &chain.rules));
    let counts = counts.into_iter().map(|(list, count)| Set::Count(list, count));
    let batch = Set::fixed().chain(counts).fold(batch, |batch, set| add_set(batch, set, family));
    chains.iter().fold(batch, add_chain)
}

fn add_set(batch: Batch, set: Set, family: Family) -> Batch {
    let name = set.to_string();
    let frontend = ruleset::frontend_key(family);
    match set {
        // The number of a key has no meaning in the type of it.
        Set::Endpoints(_) => {
            let value = ruleset::endpoint_key(family);
            batch.set(&name, &ruleset::slot_key(family, 2), Some(&value))
        }
        Set::Hairpins => batch.set(&name, &ruleset::hairpin_key(family), None),
        Set::ClusterIps => batch.address_set(&name, family),
        Set::Clients => batch.interval_set(&name, &ruleset::client_key(family)),
        Set::Count(..) | Set::Flag(_) => batch.set(&name, &frontend, None),
    }
}

/// With these rules and no others.
fn add_chain(batch: Batch, chain: &Chain) -> Batch {
    let Chain { name, hook, rules } = chain;
    let batch = batch.chain(nftables::Chain { name, hook: *hook, comment: None }).flush(name);
    // Another program may have changed what becomes of the others.
    let batch = if hook.is_some() { batch.accept_at_end(name) } else { batch };
    rules.iter().fold(batch, |batch, rule| batch.rule(name, rule, None))
}

/// How many of the first changes are one transaction: those of one address stay together.
fn cut_by_address(changes: &[Change]) -> usize {
    let of = |change: &Change| change.element().address();
    let Some(last) = changes.get(TRANSACTION - 1) else { return changes.len() };
    let behind = changes.iter().skip(TRANSACTION);
    TRANSACTION + behind.take_while(|change| of(change) == of(last)).count()
}

/// Elements of one set follow one another: they are one message. What is removed makes room first.
fn transaction(family: Family, changes: &[Change]) -> Batch {
    let mut sets: BTreeMap<(bool, Set), Vec<nftables::Element>> = BTreeMap::new();
    for change in changes {
        let key = (matches!(change, Change::Put(_)), change.element().set());
        sets.entry(key).or_default().push(codec::encode(change.element()));
    }
    sets.iter().fold(Batch::of(table(family)), |batch, ((is_put, set), elements)| {
        elements.chunks(MOST_ELEMENTS).fold(batch, |batch, elements| {
            let name = set.to_string();
            if *is_put { batch.put(&name, elements) } else { batch.remove(&name, elements) }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Element, Endpoint, Frontend, List};

    /// Services that have the same address by thousands of ports and endpoints.
    #[test]
    fn what_is_too_long_for_one_transaction_stops_nothing_else() {
        let mut kernel = Kernel::open(Policy::default()).unwrap();
        kernel
            .put_chains(Family::V4, &ruleset::chains(Family::V4, &Policy::default(), &[]))
            .unwrap()
            .unwrap();
        // The kernel grants no less.
        setsockopt(&kernel.socket, sockopt::SndBuf, &1).unwrap();
        let slots = |port, count| {
            let frontend =
                Frontend { address: [10, 96, 0, 1].into(), transport: Transport::Tcp, port };
            (0..count).map(move |index| {
                let endpoint = Endpoint { address: [10, 1, 0, 1].into(), port: 80 };
                Change::Put(Element::Slot(List::All, frontend, index, endpoint))
            })
        };
        let changes: Vec<Change> = slots(1, 20).chain(slots(2, 200)).chain(slots(3, 20)).collect();
        let (mut actual, mut refused) = (State::default(), Refused::default());
        kernel.apply(&changes, &mut actual, &mut refused).unwrap();
        assert_eq!(actual, kernel.read().unwrap());
        let programmed: Vec<u16> = actual.frontends.keys().map(|frontend| frontend.port).collect();
        assert_eq!(BTreeSet::from_iter(programmed), [1, 3].into());
        let first = refused.first.map(|error| format!("{:#}", anyhow::Error::from(error)));
        let reason = "the kernel refused TCP 10.96.0.1:2 in table ip tweed-proxy: \
                      longer than the send buffer (message too long)";
        assert_eq!(first.as_deref(), Some(reason));
    }

    /// As one that a flowtable forwards.
    #[test]
    fn a_connection_that_the_kernel_keeps_is_not_taken_for_a_deleted_one() {
        let refused = |errno| Refusal { index: 0, errno, text: None };
        let refusals = [Errno::ENOENT, Errno::EBUSY].map(refused);
        assert_eq!(undeleted(refusals[..1].to_vec()), None);
        assert_eq!(undeleted(refusals.to_vec()), Some(refused(Errno::EBUSY)));
    }
}
