//! Interruptions in every place, against a source that follows a script.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::VecDeque;

use tokio::time::Instant;

use super::*;
use crate::model::lease::{LeaseId, Malformed};

enum Step {
    List(Result<usize, Interrupted>),
    Follow(Result<usize, Interrupted>),
    /// Nothing to follow, for ever.
    Silence,
}

/// Fails if it is asked for anything else than the script says.
struct Script(VecDeque<Step>);

fn record(index: usize) -> Record {
    let id = LeaseId::new(index.to_string());
    Record { id, lease: Err(Malformed(String::new())) }
}

impl Source for Script {
    async fn list(&mut self) -> Result<Vec<Record>, Interrupted> {
        match self.0.pop_front() {
            Some(Step::List(records)) => records.map(|count| (0..count).map(record).collect()),
            Some(Step::Follow(_) | Step::Silence) => panic!("listed instead of following"),
            None => std::future::pending().await,
        }
    }

    async fn follow(&mut self) -> Result<Vec<LeaseUpdate>, Interrupted> {
        match self.0.pop_front() {
            Some(Step::Follow(puts)) => {
                puts.map(|count| (0..count).map(record).map(LeaseUpdate::Put).collect())
            }
            Some(Step::List(_)) => panic!("followed instead of listing"),
            Some(Step::Silence) | None => std::future::pending().await,
        }
    }
}

/// What comes of `steps`, a letter per update: S for a snapshot, p for a put.
async fn letters(steps: Vec<Step>, count: usize) -> String {
    let letter = |update| match update {
        LeaseUpdate::Snapshot(_) => 'S',
        LeaseUpdate::Put(_) => 'p',
        LeaseUpdate::Remove(_) | LeaseUpdate::DeleteNode(_) => 'r',
    };
    updates(Script(steps.into())).take(count).map(letter).collect().await
}

use Interrupted::{Away, Doubt, Gap};
use Step::{Follow, List, Silence};

#[tokio::test(start_paused = true)]
async fn a_snapshot_comes_first_however_long_it_takes() {
    let steps = vec![List(Err(Away)), List(Err(Gap)), List(Err(Away)), List(Ok(2)), Follow(Ok(2))];
    assert_eq!(letters(steps, 3).await, "Spp");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_was_away_is_followed_on() {
    let steps = vec![List(Ok(1)), Follow(Err(Away)), Follow(Err(Away)), Follow(Ok(1))];
    assert_eq!(letters(steps, 2).await, "Sp");
}

#[tokio::test(start_paused = true)]
async fn a_gap_is_closed_with_a_snapshot() {
    let steps = vec![
        List(Ok(1)),
        Follow(Ok(1)),
        Follow(Err(Gap)),
        List(Err(Away)),
        List(Ok(1)),
        Follow(Ok(1)),
    ];
    assert_eq!(letters(steps, 4).await, "SpSp");
}

#[tokio::test(start_paused = true)]
async fn a_doubt_is_settled_with_a_snapshot_and_delays_no_change() {
    let start = Instant::now();
    let steps = vec![
        List(Ok(1)),
        Follow(Err(Doubt)),
        Follow(Ok(1)),
        Silence,
        List(Err(Away)),
        List(Ok(1)),
        Follow(Ok(1)),
    ];
    assert_eq!(letters(steps, 4).await, "SpSp");
    assert!((DOUBT..DOUBT * 2).contains(&start.elapsed()), "{:?}", start.elapsed());
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
    steps.extend((0..20).map(|_| Follow(Err(Away))));
    steps.push(Follow(Ok(1)));
    let start = Instant::now();
    assert_eq!(letters(steps, 2).await, "Sp");
    assert!(start.elapsed() < Backoff::LONGEST * 20);
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
    // Ten seconds for five thousand: to stay below one by chance, a hundred times, is impossible.
    assert!(longest > Duration::from_secs(1), "{longest:?}");
    assert!(longest < Duration::from_secs(11), "{longest:?}");
}
