//! Tells what passes by itself from what stays wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::operator::layout::counted;
use crate::operator::migration::{Subject, Troubles};

/// A trouble that is over sooner is none: of paths, and of what probes find on the way.
const PASSING: Duration = Duration::from_secs(4);
const NOISE: Duration = Duration::from_secs(45);

/// What is wrong, and since when. Reports tell of moments, too: what passes by itself is no harm.
#[derive(Default)]
pub(super) struct Lasting(BTreeMap<Subject, Instant>);

impl Lasting {
    /// Those of `troubles` that have lasted, if any.
    pub(super) fn confirmed(&mut self, mut troubles: Troubles) -> Option<Troubles> {
        self.0.retain(|subject, _| troubles.contains_key(subject));
        for subject in troubles.keys() {
            self.0.entry(subject.clone()).or_insert_with(Instant::now);
        }
        let has_lasted = |subject: &Subject| {
            self.0.get(subject).is_some_and(|since| since.elapsed() >= passing(subject))
        };
        troubles.retain(|subject, _| has_lasted(subject));
        Some(troubles).filter(|troubles| !troubles.is_empty())
    }

    /// Whether nothing is left that will be told soon.
    pub(super) fn is_quiet(&self) -> bool {
        self.0.keys().all(|subject| passing(subject) == NOISE)
    }

    pub(super) fn summary(&self) -> String {
        match self.0.len() {
            0 => "all is well".to_owned(),
            some => format!("{} may be worse off", counted(some, "thing")),
        }
    }
}

const fn passing(subject: &Subject) -> Duration {
    match subject {
        Subject::Pair { .. } | Subject::Node(_) => PASSING,
        Subject::Probes(_) => NOISE,
    }
}
