//! Reads all leases, but waits while thousands of nodes register or read them too.

use std::time::Duration;

use tokio::time::Instant;
use tweed_client::backoff::Backoff;
use tweed_client::failover::retry;

use super::snapshot::{Look, Proof};
use crate::store::etcd::pace::BRISK;
use crate::store::etcd::store::{Listing, Store};

/// The number of polls of a busy etcd before all leases are read anyway.
const LOOKS: u32 = 8;

/// The number of polls for which a node leaves the read to nodes that registered later.
const LOOKS_FOR_OTHERS: usize = 3;

/// This number of answers, with latencies that differ by less than `JITTER`, show a distant server.
const ALIKE: usize = LOOKS_FOR_OTHERS + 1;
const JITTER: Duration = Duration::from_millis(50);

/// A node with at most this number of writes after its own is among the last to register.
const FEW: i64 = 10;

/// The changes in etcd while a node waits.
struct Queue {
    /// The revision at which it began to wait; unknown before the first poll if it has not written.
    began: Option<i64>,
    seen: i64,
    /// The times that etcd took to answer each poll.
    took: Vec<Duration>,
}

impl Store {
    /// Reads all leases; retries until etcd answers.
    pub(in crate::store::etcd) async fn list(&self) -> Listing {
        retry(Backoff::LONGEST, || async {
            if self.client.is_busy().await {
                return Some(self.list_queued(None).await);
            }
            self.read_all().await.ok()
        })
        .await
    }

    /// Waits before it reads all leases: if thousands of nodes read them at once, no answer would
    /// arrive in time. With a `proof`, another node's snapshot is accepted instead.
    pub(in crate::store::etcd) async fn list_queued(&self, proof: Option<Proof<'_>>) -> Listing {
        retry(Backoff::LONGEST, || async move {
            let look = self.wait_for_snapshot(proof).await;
            if let Some(listing) = look.snapshot {
                return Some(listing);
            }
            let listing = self.read_all().await.ok()?;
            self.share(&listing, look.revision).await;
            Some(listing)
        })
        .await
    }

    /// Polls until there is a snapshot, or etcd answers quickly and this node should read all
    /// leases.
    async fn wait_for_snapshot(&self, proof: Option<Proof<'_>>) -> Look {
        let mut queue = Queue::begin(proof.map(|proof| proof.own.mod_revision));
        let mut last = Look::default();
        for _ in 0..LOOKS {
            self.client.wait_among(queue.waiting()).await;
            let asked = Instant::now();
            let Ok(look) = self.look(proof).await else { continue };
            let is_over = queue.note_answer(look.revision, asked.elapsed());
            last = look;
            if is_over || last.snapshot.is_some() {
                break;
            }
        }
        last
    }
}

impl Queue {
    const fn begin(began: Option<i64>) -> Self {
        Self { began, seen: 0, took: Vec::new() }
    }

    /// The number of known writes since this node began to wait.
    fn waiting(&self) -> u32 {
        let written = self.began.map_or(0, |began| self.seen.saturating_sub(began));
        u32::try_from(written.max(0)).unwrap_or(u32::MAX)
    }

    /// Notes that etcd is at `revision` and `took` this long to answer; returns whether this node should
    /// read all leases. The last node to register reads; earlier ones use its snapshot.
    fn note_answer(&mut self, revision: i64, took: Duration) -> bool {
        let looks = self.took.len();
        let is_first = looks == 0;
        let before = if is_first { self.began } else { Some(self.seen) };
        let few_writes = before.is_some_and(|before| revision.saturating_sub(before) <= FEW);
        self.took.push(took);
        let no_node_reads = looks >= LOOKS_FOR_OTHERS && self.is_idle(took);
        self.seen = revision;
        self.began = self.began.or(Some(revision));
        few_writes && (is_first || no_node_reads)
    }

    /// A distant server always takes long, and a busy one seldom equally long.
    fn is_idle(&self, took: Duration) -> bool {
        let mut last = self.took.iter().rev().take(ALIKE);
        took < BRISK || last.all(|it| it.abs_diff(took) < JITTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a node that wrote at revision 100 reads, after each poll of etcd's revision.
    fn reads(revisions: &[i64], took: Duration) -> Vec<bool> {
        let mut queue = Queue::begin(Some(100));
        revisions.iter().map(|revision| queue.note_answer(*revision, took)).collect()
    }

    const QUICK: Duration = Duration::from_millis(10);

    #[test]
    fn the_last_to_register_reads_at_once() {
        assert_eq!(reads(&[100], QUICK), [true]);
        assert_eq!(reads(&[100 + FEW], BRISK), [true]);
    }

    #[test]
    fn an_earlier_node_leaves_the_read_to_the_last() {
        assert_eq!(reads(&[4000, 4900, 4900], QUICK), [false; 3]);
    }

    #[test]
    fn if_no_other_node_reads_this_one_does() {
        assert_eq!(reads(&[4000, 4900, 4900, 4900], QUICK), [false, false, false, true]);
        assert_eq!(reads(&[1000, 2000, 3000, 4000, 4001], QUICK)[3..], [false, true]);
    }

    #[test]
    fn a_busy_etcd_answers_irregularly_and_a_distant_one_does_not() {
        let reads = |took: [u64; 5]| {
            let mut queue = Queue::begin(None);
            took.map(|took| queue.note_answer(100, Duration::from_millis(took)))
        };
        assert_eq!(reads([300, 320, 290, 310, 310]), [false, false, false, true, true]);
        assert_eq!(reads([3000, 300, 320, 290, 310]), [false, false, false, false, true]);
        assert_eq!(reads([130, 190, 160, 180, 120]), [false; 5]);
        assert_eq!(reads([3000, 300, 320, 90, 300]), [false, false, false, true, false]);
    }

    #[test]
    fn a_node_that_has_not_written_is_not_the_last() {
        let mut queue = Queue::begin(None);
        assert!(!queue.note_answer(100, QUICK));
        assert_eq!(queue.waiting(), 0);
    }

    #[test]
    fn waiting_nodes_are_counted_from_our_own_write() {
        let mut queue = Queue::begin(Some(100));
        assert_eq!(queue.waiting(), 0);
        queue.note_answer(600, QUICK);
        queue.note_answer(700, QUICK);
        assert_eq!(queue.waiting(), 600);
    }
}
