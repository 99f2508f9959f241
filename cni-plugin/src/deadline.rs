//! A moment until which something is waited for.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Instant);

#[expect(clippy::disallowed_methods, reason = "there is no runtime whose clock could be paused")]
impl Deadline {
    pub(crate) fn after(time: Duration) -> Self {
        Self(Instant::now() + time)
    }

    /// Waits until there is something to read from `source`; false once the moment has come.
    pub(crate) fn readable(self, source: &impl AsFd) -> nix::Result<bool> {
        let mut sources = [PollFd::new(source.as_fd(), PollFlags::POLLIN)];
        loop {
            match poll(&mut sources, self.left()) {
                Err(Errno::EINTR) => {}
                ready => return Ok(ready? > 0),
            }
        }
    }

    fn left(self) -> PollTimeout {
        let left = self.0.saturating_duration_since(Instant::now());
        PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
    }
}
