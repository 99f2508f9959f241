//! Links between a node and the store, whose state the dice set.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// The way of one node to the store. Clones share one link.
#[derive(Clone, Debug)]
pub struct Link {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The time that a message takes one way.
    latency: Duration,
    state: Mutex<LinkState>,
    changed: Notify,
    requests: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkState {
    #[default]
    Open,
    /// Nothing gets through, without an error.
    Cut,
    /// Requests arrive, and answers are lost.
    AnswersLost,
}

/// Towards the store, or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Request,
    Answer,
}

/// The latency of a short link.
pub const SHORT: Duration = Duration::from_millis(1);
/// After this time without an answer to a ping, the client closes the connection.
const PINGS: Duration = Duration::from_secs(15);

impl Default for Link {
    fn default() -> Self {
        Self::new(SHORT)
    }
}

impl Link {
    /// A link with this latency.
    pub fn new(latency: Duration) -> Self {
        let (state, changed, requests) = Default::default();
        Self { shared: Arc::new(Shared { latency, state, changed, requests }) }
    }

    pub fn state(&self) -> LinkState {
        *self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set(&self, state: LinkState) {
        *self.shared.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
        self.shared.changed.notify_waiters();
    }

    /// Counts a request, whatever becomes of it.
    pub fn count(&self) {
        self.shared.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of requests of this node so far.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// Takes a message across; an error if the connection ends first.
    pub async fn cross(&self, direction: Direction) -> Result<(), Closed> {
        sleep(self.shared.latency).await;
        timeout(PINGS, self.until_open(direction)).await.map_err(|_| Closed)
    }

    /// Takes a message across, however long the link is cut.
    pub async fn arrive(&self, direction: Direction) {
        sleep(self.shared.latency).await;
        self.until_open(direction).await;
    }

    /// Returns once nothing has got through for so long that pings end the connection.
    pub async fn closed(&self) {
        loop {
            while self.state() == LinkState::Open {
                let changed = self.shared.changed.notified();
                if self.state() == LinkState::Open {
                    changed.await;
                }
            }
            if timeout(PINGS, self.until_open(Direction::Answer)).await.is_err() {
                return;
            }
        }
    }

    async fn until_open(&self, direction: Direction) {
        loop {
            let changed = self.shared.changed.notified();
            match (self.state(), direction) {
                (LinkState::Open, _) | (LinkState::AnswersLost, Direction::Request) => return,
                (LinkState::Cut | LinkState::AnswersLost, _) => changed.await,
            }
        }
    }
}

/// The connection was closed.
#[derive(Clone, Copy, Debug)]
pub struct Closed;
