//! The changes that lead from what the sets hold to what they are to hold, in their order.

use std::collections::BTreeSet;
use std::fmt;

use crate::state::{Element, Entry, Frontend, List, State};

/// A change of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    Remove(Element),
    Put(Element),
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

/// Between all of both.
pub fn diff(desired: &State, actual: &State) -> Changes {
    let frontends = desired.frontends.keys().chain(actual.frontends.keys());
    let frontends: BTreeSet<&Frontend> = frontends.collect();
    let mut changes = Changes::default();
    for frontend in frontends {
        let (want, have) = (desired.frontends.get(frontend), actual.frontends.get(frontend));
        changes.add_frontend(*frontend, want, have);
    }
    let shared = desired.shared.symmetric_difference(&actual.shared);
    changes.add_shared(shared.copied(), desired, actual);
    changes
}

impl Changes {
    pub const fn is_empty(&self) -> bool {
        self.first.is_empty() && self.then.is_empty() && self.last.is_empty()
    }

    /// In their order.
    pub fn all(&self) -> impl Iterator<Item = &Change> {
        self.first.iter().chain(&self.then).chain(&self.last)
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
