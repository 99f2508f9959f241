//! Waits until a condition holds, and measures the time; waits for locks.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Timeout for what must happen on a busy machine. Much shorter than the interval of audits, which
/// repair everything.
pub const PATIENCE: Duration = Duration::from_secs(90);
/// Between two checks. A check that takes long, or was made often, is repeated less often: on a busy
/// machine, checks would slow down what they wait for.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// The maximum that one round counts, so that a suspended machine causes no timeout.
const ROUND: Duration = Duration::from_millis(500);

/// What a closure for [`eventually`] may return: `bool`, `()` or a `Result` of them.
pub trait Condition {
    /// `Err` is the reason why it does not hold.
    fn holds(self) -> Result<(), String>;
}

impl Condition for bool {
    fn holds(self) -> Result<(), String> {
        if self { Ok(()) } else { Err("the condition is false".to_owned()) }
    }
}

impl Condition for () {
    fn holds(self) -> Result<(), String> {
        Ok(())
    }
}

impl<C: Condition> Condition for Result<C> {
    fn holds(self) -> Result<(), String> {
        self.map_err(|error| format!("{error:#}")).and_then(Condition::holds)
    }
}

/// Checks `condition` repeatedly until it holds, and returns how long that took.
///
/// The error contains that of the last attempt, so use `anyhow::ensure!` in the closure.
/// On a suspended or busy machine, or if `condition` is slow, more time than `timeout` may pass: three
/// times as much, and one round.
#[track_caller]
pub fn eventually<C: Condition>(
    timeout: Duration,
    mut condition: impl FnMut() -> C,
) -> Result<Duration> {
    let caller = std::panic::Location::caller();
    let (start, mut spent) = (Instant::now(), Spent::default());
    loop {
        let round = Instant::now();
        match condition().holds() {
            Ok(()) => return Ok(start.elapsed()),
            Err(state) if spent.exceeds(timeout) => {
                bail!("{caller}: not within {timeout:?}: {state}")
            }
            Err(_) => {
                let pause = (round.elapsed() * 4).max(spent.counted / 20);
                std::thread::sleep(pause.clamp(SHORTEST_PAUSE, LONGEST_PAUSE));
            }
        }
        spent.add(round.elapsed());
    }
}

/// The time of a wait.
#[derive(Default)]
struct Spent {
    counted: Duration,
    all: Duration,
    longest_round: Duration,
}

impl Spent {
    fn add(&mut self, round: Duration) {
        self.counted += round.min(ROUND);
        self.all += round;
        self.longest_round = self.longest_round.max(round);
    }

    fn exceeds(&self, timeout: Duration) -> bool {
        self.counted >= timeout || self.all > timeout * 3 + self.longest_round
    }
}

/// Whether a read ended without data: its timeout expired, or the process was suspended, after
/// which the kernel does not continue the wait.
pub fn is_silence(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// A socket that receives on `address`. A process that is just being started may hold an earlier
/// socket for a moment.
pub fn listen(address: SocketAddr) -> Result<UdpSocket> {
    let mut bound = None;
    eventually(PATIENCE, || {
        bound = Some(UdpSocket::bind(address)?);
        Ok::<_, anyhow::Error>(())
    })?;
    bound.context("no socket")
}

/// Locks also after another test thread has panicked.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exceeds(timeout: u64, rounds: &[u64]) -> bool {
        let mut spent = Spent::default();
        for round in rounds {
            spent.add(Duration::from_millis(*round));
        }
        spent.exceeds(Duration::from_millis(timeout))
    }

    #[test]
    fn one_long_round_of_a_suspended_machine_is_no_timeout() {
        assert!(!exceeds(1000, &[100, 3_600_000, 100]));
        assert!(exceeds(1000, &[100, 3_600_000, 100, 300]));
    }

    #[test]
    fn a_condition_that_hangs_each_time_has_a_timeout() {
        assert!(!exceeds(90_000, &[90_000; 4]));
        assert!(exceeds(90_000, &[90_000; 5]));
    }
}
