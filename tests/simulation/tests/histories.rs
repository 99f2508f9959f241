//! Histories of whole clusters: the same seed gives the same history, and no invariant rejects one.
#![allow(clippy::unwrap_used, clippy::panic, reason = "for tests")]

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use tweed_simulation::history::{play, shrink};

const NODES: usize = 5;
/// The seeds of histories that an invariant has rejected once: two copies of a machine, a copy that a
/// supervisor restarts, and an edit of the config while a copy starts.
const FOUND: [u64; 3] = [1428, 2000, 10068];
/// How long new histories are played.
const TIME: Duration = Duration::from_secs(60);

#[test]
fn a_seed_decides_everything() {
    let hashes: Vec<u64> = (0..20)
        .map(|seed| {
            let [first, second] = [(); 2].map(|()| play(seed, NODES).unwrap().hash);
            assert_eq!(first, second, "two plays of seed {seed} differ");
            first
        })
        .collect();
    assert!(hashes.iter().collect::<BTreeSet<_>>().len() == hashes.len(), "{hashes:?}");
}

#[test]
fn no_history_that_was_rejected_once_is_rejected_again() {
    FOUND.into_iter().for_each(accept);
}

#[test]
fn new_histories_are_accepted() {
    let end = Instant::now() + TIME;
    let first: u64 = rand::random();
    for seed in (0..).map(|number| first.wrapping_add(number)) {
        if Instant::now() >= end {
            break;
        }
        accept(seed);
    }
}

fn accept(seed: u64) {
    if let Some(violation) = play(seed, NODES).unwrap().violation {
        panic!("{}", shrink(seed, NODES, violation).unwrap());
    }
}
