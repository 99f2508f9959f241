//! Waiting until something holds, and how long that took.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

const POLL: Duration = Duration::from_millis(5);

/// What a closure given to [`eventually`] may return: `bool`, `()` or a `Result` of them.
pub trait Condition {
    /// `Err` says what stands in the way.
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

/// Asks again and again until `condition` holds, and says how long that took.
///
/// The error carries what the last attempt said, so `anyhow::ensure!` in the closure pays off.
#[track_caller]
pub fn eventually<C: Condition>(
    timeout: Duration,
    mut condition: impl FnMut() -> C,
) -> Result<Duration> {
    let caller = std::panic::Location::caller();
    let start = Instant::now();
    loop {
        let asked = start.elapsed();
        match condition().holds() {
            Ok(()) => return Ok(start.elapsed()),
            Err(state) if asked >= timeout => bail!("{caller}: not within {timeout:?}: {state}"),
            Err(_) => std::thread::sleep(POLL),
        }
    }
}
