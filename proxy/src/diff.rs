//! The changes that lead from what the sets hold to what they are to hold, in their order.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::mem;
use std::time::Duration;

use crate::state::{Element, Entry, Frontend, List, State};

/// A change of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    Remove(Element),
    Put(Element),
}

/// The parts of a [`State`] that may have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    pub frontends: BTreeSet<Frontend>,
    pub shared: BTreeSet<Element>,
}

/// Changes, each of these three after the one before it. A packet may be looked up in several sets
/// while they change: what it finds first must lead to something at any time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// What is not looked up yet.
    pub first: Vec<Change>,
    /// What decides where connections go. Those of one frontend belong into one transaction.
    pub then: Vec<Change>,
    /// What is not looked up any more, as soon as packets that were on their way have passed.
    pub last: Vec<Change>,
}

/// What is to be looked at, and when. Times are those since any fixed time.
#[derive(Debug, Default)]
pub struct Pending {
    changed: Changed,
    /// What is not looked up any more, and from when on it may be removed.
    unused: BTreeMap<Part, Duration>,
}

/// What changes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Frontend(Frontend),
    /// It belongs to several frontends.
    Shared(Element),
}

/// After this time, packets that were on their way have passed.
const PASSED: Duration = Duration::from_millis(100);

/// Between all of both.
pub fn diff(desired: &State, actual: &State) -> Changes {
    let Changed { frontends, shared } = Changed::between(desired, actual);
    let mut changes = Changes::default();
    for frontend in frontends {
        let (want, have) = (desired.frontends.get(&frontend), actual.frontends.get(&frontend));
        changes.add_frontend(frontend, want, have);
    }
    changes.add_shared(shared, desired, actual);
    changes
}

impl Changed {
    /// All parts that one of both has, if they may differ.
    pub fn between(desired: &State, actual: &State) -> Self {
        let frontends = desired.frontends.keys().chain(actual.frontends.keys());
        let shared = desired.shared.symmetric_difference(&actual.shared);
        Self { frontends: frontends.copied().collect(), shared: shared.copied().collect() }
    }

    pub fn add(&mut self, other: Self) {
        self.frontends.extend(other.frontends);
        self.shared.extend(other.shared);
    }
}

impl Pending {
    pub fn add(&mut self, changed: Changed) {
        self.changed.add(changed);
    }

    /// What is to be changed now, between what may differ of both. The caller carries it out.
    pub fn changes(&mut self, desired: &State, actual: &State, now: Duration) -> Changes {
        let due = self.unused.iter().filter(|(_, at)| **at <= now).map(|(part, _)| *part);
        let Changed { frontends, shared } = mem::take(&mut self.changed);
        let parts = due.chain(frontends.into_iter().map(Part::Frontend));
        let parts: BTreeSet<Part> = parts.chain(shared.into_iter().map(Part::Shared)).collect();
        let mut all = Changes::default();
        for part in parts {
            let mut changes = Changes::default();
            match part {
                Part::Frontend(frontend) => {
                    let want = desired.frontends.get(&frontend);
                    changes.add_frontend(frontend, want, actual.frontends.get(&frontend));
                }
                Part::Shared(element) => changes.add_shared([element], desired, actual),
            }
            self.hold_back(part, &mut changes, now);
            all.add(changes);
        }
        all
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
        let was_looked_up = !changes.first.is_empty() || !changes.then.is_empty();
        let at = at.filter(|_| !was_looked_up).unwrap_or(now + PASSED);
        if at > now {
            changes.last.clear();
            self.unused.insert(part, at);
        }
    }
}

impl Changes {
    pub const fn is_empty(&self) -> bool {
        self.first.is_empty() && self.then.is_empty() && self.last.is_empty()
    }

    /// In their order.
    pub fn all(&self) -> impl Iterator<Item = &Change> {
        self.first.iter().chain(&self.then).chain(&self.last)
    }

    pub fn add(&mut self, other: Self) {
        self.first.extend(other.first);
        self.then.extend(other.then);
        self.last.extend(other.last);
    }

    /// Of `elements` that belong to several frontends.
    pub fn add_shared(
        &mut self,
        elements: impl IntoIterator<Item = Element>,
        desired: &State,
        actual: &State,
    ) {
        for element in elements {
            match (desired.shared.contains(&element), actual.shared.contains(&element)) {
                (true, false) => self.first.push(Change::Put(element)),
                (false, true) => self.last.push(Change::Remove(element)),
                (true, true) | (false, false) => {}
            }
        }
    }

    pub fn add_frontend(&mut self, frontend: Frontend, want: Option<&Entry>, have: Option<&Entry>) {
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
                _ => &mut self.then,
            };
            list.push(Change::Remove(*element));
        }
        for element in wanted.difference(&found) {
            let list = match *element {
                Element::Slot(list, _, index, _) if !has_slot(have, list, index) => &mut self.first,
                // Until it is restricted, nothing is looked up there.
                Element::Client(..) => &mut self.first,
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

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put(element) => write!(f, "+ {element}"),
            Self::Remove(element) => write!(f, "- {element}"),
        }
    }
}
