//! Turns a store's interrupted history into a stream of updates that never ends.

use std::future::Future;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use tokio::time::sleep;

use crate::backoff::Backoff;
use crate::lease::{LeaseUpdate, Record};

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
}

/// Starts with a snapshot, and with another one after each gap.
pub fn updates(source: impl Source) -> BoxStream<'static, LeaseUpdate> {
    let backoff = Backoff::up_to(LONGEST_PAUSE);
    let start = Follower { source, next: Next::List, backoff };
    let steps = stream::unfold(start, |mut follower| async {
        let updates = follower.step().await;
        Some((stream::iter(updates), follower))
    });
    steps.flatten().boxed()
}

struct Follower<S> {
    source: S,
    next: Next,
    backoff: Backoff,
}

enum Next {
    List,
    /// With so many records at the last listing.
    Follow(usize),
}

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
                Next::Follow(_) => self.source.follow().await,
            };
            match step {
                Ok(updates) => {
                    self.backoff.reset();
                    return updates;
                }
                Err(Interrupted::Away) => sleep(self.backoff.delay(rand::random())).await,
                Err(Interrupted::Gap) => self.spread().await,
            }
        }
    }

    async fn list(&mut self) -> Result<Vec<LeaseUpdate>, Interrupted> {
        let records = self.source.list().await?;
        self.next = Next::Follow(records.len());
        Ok(vec![LeaseUpdate::Snapshot(records)])
    }

    async fn spread(&mut self) {
        let records = match self.next {
            Next::List => 0,
            Next::Follow(records) => u32::try_from(records).unwrap_or(u32::MAX),
        };
        let spread = SPREAD_PER_RECORD.saturating_mul(records).min(Backoff::LONGEST);
        let pause = self.backoff.delay(rand::random());
        sleep(pause + spread.mul_f64(rand::random())).await;
        self.next = Next::List;
    }
}

#[cfg(test)]
mod tests;
