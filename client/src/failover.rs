//! Uses one of several servers at a time, and the next one after a failure.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use crate::backoff::Backoff;
use crate::random::random;

/// Servers with the same content.
pub trait Servers {
    type Client;

    fn count(&self) -> usize;

    /// Opens a connection to the server at `index`. The error contains no secrets.
    fn open(&self, index: usize) -> impl Future<Output = Result<Self::Client, String>>;

    /// The sentence that reports that no server can be used, the one at `index` for this reason.
    fn unusable(&self, index: usize, reason: &str) -> String;
}

/// Notes what becomes of requests.
pub trait Outcomes {
    /// A server has answered.
    fn reachable(&self);

    /// No server can be used, for `reason`.
    fn unreachable(&self, reason: &str);

    /// Why no server can be used; none if one can.
    fn unusable(&self) -> Option<String>;

    /// A server answers, but refuses a request that is repeated until it succeeds.
    fn refuses(&self, sentence: &str);

    /// A request that was sent at `asked` has its answer, or the server gave none in time.
    fn request_ended(&self, asked: Instant);
}

/// Some servers, and the connection to the one in use.
pub struct Failover<S: Servers, R> {
    pub servers: S,
    pub report: R,
    current: Mutex<Current<S::Client>>,
}

struct Current<C> {
    /// Shared, because a client takes several kilobytes, which each future would contain.
    connection: Option<Arc<C>>,
    /// The index of the server in use.
    server: usize,
    /// Counts the changes of the server in use.
    changes: u64,
    /// Consecutive failures of all requests.
    failures: usize,
}

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No server could be reached, or it could not answer: see [`Outcomes`].
    Unreachable,
    /// The server is reachable, and rejects the request.
    Refused(Refusal),
}

/// An answer that a retry on another connection would not change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the object does not exist")]
    Absent,
    #[error("the object already exists")]
    Exists,
    /// The requested history is compacted.
    #[error("the requested history does not exist")]
    NoHistory,
    /// The server has not reached the requested version.
    #[error("the requested history does not exist yet")]
    Future,
    /// The answer is too large.
    #[error("{0}")]
    TooLarge(String),
    /// The server accepts no such request from any client, or has no space for it.
    #[error("{0}")]
    Invalid(String),
    /// This client may not do this.
    #[error("{0}")]
    Denied(String),
}

impl<C> Current<C> {
    /// Whether `connection` is still in use: of several requests that fail on it, only the first
    /// changes the server.
    fn uses(&self, connection: &Arc<C>) -> bool {
        self.connection.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection))
    }
}

impl<S: Servers, R: Outcomes> Failover<S, R> {
    /// Does not connect yet. The server at `first` is used first.
    pub fn starting_at(first: usize, servers: S, report: R) -> Self {
        let current = Current { connection: None, server: first, changes: 0, failures: 0 };
        Self { servers, report, current: Mutex::new(current) }
    }

    pub async fn connection(&self) -> Result<Arc<S::Client>, Failure> {
        let mut current = self.current.lock().await;
        if let Some(connection) = &current.connection {
            return Ok(Arc::clone(connection));
        }
        match Box::pin(self.servers.open(current.server)).await {
            Ok(client) => {
                let connection = Arc::new(client);
                current.connection = Some(Arc::clone(&connection));
                Ok(connection)
            }
            Err(reason) => Err(self.use_next_server(&mut current, &reason)),
        }
    }

    /// The connection in use; none is opened.
    pub async fn open_connection(&self) -> Option<Arc<S::Client>> {
        self.current.lock().await.connection.clone()
    }

    /// The index of the server in use.
    pub async fn server(&self) -> usize {
        self.current.lock().await.server
    }

    /// The same, if `connection` is still in use.
    pub async fn server_of(&self, connection: &Arc<S::Client>) -> Option<usize> {
        let current = self.current.lock().await;
        current.uses(connection).then_some(current.server)
    }

    /// The next request goes to the server at `index`, although that of `used` is reachable.
    pub async fn move_to(&self, index: usize, used: &Arc<S::Client>) {
        let mut current = self.current.lock().await;
        if current.uses(used) {
            (current.connection, current.server) = (None, index);
            current.changes += 1;
        }
    }

    /// The number of changes of the server in use.
    pub async fn changes(&self) -> u64 {
        self.current.lock().await.changes
    }

    /// The same, if `connection` is still in use.
    pub async fn changes_on(&self, connection: &Arc<S::Client>) -> Option<u64> {
        let current = self.current.lock().await;
        current.uses(connection).then_some(current.changes)
    }

    /// The server has answered.
    pub async fn succeeded(&self) {
        self.answered().await;
        self.report.reachable();
    }

    /// The server has answered. The caller reports whether it can be used.
    pub async fn answered(&self) {
        self.current.lock().await.failures = 0;
    }

    /// The next request goes to the next server.
    pub async fn drop_connection(&self, used: &Arc<S::Client>, reason: &str) -> Failure {
        let mut current = self.current.lock().await;
        if current.uses(used) {
            current.connection = None;
            self.use_next_server(&mut current, reason);
        }
        Failure::Unreachable
    }

    /// The server is overloaded, but the connection works: without another server it is kept, since
    /// a new one would add to the load.
    pub async fn avoid_server(&self, used: &Arc<S::Client>, reason: &str) -> Failure {
        if self.servers.count() > 1 {
            return self.drop_connection(used, reason).await;
        }
        let mut current = self.current.lock().await;
        if current.uses(used) {
            self.use_next_server(&mut current, reason);
        }
        Failure::Unreachable
    }

    /// Tries each server once, since an operator waits for the answer. Servers that are overloaded get
    /// the pauses that they ask for, as long as these end soon.
    pub async fn try_each_server<T, F>(&self, ask: impl Fn() -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let (begun, mut tried) = (Instant::now(), 0);
        loop {
            let answer = ask().await;
            tried += 1;
            let may_go_on =
                matches!(answer, Err(Failure::Unreachable) if self.report.unusable().is_none());
            let is_over = tried >= self.servers.count() && begun.elapsed() > LONGEST_PAUSES;
            if !may_go_on || is_over {
                return answer;
            }
        }
    }

    /// Uses the next server. Reports a failure only after all servers have failed.
    fn use_next_server(&self, current: &mut Current<S::Client>, reason: &str) -> Failure {
        let servers = self.servers.count().max(1);
        current.failures += 1;
        if current.failures >= servers {
            self.report.unreachable(&self.servers.unusable(current.server, reason));
        }
        if servers > 1 {
            current.server = (current.server + 1) % servers;
            current.changes += 1;
        }
        Failure::Unreachable
    }
}

/// How long an operator waits for servers that are overloaded. A pause that has begun is not cut short.
const LONGEST_PAUSES: Duration = Duration::from_secs(10);

/// Repeats `attempt` until it has a result, with a backoff up to `longest` in between.
pub async fn retry<T, F>(longest: Duration, attempt: impl Fn() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let mut backoff = Backoff::up_to(longest);
    loop {
        if let Some(result) = attempt().await {
            return result;
        }
        sleep(backoff.delay(random())).await;
    }
}
