//! Notices when messages of a watch come thick and fast.

use std::time::Duration;

use tokio::time::Instant;

/// Messages that came one upon the other.
#[derive(Debug)]
pub(in crate::store::etcd) struct Burst {
    since: Instant,
    messages: u32,
}

impl Burst {
    /// What has gathered comes in fewer messages than that. More of them from a busy server mean
    /// that thousands of nodes register or change at once, and each event is sent to each watch by
    /// itself: closed and opened again later, the watch brings the same events for much less.
    const MANY: u32 = 20;
    const SPAN: Duration = Duration::from_secs(1);

    pub(in crate::store::etcd) fn begin() -> Self {
        Self { since: Instant::now(), messages: 0 }
    }

    /// Whether this message is one of many.
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
