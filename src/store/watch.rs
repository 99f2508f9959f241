//! Turns a store's interrupted history into a stream of updates that never ends.

use std::future::{Future, ready};
use std::time::Duration;

use futures::stream::{self, BoxStream, Stream, StreamExt};
use tokio::time::{Instant, sleep, timeout_at};

use crate::model::lease::{LeaseUpdate, Record};
use crate::store::backoff::Backoff;

/// A store's history of leases, as far as its connection lasts.
pub trait Source: Send + 'static {
    /// All records there are; `follow` goes on from here.
    fn list(&mut self) -> impl Future<Output = Result<Vec<Record>, Interrupted>> + Send;

    /// The next changes, at least one. Reconnects at the place where it was interrupted.
    fn follow(&mut self) -> impl Future<Output = Result<Vec<LeaseUpdate>, Interrupted>> + Send;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupted {
    /// The store is away: what comes next is not lost.
    Away,
    /// The store no longer has, or never had, what comes next.
    Gap,
    /// What comes next is there, but the store may have been restored from a backup: changes that
    /// we know of, or have missed, may never have been.
    Doubt,
}

/// Starts with a snapshot, and with another one after each gap.
pub fn updates(source: impl Source) -> BoxStream<'static, LeaseUpdate> {
    let backoff = Backoff::up_to(LONGEST_PAUSE);
    let start = Follower { source, next: Next::List, list_at: Instant::now(), backoff };
    let steps = stream::unfold(start, |mut follower| async {
        let updates = follower.step().await;
        Some((stream::iter(updates), follower))
    });
    steps.flatten().boxed()
}

/// `values` without those that repeat the one before.
pub(in crate::store) fn distinct<T>(
    values: impl Stream<Item = T> + Send + 'static,
) -> BoxStream<'static, T>
where
    T: Clone + PartialEq + Send + 'static,
{
    let mut last = None;
    let is_new = move |value: &T| ready(last.replace(value.clone()).as_ref() != Some(value));
    values.filter(is_new).boxed()
}

struct Follower<S> {
    source: S,
    next: Next,
    /// When all is read again although nothing is known to be missed.
    list_at: Instant,
    backoff: Backoff,
}

enum Next {
    List,
    /// With so many records at the last listing.
    Follow(usize),
}

/// All is read again this often, at a random moment: whatever a watch has missed is put right then.
const BETWEEN_LISTINGS: Duration = Duration::from_secs(24 * 60 * 60);

/// The shortest time between a doubt and the listing that settles it: the watch goes on meanwhile.
const DOUBT: Duration = Duration::from_secs(10);

/// To reopen a watch costs a store little, and nothing while it is away.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What one record adds to the time over which all nodes spread a new listing: a store that had to
/// forget its history is busy enough without thousands of them at once.
const SPREAD_PER_RECORD: Duration = Duration::from_millis(2);

impl<S: Source> Follower<S> {
    async fn step(&mut self) -> Vec<LeaseUpdate> {
        loop {
            let step = match self.next {
                Next::List => self.list().await,
                Next::Follow(_) => self.follow().await,
            };
            match step {
                Ok(updates) => {
                    self.backoff.reset();
                    return updates;
                }
                Err(Interrupted::Away) => sleep(self.backoff.delay(rand::random())).await,
                Err(Interrupted::Gap) => {
                    sleep(self.backoff.delay(rand::random()) + self.spread()).await;
                    self.next = Next::List;
                }
                Err(Interrupted::Doubt) => {
                    self.list_at = self.list_at.min(Instant::now() + DOUBT + self.spread());
                }
            }
        }
    }

    async fn list(&mut self) -> Result<Vec<LeaseUpdate>, Interrupted> {
        let records = self.source.list().await?;
        self.next = Next::Follow(records.len());
        let pause = BETWEEN_LISTINGS.mul_f64(rand::random_range(0.5..1.0));
        self.list_at = Instant::now() + pause;
        Ok(vec![LeaseUpdate::Snapshot(records)])
    }

    /// What an interrupted `follow` had heard is in the listing, too.
    async fn follow(&mut self) -> Result<Vec<LeaseUpdate>, Interrupted> {
        if let Ok(followed) = timeout_at(self.list_at, self.source.follow()).await {
            return followed;
        }
        self.next = Next::List;
        self.list().await
    }

    /// How long this node leaves the store to the others before it lists all records.
    fn spread(&self) -> Duration {
        let records = match self.next {
            Next::List => 0,
            Next::Follow(records) => u32::try_from(records).unwrap_or(u32::MAX),
        };
        let spread = SPREAD_PER_RECORD.saturating_mul(records).min(Backoff::LONGEST);
        spread.mul_f64(rand::random())
    }
}

#[cfg(test)]
mod tests;
