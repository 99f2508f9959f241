//! The table in the kernel: read, and changed in transactions.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::{io, mem};

use nix::libc::ENOBUFS;
use tweed_netlink::conntrack;
use tweed_netlink::nftables::{
    self, Batch, Condition, ListedElement, MOST_ELEMENTS, Rule, Rules, Table, TableFamily, Verdict,
};
use tweed_netlink::{Family, Frame, Monitor, Protocol, Refusal, Socket};

use crate::codec;
use crate::conntrack::Stale;
use crate::diff::Change;
use crate::ruleset::{self, Chain, Count, Policy, TABLE};
use crate::state::{Set, State, Transport};

/// Both tables of this network namespace, one per family.
pub struct Kernel {
    socket: Socket,
    policy: Policy,
    listener: Option<Listener>,
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
    #[error("the kernel refused a change of table {} {TABLE}", .family.keyword())]
    Refused { family: Family, source: Refusal },
}

/// Changes in one transaction. One with all elements takes ten times as long as many: a set grows
/// between transactions, and not within them.
const TRANSACTION: usize = 1000;

/// Room for what the kernel reports of our own changes until they are complete, in bytes. Without it,
/// a large load would end with a needless reading.
const BACKLOG: usize = 32 << 20;

impl Kernel {
    pub fn open(policy: Policy) -> Result<Self, Error> {
        let socket = Socket::open(Protocol::Netfilter)?;
        Ok(Self { socket, policy, listener: None })
    }

    /// From now on, [`Self::damaged`] reports changes by other programs. Must be called within a tokio
    /// runtime.
    pub fn listen(&mut self) -> Result<(), Error> {
        let own = nftables::own_number(&mut self.socket)?;
        let monitor = Monitor::of_tables(BACKLOG)?;
        self.listener = Some(Listener { monitor, own, is_touched: false });
        Ok(())
    }

    /// Waits until another program has changed a table of ours. Cancel safe.
    pub async fn damaged(&mut self) -> Result<(), Error> {
        let Some(listener) = &mut self.listener else { return pending().await };
        loop {
            match listener.receive().await {
                Ok(false) => {}
                Ok(true) => return Ok(()),
                // Some reports are lost.
                Err(error) if error.raw_os_error() == Some(ENOBUFS) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// What the sets hold.
    pub fn read(&mut self) -> Result<State, Error> {
        let mut elements = Vec::new();
        for family in Family::ALL {
            for set in
                table(family).sets(&mut self.socket)?.iter().filter_map(|name| Set::parse(name))
            {
                let read = |element: ListedElement<'_>| codec::decode(set, family, element);
                elements.extend(table(family).elements(
                    &mut self.socket,
                    &set.to_string(),
                    read,
                )?);
            }
        }
        Ok(State::of(elements))
    }

    /// The chains that are missing or have other rules. `counts`: the numbers of endpoints that need
    /// one, the most frequent first; those that are there stay.
    pub fn missing_chains(
        &mut self,
        family: Family,
        counts: &[Count],
    ) -> Result<Vec<Chain>, Error> {
        let contents = table(family).read(&mut self.socket)?;
        let found = contents.map(|contents| contents.chains).unwrap_or_default();
        let mut known = order(&found);
        let missing = counts.iter().filter(|count| !known.contains(count)).copied();
        let missing: Vec<Count> = missing.collect();
        known.extend(missing);
        let wanted = ruleset::chains(family, &self.policy, &known).into_iter();
        Ok(wanted.filter(|chain| !is_there(chain, &found)).collect())
    }

    /// Has these chains, with these rules and no others, and all sets that they look up.
    pub fn put_chains(&mut self, family: Family, chains: &[Chain]) -> Result<(), Error> {
        if chains.is_empty() {
            return Ok(());
        }
        let counts = counts_of(chains.iter().flat_map(|chain| &chain.rules));
        let counts = counts.into_iter().map(|(list, count)| Set::Count(list, count));
        let batch = Batch::of(table(family)).table(None);
        let batch =
            Set::fixed().chain(counts).fold(batch, |batch, set| add_set(batch, set, family));
        self.commit(family, chains.iter().fold(batch, add_chain))
    }

    /// Deletes these connections.
    pub fn forget(&mut self, stale: &[Stale]) -> Result<(), Error> {
        let ports = stale.iter().map(|one| (Family::of(one.to.ip()), one.to.port()));
        for (family, port) in ports.collect::<BTreeSet<_>>() {
            let question = conntrack::list(family, Transport::Udp.number(), port);
            let all = self.socket.list(&question, conntrack::read)?.into_iter();
            let found = all.filter(|connection| stale.iter().any(|one| one.includes(connection)));
            // One that has ended meanwhile is no loss.
            self.socket.execute(found.map(|connection| connection.delete()).collect())?;
        }
        Ok(())
    }

    /// Removes both tables.
    pub fn remove(&mut self) -> Result<(), Error> {
        for family in Family::ALL {
            if table(family).read(&mut self.socket)?.is_some() {
                self.commit(family, Batch::of(table(family)).delete_table())?;
            }
        }
        Ok(())
    }

    /// Has all of these carried out, in as few transactions as it takes.
    pub fn apply(&mut self, changes: &[Change]) -> Result<(), Error> {
        for family in Family::ALL {
            let of_family = changes.iter().filter(|change| change.element().family() == family);
            let of_family: Vec<Change> = of_family.copied().collect();
            let mut rest = of_family.as_slice();
            while !rest.is_empty() {
                let (now, later) = rest.split_at_checked(cut(rest)).unwrap_or((rest, &[]));
                self.commit(family, transaction(family, now))?;
                rest = later;
            }
        }
        Ok(())
    }

    fn commit(&mut self, family: Family, batch: Batch) -> Result<(), Error> {
        match batch.commit(&mut self.socket)?.into_iter().next() {
            None => Ok(()),
            Some(source) => Err(Error::Refused { family, source }),
        }
    }
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
}

fn changes_table(frame: &Frame<'_>) -> bool {
    matches!(nftables::changed_table(frame), Some((TableFamily::Only(_), TABLE)))
}

const fn table(family: Family) -> Table<'static> {
    Table { family: TableFamily::Only(family), name: TABLE }
}

/// The numbers that have a chain already, in the order of their rules.
fn order(found: &[Rules]) -> Vec<Count> {
    counts_of(found.iter().flat_map(|chain| chain.rules.iter().flatten()))
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
    rules.iter().fold(batch, |batch, rule| batch.rule(name, rule, None))
}

/// How many of the first changes are one transaction: those of one frontend stay together.
fn cut(changes: &[Change]) -> usize {
    let of = |change: &Change| change.element().frontend();
    let Some(last) = changes.get(TRANSACTION - 1) else { return changes.len() };
    let behind = changes.iter().skip(TRANSACTION);
    TRANSACTION + behind.take_while(|change| of(change).is_some() && of(change) == of(last)).count()
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
