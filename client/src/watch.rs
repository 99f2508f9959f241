//! Converts an interrupted history into an endless stream of updates.

use std::future::{Future, ready};
use std::time::Duration;

use futures::stream::{self, BoxStream, Stream, StreamExt};
use tokio::time::{Instant, sleep, timeout_at};

use crate::backoff::Backoff;
use crate::failover::{Failure, Refusal};
use crate::random::{random, random_range};

/// A history that may be interrupted.
pub trait Source: Send + 'static {
    type Update: Send + 'static;

    /// All records; `follow` continues from here.
    fn list(&mut self) -> impl Future<Output = Result<Listed<Self::Update>, Interrupted>> + Send;

    /// The next changes, at least one. Resumes where it was interrupted.
    fn follow(&mut self) -> impl Future<Output = Result<Vec<Self::Update>, Interrupted>> + Send;
}

/// All records of a history at one time.
pub struct Listed<U> {
    /// Their number.
    pub size: usize,
    /// The records, in place of all that came before.
    pub snapshot: U,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupted {
    /// The store is unreachable; the next changes are not lost.
    Unreachable,
    /// The store has deleted the next changes, or never had them.
    Gap,
    /// The store has the next changes, but may have been restored from a backup: its history may
    /// lack changes that we know, and contain changes that we do not.
    PossibleGap,
}

impl Interrupted {
    /// The effect of a failed request for all records on their history. `withhold` gets a refusal that
    /// a new listing would not change.
    pub fn by(failure: Failure, withhold: impl FnOnce(Refusal)) -> Self {
        match failure {
            Failure::Refused(Refusal::NoHistory | Refusal::Future) => return Self::Gap,
            Failure::Refused(refusal) => withhold(refusal),
            Failure::Unreachable => {}
        }
        Self::Unreachable
    }
}

/// The pause of a node between a gap and the next listing: a store that lost its history is busy, and
/// thousands of listings at once would overload it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Random for each listing; the more records, the longer.
    ByRecords,
    /// The same for all histories that belong together.
    Fixed(Duration),
}

/// Starts with a snapshot, and with another one after each gap.
pub fn updates<S: Source>(source: S, spread: Spread) -> BoxStream<'static, S::Update> {
    let backoff = Backoff::up_to(LONGEST_PAUSE);
    let start = Follower { source, spread, listed: None, list_at: Instant::now(), backoff };
    let steps = stream::unfold(start, |mut follower| async {
        let updates = follower.step().await;
        Some((stream::iter(updates), follower))
    });
    steps.flatten().boxed()
}

/// `values` without those that repeat the one before.
pub fn distinct<T>(values: impl Stream<Item = T> + Send + 'static) -> BoxStream<'static, T>
where
    T: Clone + PartialEq + Send + 'static,
{
    let mut last = None;
    let is_new = move |value: &T| ready(last.replace(value.clone()).as_ref() != Some(value));
    values.filter(is_new).boxed()
}

struct Follower<S> {
    source: S,
    spread: Spread,
    /// The number of records at the last listing; none if all records must be listed.
    listed: Option<usize>,
    /// When all records are listed again, even without a known gap.
    list_at: Instant,
    backoff: Backoff,
}

/// The longest time between two listings; a listing corrects what a watch has missed.
const BETWEEN_LISTINGS: Duration = Duration::from_secs(24 * 60 * 60);

/// The shortest time between a doubt and the next listing; the watch continues meanwhile.
const GAP_DELAY: Duration = Duration::from_secs(10);

/// Short, because to reopen a watch costs a store little, and nothing while it is unreachable.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The longest time after which opening a watch fails; the pauses that a server requests come on top.
const LONGEST_FAILURE: Duration = Duration::from_secs(30);

/// The time that one record adds to the period over which all nodes spread a new listing.
const SPREAD_PER_RECORD: Duration = Duration::from_millis(2);

impl<S: Source> Follower<S> {
    async fn step(&mut self) -> Vec<S::Update> {
        loop {
            let (follows, begun) = (self.listed.is_some(), Instant::now());
            let step = match self.listed {
                None => self.list().await,
                Some(_) => self.follow().await,
            };
            match step {
                Ok(updates) => {
                    // A listing does not show that changes can be followed.
                    if follows {
                        self.backoff.reset();
                    }
                    return updates;
                }
                Err(Interrupted::Unreachable) => {
                    // It was open for a while, and so did not fail because it was opened too soon.
                    if follows && begun.elapsed() > LONGEST_FAILURE {
                        self.backoff.reset();
                    }
                    sleep(self.backoff.delay(random())).await;
                }
                Err(Interrupted::Gap) => {
                    sleep(self.backoff.delay(random()) + self.spread.pause(self.listed)).await;
                    self.listed = None;
                }
                Err(Interrupted::PossibleGap) => {
                    let pause = GAP_DELAY + self.spread.pause(self.listed);
                    self.list_at = self.list_at.min(Instant::now() + pause);
                }
            }
        }
    }

    async fn list(&mut self) -> Result<Vec<S::Update>, Interrupted> {
        let Listed { size, snapshot } = self.source.list().await?;
        self.listed = Some(size);
        let pause = BETWEEN_LISTINGS.mul_f64(random_range(0.5..1.0));
        self.list_at = Instant::now() + pause;
        Ok(vec![snapshot])
    }

    /// A listing may interrupt `follow`, since it also contains what `follow` had read.
    async fn follow(&mut self) -> Result<Vec<S::Update>, Interrupted> {
        if let Ok(followed) = timeout_at(self.list_at, self.source.follow()).await {
            return followed;
        }
        self.listed = None;
        self.list().await
    }
}

impl Spread {
    /// `listed`: the number of records at the last listing.
    fn pause(self, listed: Option<usize>) -> Duration {
        match self {
            Self::ByRecords => {
                let records = u32::try_from(listed.unwrap_or(0)).unwrap_or(u32::MAX);
                let longest = SPREAD_PER_RECORD.saturating_mul(records).min(Backoff::LONGEST);
                longest.mul_f64(random())
            }
            Self::Fixed(pause) => pause,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::time::Instant;

    use super::*;

    enum Step {
        List(Result<usize, Interrupted>),
        Follow(Result<usize, Interrupted>),
        /// `follow` never returns.
        Silence,
    }

    /// Fails if a call differs from the script.
    struct Script(VecDeque<Step>);

    /// Updates are letters: S for a snapshot, p for a put.
    impl Source for Script {
        type Update = char;

        async fn list(&mut self) -> Result<Listed<char>, Interrupted> {
            match self.0.pop_front() {
                Some(Step::List(size)) => size.map(|size| Listed { size, snapshot: 'S' }),
                Some(Step::Follow(_) | Step::Silence) => panic!("listed instead of following"),
                None => std::future::pending().await,
            }
        }

        async fn follow(&mut self) -> Result<Vec<char>, Interrupted> {
            match self.0.pop_front() {
                Some(Step::Follow(puts)) => puts.map(|count| vec!['p'; count]),
                Some(Step::List(_)) => panic!("followed instead of listing"),
                Some(Step::Silence) | None => std::future::pending().await,
            }
        }
    }

    /// The first updates that `steps` produce.
    async fn letters(steps: Vec<Step>, count: usize) -> String {
        letters_by(Spread::ByRecords, steps, count).await
    }

    async fn letters_by(spread: Spread, steps: Vec<Step>, count: usize) -> String {
        updates(Script(steps.into()), spread).take(count).collect().await
    }

    use Interrupted::{Gap, PossibleGap, Unreachable};
    use Step::{Follow, List, Silence};

    #[tokio::test(start_paused = true)]
    async fn a_snapshot_comes_first_however_long_it_takes() {
        let steps = vec![
            List(Err(Unreachable)),
            List(Err(Gap)),
            List(Err(Unreachable)),
            List(Ok(2)),
            Follow(Ok(2)),
        ];
        assert_eq!(letters(steps, 3).await, "Spp");
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_is_resumed_after_the_store_was_unreachable() {
        let steps =
            vec![List(Ok(1)), Follow(Err(Unreachable)), Follow(Err(Unreachable)), Follow(Ok(1))];
        assert_eq!(letters(steps, 2).await, "Sp");
    }

    #[tokio::test(start_paused = true)]
    async fn a_gap_is_followed_by_a_snapshot() {
        let steps = vec![
            List(Ok(1)),
            Follow(Ok(1)),
            Follow(Err(Gap)),
            List(Err(Unreachable)),
            List(Ok(1)),
            Follow(Ok(1)),
        ];
        assert_eq!(letters(steps, 4).await, "SpSp");
    }

    #[tokio::test(start_paused = true)]
    async fn a_doubt_is_followed_by_a_snapshot_and_delays_no_change() {
        let start = Instant::now();
        let steps = vec![
            List(Ok(1)),
            Follow(Err(PossibleGap)),
            Follow(Ok(1)),
            Silence,
            List(Err(Unreachable)),
            List(Ok(1)),
            Follow(Ok(1)),
        ];
        assert_eq!(letters(steps, 4).await, "SpSp");
        assert!((GAP_DELAY..GAP_DELAY * 2).contains(&start.elapsed()), "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn everything_is_read_again_once_a_day() {
        let start = Instant::now();
        assert_eq!(letters(vec![List(Ok(1)), Silence, List(Ok(1)), Follow(Ok(1))], 3).await, "SSp");
        let day = BETWEEN_LISTINGS / 2..=BETWEEN_LISTINGS;
        assert!(day.contains(&start.elapsed()), "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn delays_stay_within_their_bound() {
        let mut steps = vec![List(Ok(1))];
        steps.extend((0..20).map(|_| Follow(Err(Unreachable))));
        steps.push(Follow(Ok(1)));
        let start = Instant::now();
        assert_eq!(letters(steps, 2).await, "Sp");
        assert!(start.elapsed() < Backoff::LONGEST * 20);
    }

    #[tokio::test(start_paused = true)]
    async fn histories_that_belong_together_are_listed_together() {
        let pause = Duration::from_millis(1500);
        for records in [10, 5000, 50_000] {
            let start = Instant::now();
            let steps = vec![List(Ok(records)), Follow(Err(Gap)), List(Ok(1))];
            assert_eq!(letters_by(Spread::Fixed(pause), steps, 2).await, "SS");
            assert!((pause..pause + Backoff::SHORTEST * 2).contains(&start.elapsed()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_nodes_spread_their_new_listings() {
        let spent = async || {
            let start = Instant::now();
            let steps = vec![List(Ok(5000)), Follow(Err(Gap)), List(Ok(1))];
            assert_eq!(letters(steps, 2).await, "SS");
            start.elapsed()
        };
        let mut longest = Duration::ZERO;
        for _ in 0..100 {
            longest = longest.max(spent().await);
        }
        // Five thousand records spread listings over ten seconds: a hundred random pauses below
        // one second are practically impossible.
        assert!(longest > Duration::from_secs(1), "{longest:?}");
        assert!(longest < Duration::from_secs(11), "{longest:?}");
    }
}
