//! Waiting until something holds, and how long that took.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

const POLL: Duration = Duration::from_millis(5);
/// A round that took longer counts for no more: a machine that stands still has not waited.
const ROUND: Duration = Duration::from_millis(500);
/// Whoever is being started has let go of our sockets by then.
const RELEASED: Duration = Duration::from_secs(15);

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
/// `timeout` is longer by the clock where the machine stands still, or is slow to look.
#[track_caller]
pub fn eventually<C: Condition>(
    timeout: Duration,
    mut condition: impl FnMut() -> C,
) -> Result<Duration> {
    let caller = std::panic::Location::caller();
    let (start, mut waited) = (Instant::now(), Duration::ZERO);
    loop {
        let round = Instant::now();
        match condition().holds() {
            Ok(()) => return Ok(start.elapsed()),
            Err(state) if waited >= timeout => bail!("{caller}: not within {timeout:?}: {state}"),
            Err(_) => std::thread::sleep(POLL),
        }
        waited += round.elapsed().min(ROUND);
    }
}

/// Whether a read ended because nothing came: its timeout ran out, or the process stood still,
/// after which the kernel does not wait on.
pub fn is_silence(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// A socket that hears what comes to `address`. A process that is just being started holds the
/// socket before this one for a moment more.
pub fn listen(address: SocketAddr) -> Result<UdpSocket> {
    let mut bound = None;
    eventually(RELEASED, || {
        bound = Some(UdpSocket::bind(address)?);
        Ok::<_, anyhow::Error>(())
    })?;
    bound.context("no socket")
}
