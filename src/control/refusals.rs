//! What the kernel refused: each is still a difference, and comes back with a backoff of its own.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::timers::backoff;
use crate::kernel::Refused;
use crate::model::entry::{Key, LinkName};
use crate::plan::diff::Op;

#[derive(Debug, Default)]
pub(super) struct Refusals(BTreeMap<Key, Refusal>);

#[derive(Debug)]
struct Refusal {
    op: Op,
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
        let (op, words) = (refused.op.clone(), refused.to_string());
        self.0.insert(key, Refusal { op, words, times: times + 1, again });
        again
    }

    /// `key` is as wanted, or wanted no more.
    pub(super) fn forget(&mut self, key: &Key) {
        self.0.remove(key);
    }

    /// `link` has changed: what was refused on it may be tried at the next look. Not the link
    /// itself, whose refusal may be what changed it.
    pub(super) fn end_backoff_on(&mut self, link: &LinkName) {
        let on_link = self.0.iter_mut().filter(|(key, refusal)| {
            !matches!(key, Key::Link(_)) && refusal.op.entry().link() == Some(link)
        });
        on_link.for_each(end_backoff);
    }

    /// The underlay has changed, on which everything depends. What is refused again then waits as
    /// long as before.
    pub(super) fn end_all_backoff(&mut self) {
        self.0.iter_mut().for_each(end_backoff);
    }

    /// Forgets those that are no difference any more.
    pub(super) fn retain(&mut self, differs: impl Fn(&Key) -> bool) {
        self.0.retain(|key, _| differs(key));
    }

    /// Whether it is too early to try `key` again.
    pub(super) fn is_waiting(&self, key: &Key) -> bool {
        self.0.get(key).is_some_and(|refusal| refusal.again > Instant::now())
    }

    /// Whether it is too early to try `op` again; what the key is to hold may be another entry now.
    pub(super) fn holds_back(&self, op: &Op) -> bool {
        let refusal = self.0.get(&op.entry().key());
        refusal.is_some_and(|refusal| refusal.op == *op && refusal.again > Instant::now())
    }

    /// What was refused, and why.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &str)> {
        self.0.iter().map(|(key, refusal)| (key, refusal.words.as_str()))
    }
}

fn end_backoff((_, refusal): (&Key, &mut Refusal)) {
    refusal.again = Instant::now();
}
