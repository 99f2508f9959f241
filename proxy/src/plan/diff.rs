//! The changes that lead from what the sets hold to what they are to hold, in their order.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use crate::state::{Element, Entry, Flag, Frontend, List, State};

/// A change of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    Remove(Element),
    Put(Element),
}

/// Changes, each of these four after the one before it. A packet may be looked up in several sets
/// while they change: what it finds first must lead to something at any time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// What is not looked up yet.
    pub first: Vec<Change>,
    /// What decides where connections go. Those of one address belong into one transaction.
    pub then: Vec<Change>,
    /// What is as right as what has just replaced it: look-ups of one packet may be on both sides of a
    /// transaction.
    pub after: Vec<Change>,
    /// What is not looked up any more, as soon as packets that were on their way have passed.
    pub last: Vec<Change>,
}

/// What is to be looked at, and when. Times are those since any fixed time.
#[derive(Debug)]
pub struct Pending {
    at_once: usize,
    /// What is not looked up any more once the changes are carried out.
    freed: Vec<Part>,
    changed: BTreeSet<Part>,
    /// What is not looked up any more, and from when on it may be removed.
    unused: BTreeMap<Part, Duration>,
}

/// A part of a [`State`] that changes together. First in their order are hairpins, which frontends need;
/// then frontends by address, each cluster IP behind those that have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It belongs to several frontends.
    Shared(Element),
    Frontend(Frontend),
}

/// After this time, packets that were on their way have passed.
pub const PASSED: Duration = Duration::from_millis(100);

/// Between all of both.
pub fn diff(desired: &State, actual: &State) -> Changes {
    changes(parts(desired, actual), desired, actual)
}

/// Between these parts of both.
pub fn changes(parts: impl IntoIterator<Item = Part>, desired: &State, actual: &State) -> Changes {
    let mut changes = Changes::default();
    parts.into_iter().for_each(|part| changes.add_part(part, desired, actual));
    changes
}

/// Those that one of both has, if they may differ.
pub fn parts(desired: &State, actual: &State) -> BTreeSet<Part> {
    let frontends = desired.frontends.keys().chain(actual.frontends.keys());
    let shared = desired.shared.symmetric_difference(&actual.shared);
    let frontends = frontends.copied().map(Part::Frontend);
    frontends.chain(shared.copied().map(Part::Shared)).collect()
}

impl Pending {
    /// `at_once`: the number of parts that [`Self::next`] looks at. All at once, of 30,000 services,
    /// would need as much memory as what is known of them.
    pub const fn new(at_once: usize) -> Self {
        Self { at_once, freed: Vec::new(), changed: BTreeSet::new(), unused: BTreeMap::new() }
    }

    pub fn add(&mut self, changed: BTreeSet<Part>) {
        self.changed.extend(changed);
    }

    /// Takes what may be removed by now as changed, too.
    pub fn add_due(&mut self, now: Duration) {
        let due = self.unused.iter().filter(|(_, at)| **at <= now).map(|(part, _)| *part);
        self.changed.extend(due);
    }

    /// What is to be changed next, between what may differ of both; none if that was all. The caller
    /// carries it out, but for `last`, and at the end calls [`Self::mark_applied`].
    pub fn next(&mut self, desired: &State, actual: &State, now: Duration) -> Option<Changes> {
        let parts = self.take();
        (!parts.is_empty()).then(|| {
            let mut all = Changes::default();
            for part in parts {
                let mut changes = changes([part], desired, actual);
                self.hold_back(part, &mut changes, now);
                all.add(changes);
            }
            all
        })
    }

    /// All changes were carried out by now.
    pub fn mark_applied(&mut self, now: Duration) {
        self.unused.extend(self.freed.drain(..).map(|part| (part, now + PASSED)));
    }

    /// The next parts: those of one address are not taken apart.
    fn take(&mut self) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        while let Some(part) = self.changed.first() {
            let is_apart = parts.last().is_some_and(|last| last.address() != part.address());
            if parts.len() >= self.at_once && is_apart {
                break;
            }
            parts.extend(self.changed.pop_first());
        }
        parts
    }

    /// Nothing of these parts is due by itself.
    pub fn leave<'a>(&mut self, parts: impl IntoIterator<Item = &'a Part>) {
        for part in parts {
            self.unused.remove(part);
        }
    }

    /// When there is something to be changed, even if nothing happens.
    pub fn due(&self) -> Option<Duration> {
        self.unused.values().min().copied()
    }

    /// Takes out of `changes` what packets on their way may still look up.
    fn hold_back(&mut self, part: Part, changes: &mut Changes, now: Duration) {
        let at = self.unused.remove(&part);
        if changes.last.is_empty() {
            return;
        }
        let Changes { first, then, after, .. } = &changes;
        let was_looked_up = !first.is_empty() || !then.is_empty() || !after.is_empty();
        let at = at.filter(|_| !was_looked_up);
        if at.is_some_and(|at| at <= now) {
            return;
        }
        changes.last.clear();
        match at {
            Some(at) => drop(self.unused.insert(part, at)),
            None => self.freed.push(part),
        }
    }
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        self.all().next().is_none()
    }

    /// In their order.
    pub fn all(&self) -> impl Iterator<Item = &Change> {
        self.first.iter().chain(&self.then).chain(&self.after).chain(&self.last)
    }

    pub fn add(&mut self, other: Self) {
        self.first.extend(other.first);
        self.then.extend(other.then);
        self.after.extend(other.after);
        self.last.extend(other.last);
    }

    fn add_part(&mut self, part: Part, desired: &State, actual: &State) {
        let frontend = match part {
            Part::Shared(element) => {
                let (is_wanted, is_there) =
                    (desired.shared.contains(&element), actual.shared.contains(&element));
                return self.add_shared(element, is_wanted, is_there);
            }
            Part::Frontend(frontend) => frontend,
        };
        let [want, have] = [desired, actual].map(|state| state.entry(&frontend));
        self.add_frontend(frontend, want, have);
    }

    fn add_shared(&mut self, element: Element, is_wanted: bool, is_there: bool) {
        match (is_wanted, is_there) {
            // Its other ports are refused: not before its frontends are there.
            (true, false) if matches!(element, Element::ClusterIp(_)) => {
                self.then.push(Change::Put(element));
            }
            (true, false) => self.first.push(Change::Put(element)),
            (false, true) => self.last.push(Change::Remove(element)),
            (true, true) | (false, false) => {}
        }
    }

    fn add_frontend(&mut self, frontend: Frontend, want: Option<&Entry>, have: Option<&Entry>) {
        let nothing = Entry::default();
        let (want, have) = (want.unwrap_or(&nothing), have.unwrap_or(&nothing));
        if want == have {
            return;
        }
        let wanted: BTreeSet<Element> = want.elements(frontend).collect();
        let found: BTreeSet<Element> = have.elements(frontend).collect();
        for element in found.difference(&wanted) {
            let list = match *element {
                // A map has one value for a key: this one makes room for another.
                Element::Slot(list, _, index, _) if has_slot(want, list, index) => &mut self.then,
                Element::Slot(..) => &mut self.last,
                Element::Count(list, ..) if !want.looks_up(list) => &mut self.last,
                Element::Count(list, ..) if !want.list(list).counts.is_empty() => &mut self.after,
                _ => &mut self.then,
            };
            list.push(Change::Remove(*element));
        }
        for element in wanted.difference(&found) {
            let list = match *element {
                Element::Slot(list, _, index, _) if !has_slot(have, list, index) => &mut self.first,
                // Until it is restricted, nothing is looked up there. Later, one network may have to
                // make room for another in the same transaction: they do not overlap.
                Element::Client(..) if have.clients.is_empty() => &mut self.first,
                // What is admitted before it is restricted may be translated behind it.
                Element::Flag(Flag::Restricted, _) if !have.flags.contains(&Flag::Served) => {
                    &mut self.first
                }
                _ => &mut self.then,
            };
            list.push(Change::Put(*element));
        }
    }
}

fn has_slot(entry: &Entry, list: List, index: u32) -> bool {
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    entry.list(list).slots.get(index).is_some_and(Option::is_some)
}

impl Part {
    pub const fn of(element: &Element) -> Self {
        match element.frontend() {
            Some(frontend) => Self::Frontend(frontend),
            None => Self::Shared(*element),
        }
    }

    const fn address(&self) -> IpAddr {
        match self {
            Self::Frontend(frontend) => frontend.address,
            Self::Shared(element) => element.address(),
        }
    }
}

impl Ord for Part {
    fn cmp(&self, other: &Self) -> Ordering {
        let place = |part: &Self| match *part {
            Self::Shared(Element::Hairpin(..)) => (0, part.address(), 0),
            Self::Frontend(_) => (1, part.address(), 0),
            Self::Shared(_) => (1, part.address(), 1),
        };
        let part = |part: &Self| match *part {
            Self::Shared(element) => (Some(element), None),
            Self::Frontend(frontend) => (None, Some(frontend)),
        };
        place(self).cmp(&place(other)).then_with(|| part(self).cmp(&part(other)))
    }
}

impl PartialOrd for Part {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Change {
    /// Carries it out in a copy of what the sets hold.
    pub fn apply(&self, state: &mut State) {
        match self {
            Self::Put(element) => state.put(*element),
            Self::Remove(element) => state.remove(*element),
        }
    }

    pub const fn element(&self) -> &Element {
        match self {
            Self::Put(element) | Self::Remove(element) => element,
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frontend(frontend) => frontend.fmt(f),
            Self::Shared(element) => element.fmt(f),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put(element) => write!(f, "+ {element}"),
            Self::Remove(element) => write!(f, "- {element}"),
        }
    }
}
