//! What has become of the questions to one peer by one way.

use std::time::Duration;

use super::board::{Asked, Size};

/// Times are counted from the start of probing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Track {
    /// The last large questions, the newest in the lowest bit; a lost one is set.
    pub(super) lost: u64,
    /// How many of them there were, up to [`Track::WINDOW`].
    pub(super) known: u32,
    /// Large questions lost in a row.
    pub missed: u32,
    /// Large questions answered in a row.
    pub answered: u32,
    /// When the first of those lost in a row was asked.
    pub failing_since: Option<Duration>,
    /// When the last large question that was answered was asked.
    pub large: Option<Duration>,
    /// When the last small question that was answered was asked.
    pub small: Option<Duration>,
    /// When the last answer came.
    pub heard: Option<Duration>,
    /// Of the last answer to a large question.
    pub round_trip: Option<Duration>,
}

impl Track {
    /// So many questions are remembered.
    pub const WINDOW: u32 = 64;

    pub(super) fn take_answer(&mut self, asked: &Asked, now: Duration) {
        self.heard = Some(now);
        match asked.size {
            Size::Small => self.small = self.small.max(Some(asked.at)),
            Size::Large => {
                self.note(0);
                self.missed = 0;
                self.failing_since = None;
                self.answered = self.answered.saturating_add(1);
                self.large = self.large.max(Some(asked.at));
                self.round_trip = Some(now.saturating_sub(asked.at));
            }
        }
    }

    pub(super) fn take_loss(&mut self, asked: &Asked) {
        match asked.size {
            Size::Small => {}
            Size::Large => {
                self.note(1);
                self.answered = 0;
                self.missed = self.missed.saturating_add(1);
                self.failing_since.get_or_insert(asked.at);
            }
        }
    }

    fn note(&mut self, lost: u64) {
        self.lost = self.lost << 1 | lost;
        self.known = (self.known + 1).min(Self::WINDOW);
    }

    /// Of the last large questions: how many there were, and how many of them were lost.
    pub const fn window(&self) -> (u32, u32) {
        (self.known, self.lost.count_ones())
    }

    /// Whether a large question asked after `moment` was answered.
    pub fn carried_since(&self, moment: Duration) -> bool {
        self.large.is_some_and(|asked| asked > moment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::path::Path;

    fn asked(size: Size, at: u64) -> Asked {
        let peer = "10.244.2.0".parse().unwrap();
        Asked { peer, path: Path::Direct, size, at: Duration::from_millis(at) }
    }

    #[test]
    fn what_was_lost_in_a_row_ends_with_an_answer() {
        let mut track = Track::default();
        track.take_loss(&asked(Size::Large, 10));
        track.take_loss(&asked(Size::Large, 20));
        assert_eq!((track.missed, track.failing_since), (2, Some(Duration::from_millis(10))));
        track.take_answer(&asked(Size::Large, 30), Duration::from_millis(32));
        assert_eq!((track.missed, track.failing_since, track.answered), (0, None, 1));
        assert_eq!(track.round_trip, Some(Duration::from_millis(2)));
        assert_eq!(track.window(), (3, 2));
    }

    #[test]
    fn small_questions_say_nothing_of_large_packets() {
        let mut track = Track::default();
        track.take_loss(&asked(Size::Large, 10));
        track.take_answer(&asked(Size::Small, 20), Duration::from_millis(21));
        assert_eq!((track.missed, track.answered, track.window()), (1, 0, (1, 1)));
        assert_eq!(track.small, Some(Duration::from_millis(20)));
    }

    #[test]
    fn only_so_many_are_remembered() {
        let mut track = Track::default();
        (0..100).for_each(|at| track.take_loss(&asked(Size::Large, at)));
        assert_eq!(track.window(), (64, 64));
        (0..60).for_each(|at| track.take_answer(&asked(Size::Large, at), Duration::ZERO));
        assert_eq!(track.window(), (64, 4));
    }
}
