//! All entries: one ordered map.

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
}
