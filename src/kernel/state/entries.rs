//! All entries: one ordered map.

use std::cmp::Ordering;
use std::collections::{BTreeMap, btree_map};
use std::sync::Arc;

use super::{Entry, Key};

/// Entries by key. The keys are computed, so that none can disagree with its entry.
///
/// What is planned, desired, under way and there is the same entry for almost all of them: they
/// share it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelState(BTreeMap<Key, Arc<Entry>>);

impl KernelState {
    pub fn get(&self, key: &Key) -> Option<&Entry> {
        self.0.get(key).map(AsRef::as_ref)
    }

    /// As [`Self::get`], for those who keep it.
    pub fn shared(&self, key: &Key) -> Option<&Arc<Entry>> {
        self.0.get(key)
    }

    /// Puts `entry` in the place of the one with its key.
    pub fn insert(&mut self, entry: impl Into<Arc<Entry>>) -> Option<Arc<Entry>> {
        let entry = entry.into();
        self.0.insert(entry.key(), entry)
    }

    pub fn remove(&mut self, key: &Key) -> Option<Arc<Entry>> {
        self.0.remove(key)
    }

    pub fn iter(&self) -> btree_map::Iter<'_, Key, Arc<Entry>> {
        self.0.iter()
    }

    pub fn keys(&self) -> btree_map::Keys<'_, Key, Arc<Entry>> {
        self.0.keys()
    }

    pub fn entries(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.0.values().map(AsRef::as_ref)
    }

    /// `entry`, as it is held here already if it is.
    pub fn sharing(&self, entry: Entry) -> Arc<Entry> {
        let same = self.shared(&entry.key()).filter(|same| ***same == entry);
        same.map_or_else(|| Arc::new(entry), Arc::clone)
    }

    /// Becomes `new` by what is different in it: memory that lives long stays where it is.
    pub fn update(&mut self, mut new: Self) {
        if *self == new {
            return;
        }
        self.0.retain(|key, entry| {
            new.0.remove(key).is_some_and(|new| {
                *entry = new;
                true
            })
        });
        self.extend(new);
    }

    /// The entries of each key, here and in `other`, in the order of keys.
    pub fn beside<'a>(
        &'a self,
        other: &'a Self,
    ) -> impl Iterator<Item = (Option<&'a Arc<Entry>>, Option<&'a Arc<Entry>>)> {
        let (mut ours, mut theirs) = (self.0.iter().peekable(), other.0.iter().peekable());
        std::iter::from_fn(move || {
            let order = match (ours.peek(), theirs.peek()) {
                (Some((our, _)), Some((their, _))) => our.cmp(their),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => return None,
            };
            let our = ours.next_if(|_| order.is_le()).map(|(_, entry)| entry);
            let their = theirs.next_if(|_| order.is_ge()).map(|(_, entry)| entry);
            Some((our, their))
        })
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn retain(&mut self, mut keep: impl FnMut(&Entry) -> bool) {
        self.0.retain(|_, entry| keep(entry));
    }
}

impl<E: Into<Arc<Entry>>> FromIterator<E> for KernelState {
    fn from_iter<I: IntoIterator<Item = E>>(entries: I) -> Self {
        let entries = entries.into_iter().map(Into::into);
        Self(entries.map(|entry: Arc<Entry>| (entry.key(), entry)).collect())
    }
}

impl<E: Into<Arc<Entry>>> Extend<E> for KernelState {
    fn extend<I: IntoIterator<Item = E>>(&mut self, entries: I) {
        let entries: Vec<Arc<Entry>> = entries.into_iter().map(Into::into).collect();
        if entries.len() > self.len() {
            // Built anew, the map leaves no room between the entries.
            *self = std::mem::take(self).into_iter().chain(entries).collect();
        } else {
            self.0.extend(entries.into_iter().map(|entry| (entry.key(), entry)));
        }
    }
}

impl<'a> IntoIterator for &'a KernelState {
    type Item = (&'a Key, &'a Arc<Entry>);
    type IntoIter = btree_map::Iter<'a, Key, Arc<Entry>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl IntoIterator for KernelState {
    type Item = Arc<Entry>;
    type IntoIter = btree_map::IntoValues<Key, Arc<Entry>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::state::{AcceptRa, LinkName};

    fn accept(link: &str, accept: bool) -> Entry {
        Entry::AcceptRa(AcceptRa { link: LinkName::new(link), accept })
    }

    #[test]
    fn what_is_as_desired_is_kept_once() {
        let desired: KernelState = [accept("a", false), accept("b", false)].into_iter().collect();
        let read = [accept("a", false), accept("b", true)];
        let actual: KernelState = read.into_iter().map(|entry| desired.sharing(entry)).collect();
        let is_one = |link| {
            let key = Key::AcceptRa(LinkName::new(link));
            Arc::ptr_eq(actual.shared(&key).unwrap(), desired.shared(&key).unwrap())
        };
        assert!(is_one("a") && !is_one("b"));
    }

    #[test]
    fn two_states_lie_beside_each_other_key_by_key() {
        let state = |links: &[&str]| -> KernelState {
            links.iter().map(|link| accept(link, true)).collect()
        };
        let (one, other) = (state(&["a", "b", "d"]), state(&["b", "c"]));
        let links: Vec<_> = one
            .beside(&other)
            .map(|pair| <[_; 2]>::from(pair).map(|entry| entry?.link().map(LinkName::as_str)))
            .collect();
        let (a, b, c, d) = (Some("a"), Some("b"), Some("c"), Some("d"));
        assert_eq!(links, [[a, None], [b, b], [None, c], [d, None]]);
    }

    #[test]
    fn an_update_takes_over_all_that_is_new_and_nothing_else() {
        let mut state: KernelState =
            [accept("a", true), accept("b", true), accept("c", true)].into_iter().collect();
        let new: KernelState =
            [accept("b", false), accept("c", true), accept("d", true)].into_iter().collect();
        state.update(new.clone());
        assert_eq!(state, new);
    }
}
