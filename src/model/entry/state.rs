//! A set of entries, ordered by their keys.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeSet, btree_set};
use std::iter::Map;
use std::sync::Arc;

use super::{Entry, Key, Keyed, Route};

/// Entries, one per key. An entry computes its own key, so that the two cannot disagree.
///
/// Planned, desired, pending and actual states share almost all of their entries.
#[derive(Clone, Debug, Default)]
pub struct KernelState(BTreeSet<ByKey<Arc<Entry>>>);

/// Compared by its key alone: a set of entries can be searched for a key.
#[derive(Clone, Debug)]
pub struct ByKey<T: ?Sized>(T);

type IntoIter = Map<btree_set::IntoIter<ByKey<Arc<Entry>>>, fn(ByKey<Arc<Entry>>) -> Arc<Entry>>;

impl KernelState {
    pub fn get(&self, key: &Key) -> Option<&Entry> {
        self.shared(key).map(AsRef::as_ref)
    }

    /// As [`Self::get`], for callers that keep the entry.
    pub fn shared(&self, key: &Key) -> Option<&Arc<Entry>> {
        self.0.get(&ByKey(key) as &ByKey<dyn Keyed>).map(|ByKey(entry)| entry)
    }

    pub fn insert(&mut self, entry: impl Into<Arc<Entry>>) -> Option<Arc<Entry>> {
        self.0.replace(ByKey(entry.into())).map(|ByKey(entry)| entry)
    }

    pub fn remove(&mut self, key: &Key) -> Option<Arc<Entry>> {
        self.0.take(&ByKey(key) as &ByKey<dyn Keyed>).map(|ByKey(entry)| entry)
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<Entry>> {
        self.0.iter().map(|ByKey(entry)| entry)
    }

    pub fn keys(&self) -> impl Iterator<Item = Key> {
        self.entries().map(Entry::key)
    }

    pub fn entries(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.iter().map(AsRef::as_ref)
    }

    /// The entries of this node, which come first in the order.
    pub fn local(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.iter().take_while(|entry| entry.is_local())
    }

    /// The routes, which come last in the order.
    pub fn routes(&self) -> impl Iterator<Item = &Route> {
        self.entries().rev().map_while(|entry| match entry {
            Entry::Route(route) => Some(route),
            _ => None,
        })
    }

    /// The equal entry of this state if there is one, to share its memory; else `entry`.
    pub fn sharing(&self, entry: Entry) -> Arc<Entry> {
        match self.shared(&entry.key()) {
            Some(held) if **held == entry => Arc::clone(held),
            _ => Arc::new(entry),
        }
    }

    /// Changes only the entries that differ from `new`, so that long-lived memory is not moved.
    pub fn update(&mut self, mut new: Self) {
        if *self == new {
            return;
        }
        self.0.retain(|held| {
            new.0.get(held).is_some_and(|now| now.0 == held.0) && new.0.remove(held)
        });
        self.extend(new);
    }

    /// For each key in order, the entry here and the entry in `other`.
    pub fn merge_join<'a>(
        &'a self,
        other: &'a Self,
    ) -> impl Iterator<Item = (Option<&'a Arc<Entry>>, Option<&'a Arc<Entry>>)> {
        let (mut ours, mut theirs) = (self.iter().peekable(), other.iter().peekable());
        std::iter::from_fn(move || {
            let order = match (ours.peek(), theirs.peek()) {
                (Some(our), Some(their)) if Arc::ptr_eq(our, their) => Ordering::Equal,
                (Some(our), Some(their)) => our.key_ref().cmp(&their.key_ref()),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => return None,
            };
            Some((ours.next_if(|_| order.is_le()), theirs.next_if(|_| order.is_ge())))
        })
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn retain(&mut self, mut keep: impl FnMut(&Entry) -> bool) {
        self.0.retain(|ByKey(entry)| keep(entry));
    }
}

impl<'a> Borrow<ByKey<dyn Keyed + 'a>> for ByKey<Arc<Entry>> {
    fn borrow(&self) -> &ByKey<dyn Keyed + 'a> {
        self
    }
}

impl<T: Keyed + ?Sized> Ord for ByKey<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.key_ref().cmp(&other.0.key_ref())
    }
}

impl<T: Keyed + ?Sized> PartialOrd for ByKey<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Keyed + ?Sized> PartialEq for ByKey<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T: Keyed + ?Sized> Eq for ByKey<T> {}

impl PartialEq for KernelState {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for KernelState {}

/// Of several entries with one key, the last one counts.
impl<E: Into<Arc<Entry>>> FromIterator<E> for KernelState {
    fn from_iter<I: IntoIterator<Item = E>>(entries: I) -> Self {
        let mut held: Vec<_> = entries.into_iter().map(|entry| ByKey(entry.into())).collect();
        held.reverse();
        held.sort();
        held.dedup();
        Self(held.into_iter().collect())
    }
}

impl<E: Into<Arc<Entry>>> Extend<E> for KernelState {
    fn extend<I: IntoIterator<Item = E>>(&mut self, entries: I) {
        let entries: Vec<Arc<Entry>> = entries.into_iter().map(Into::into).collect();
        if entries.len() > self.len() {
            // Rebuilding the tree removes unused space in its nodes.
            *self = std::mem::take(self).into_iter().chain(entries).collect();
        } else {
            for entry in entries {
                self.insert(entry);
            }
        }
    }
}

impl IntoIterator for KernelState {
    type Item = Arc<Entry>;
    type IntoIter = IntoIter;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter().map(|ByKey(entry)| entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::entry::{LinkName, Setting, SettingKind};

    fn accept(link: &str, accept: bool) -> Entry {
        Entry::Setting(Setting {
            link: LinkName::new(link),
            kind: SettingKind::AcceptRa,
            on: accept,
        })
    }

    #[test]
    fn equal_entries_are_kept_once() {
        let desired: KernelState = [accept("a", false), accept("b", false)].into_iter().collect();
        let read = [accept("a", false), accept("b", true)];
        let actual: KernelState = read.into_iter().map(|entry| desired.sharing(entry)).collect();
        let is_one = |link| {
            let key = Key::Setting(SettingKind::AcceptRa, LinkName::new(link));
            Arc::ptr_eq(actual.shared(&key).unwrap(), desired.shared(&key).unwrap())
        };
        assert!(is_one("a") && !is_one("b"));
    }

    #[test]
    fn two_states_are_compared_key_by_key() {
        let state = |links: &[&str]| -> KernelState {
            links.iter().map(|link| accept(link, true)).collect()
        };
        let (one, other) = (state(&["a", "b", "d"]), state(&["b", "c"]));
        let links: Vec<_> = one
            .merge_join(&other)
            .map(|pair| <[_; 2]>::from(pair).map(|entry| entry?.link().map(LinkName::as_str)))
            .collect();
        let (a, b, c, d) = (Some("a"), Some("b"), Some("c"), Some("d"));
        assert_eq!(links, [[a, None], [b, b], [None, c], [d, None]]);
    }

    #[test]
    fn an_update_applies_only_what_differs() {
        let mut state: KernelState =
            [accept("a", true), accept("b", true), accept("c", true)].into_iter().collect();
        let new: KernelState =
            [accept("b", false), accept("c", true), accept("d", true)].into_iter().collect();
        state.update(new.clone());
        assert_eq!(state, new);
    }
}
