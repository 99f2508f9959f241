//! Detects bursts of messages of a watch.

use std::time::Duration;

use tokio::time::Instant;

/// Messages in quick succession.
#[derive(Debug)]
pub(in crate::store::etcd) struct Burst {
    since: Instant,
    messages: u32,
}

impl Burst {
    /// A backlog of events arrives in fewer messages than this. More messages from a busy server
    /// mean that thousands of nodes register or change at once, and that it sends each event
    /// separately to each watch. A watch that is closed and reopened later gets the same events at
    /// much less cost.
    const MANY: u32 = 20;
    const SPAN: Duration = Duration::from_secs(1);

    pub(in crate::store::etcd) fn begin() -> Self {
        Self { since: Instant::now(), messages: 0 }
    }

    /// Counts a message; returns whether it is part of a burst.
    pub(in crate::store::etcd) fn counts(&mut self) -> bool {
        if self.since.elapsed() >= Self::SPAN {
            *self = Self::begin();
        }
        self.messages += 1;
        self.messages >= Self::MANY
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn many_messages_count_only_within_one_span() {
        let mut burst = Burst::begin();
        for _ in 0..3 {
            assert!((1..Burst::MANY).all(|_| !burst.counts()));
            advance(Burst::SPAN).await;
        }
        assert!((1..Burst::MANY).all(|_| !burst.counts()));
        assert!(burst.counts());
    }
}
