//! Holds a lease until it is lost, and pauses after each loss.

use std::future::pending;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep};
use tweed_client::backoff::Backoff;

use super::{LeaseTerm, Lost, Report};
use crate::random::random;

/// Recent losses of the lease.
#[derive(Debug)]
pub(super) struct Losses {
    /// Before this time, another loss counts as a consequence of the last one.
    related_until: Option<Instant>,
    backoff: Backoff,
    /// After losses to a node with our public IP, which only the operator can resolve.
    conflict_backoff: Backoff,
}

/// After this time, a loss is independent of the previous one.
pub(super) const RELATED_LOSSES: Duration = Duration::from_secs(300);
const SHORTEST_CONFLICT_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_CONFLICT_PAUSE: Duration = Duration::from_secs(300);

impl Default for Losses {
    fn default() -> Self {
        let conflict_backoff = Backoff::between(SHORTEST_CONFLICT_PAUSE, LONGEST_CONFLICT_PAUSE);
        Self { related_until: None, backoff: Backoff::default(), conflict_backoff }
    }
}

impl Losses {
    /// The pause before the lease is acquired again; none after a first loss. Without it, two nodes
    /// with one public IP would overwrite each other's lease as fast as the store notifies both.
    pub(super) fn pause(&mut self, lost: &Lost, random: f64) -> Duration {
        let now = Instant::now();
        let pause = match (self.related_until.is_some_and(|until| now < until), lost.rival) {
            (true, None) => self.backoff.delay(random),
            (true, Some(_)) => self.conflict_backoff.delay(0.5 + random / 2.0),
            (false, _) => {
                self.backoff.reset();
                self.conflict_backoff.reset();
                Duration::ZERO
            }
        };
        self.related_until = Some(now + pause + RELATED_LOSSES);
        pause
    }
}

/// Waits until `loss` reports that the lease is lost.
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

/// Waits for a change. The sender lives as long as the store, so an error means no more changes.
pub(super) async fn change<T>(known: &mut watch::Receiver<T>) {
    if known.changed().await.is_err() {
        pending::<()>().await;
    }
}

/// Reports that there is no lease, and pauses before a lost one is acquired again.
pub(super) async fn pause_after(lost: Option<Lost>, losses: &Mutex<Losses>, report: &Report) {
    let Some(lost) = lost else { return };
    report.leased(LeaseTerm::None);
    let pause = losses.lock().await.pause(&lost, random());
    sleep(pause).await;
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::store::AddressConflict;

    fn lost(rival: Option<AddressConflict>) -> Lost {
        Lost { rival, ..Lost::because("overwritten".into()) }
    }

    #[tokio::test(start_paused = true)]
    async fn only_repeated_losses_have_a_pause() {
        let (mut losses, lost) = (Losses::default(), lost(None));
        assert_eq!(losses.pause(&lost, 1.0), Duration::ZERO);
        assert_eq!(losses.pause(&lost, 1.0), Backoff::SHORTEST);
        assert_eq!(losses.pause(&lost, 1.0), Backoff::SHORTEST * 2);
        advance(RELATED_LOSSES + Backoff::SHORTEST * 2).await;
        assert_eq!(losses.pause(&lost, 1.0), Duration::ZERO);
        assert_eq!(losses.pause(&lost, 1.0), Backoff::SHORTEST);
    }

    #[tokio::test(start_paused = true)]
    async fn losses_to_a_node_with_our_public_ip_have_ever_longer_pauses() {
        let public_ip = "10.0.0.1".parse().unwrap();
        let (mut losses, lost) =
            (Losses::default(), lost(Some(AddressConflict { public_ip, mac: None })));
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let pause = losses.pause(&lost, 0.0);
            pauses.push(pause.as_millis());
            advance(pause + RELATED_LOSSES / 2).await;
        }
        let expected = [0, 2500, 5000, 10_000, 20_000, 40_000, 80_000, 150_000, 150_000];
        assert_eq!(pauses, expected);
    }
}
