//! Losses of a lease, and the pause after each.

use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::Backoff;

/// How often the lease was lost of late.
#[derive(Debug, Default)]
pub(in crate::subnet) struct Losses {
    last: Option<Instant>,
    backoff: Backoff,
}

/// After so long a loss has nothing to do with the one before.
const CALM: Duration = Duration::from_secs(300);

impl Losses {
    /// How long to wait before the lease is taken back: not at all, the first time. Two nodes with
    /// one public IP would take it from each other as fast as the store can tell everybody.
    pub(in crate::subnet) fn pause(&mut self, random: f64) -> Duration {
        let again = self.last.is_some_and(|last| last.elapsed() < CALM);
        self.last = Some(Instant::now());
        if again {
            return self.backoff.delay(random);
        }
        self.backoff.reset();
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_losses_in_a_row_are_slowed_down() {
        let mut losses = Losses::default();
        assert_eq!(losses.pause(1.0), Duration::ZERO);
        assert_eq!(losses.pause(1.0), Backoff::SHORTEST);
        assert_eq!(losses.pause(1.0), Backoff::SHORTEST * 2);
        advance(CALM).await;
        assert_eq!(losses.pause(1.0), Duration::ZERO);
        assert_eq!(losses.pause(1.0), Backoff::SHORTEST);
    }
}
