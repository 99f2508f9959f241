//! Holds a lease until it is lost, and pauses after each loss.

use std::future::pending;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep};

use super::Lost;
use crate::store::backoff::Backoff;

/// Recent losses of the lease.
#[derive(Debug)]
pub(super) struct Losses {
    /// Until then, another loss counts as a consequence of the last one.
    calm: Option<Instant>,
    backoff: Backoff,
    /// For losses to a node that has our public IP: only the operator can change that.
    contest: Backoff,
}

/// After this time, a loss is independent of the one before.
pub(super) const CALM: Duration = Duration::from_secs(300);
const SHORTEST_CONTEST: Duration = Duration::from_secs(5);
const LONGEST_CONTEST: Duration = Duration::from_secs(300);

impl Default for Losses {
    fn default() -> Self {
        let contest = Backoff::between(SHORTEST_CONTEST, LONGEST_CONTEST);
        Self { calm: None, backoff: Backoff::default(), contest }
    }
}

impl Losses {
    /// How long to wait before the lease is taken back: not at all, the first time. Two nodes with
    /// one public IP would take it from each other as fast as the store can notify both.
    pub(super) fn pause(&mut self, lost: &Lost, random: f64) -> Duration {
        let now = Instant::now();
        let pause = match (self.calm.is_some_and(|calm| now < calm), lost.rival) {
            (true, None) => self.backoff.delay(random),
            (true, Some(_)) => self.contest.delay(0.5 + random / 2.0),
            (false, _) => {
                self.backoff.reset();
                self.contest.reset();
                Duration::ZERO
            }
        };
        self.calm = Some(now + pause + CALM);
        pause
    }
}

/// Waits until `loss` finds the lease lost in what is known of it.
pub(super) async fn until_lost<T>(
    known: &watch::Sender<T>,
    loss: impl Fn(&T) -> Option<Lost>,
) -> Lost {
    let mut known = known.subscribe();
    loop {
        if let Some(lost) = loss(&known.borrow_and_update()) {
            return lost;
        }
        change(&mut known).await;
    }
}

/// The sender belongs to the store and lives as long as it does.
pub(super) async fn change<T>(known: &mut watch::Receiver<T>) {
    if known.changed().await.is_err() {
        pending::<()>().await;
    }
}

/// Waits before a lease that was lost is taken back.
pub(super) async fn pause_after(lost: Option<Lost>, losses: &Mutex<Losses>) {
    if let Some(lost) = lost {
        let pause = losses.lock().await.pause(&lost, rand::random());
        sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::store::Rival;

    fn lost(rival: Option<Rival>) -> Lost {
        Lost { rival, ..Lost::because("overwritten".into()) }
    }

    #[tokio::test(start_paused = true)]
    async fn only_losses_in_a_row_are_slowed_down() {
        let (mut losses, lost) = (Losses::default(), lost(None));
        assert_eq!(losses.pause(&lost, 1.0), Duration::ZERO);
        assert_eq!(losses.pause(&lost, 1.0), Backoff::SHORTEST);
        assert_eq!(losses.pause(&lost, 1.0), Backoff::SHORTEST * 2);
        advance(CALM + Backoff::SHORTEST * 2).await;
        assert_eq!(losses.pause(&lost, 1.0), Duration::ZERO);
        assert_eq!(losses.pause(&lost, 1.0), Backoff::SHORTEST);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_with_our_public_ip_has_the_lease_for_ever_longer() {
        let public_ip = "10.0.0.1".parse().unwrap();
        let (mut losses, lost) = (Losses::default(), lost(Some(Rival { public_ip, mac: None })));
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let pause = losses.pause(&lost, 0.0);
            pauses.push(pause.as_millis());
            advance(pause + CALM / 2).await;
        }
        let expected = [0, 2500, 5000, 10_000, 20_000, 40_000, 80_000, 150_000, 150_000];
        assert_eq!(pauses, expected);
    }
}
