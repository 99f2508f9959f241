//! What the kernel refused: each is still a difference, and comes back with a backoff of its own.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::agenda::backoff;
use crate::kernel::Refused;
use crate::kernel::state::Key;

#[derive(Debug, Default)]
pub(super) struct Refusals(BTreeMap<Key, Refusal>);

#[derive(Debug)]
struct Refusal {
    words: String,
    /// In a row.
    times: u32,
    again: Instant,
}

impl Refusals {
    /// Takes a refusal in; returns when to try again.
    pub(super) fn note(&mut self, refused: &Refused) -> Instant {
        let key = refused.op.entry().key();
        let times = self.0.get(&key).map_or(0, |refusal| refusal.times);
        let again = Instant::now() + backoff(times);
        self.0.insert(key, Refusal { words: refused.to_string(), times: times + 1, again });
        again
    }

    /// `key` is as wanted, or wanted no more.
    pub(super) fn forget(&mut self, key: &Key) {
        self.0.remove(key);
    }

    /// Forgets those that are no difference any more.
    pub(super) fn retain(&mut self, differs: impl Fn(&Key) -> bool) {
        self.0.retain(|key, _| differs(key));
    }

    /// Whether it is too early to try `key` again.
    pub(super) fn is_waiting(&self, key: &Key) -> bool {
        self.0.get(key).is_some_and(|refusal| refusal.again > Instant::now())
    }

    /// What was refused, and why.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &str)> {
        self.0.iter().map(|(key, refusal)| (key, refusal.words.as_str()))
    }
}
