//! Uses one server of a store at a time, and the next one after a failure.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::iter::successors;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::sleep;

use super::Unpublished;
use super::backoff::Backoff;
use super::operator::Unavailable;
use super::report::Report;
use super::watch::Interrupted;
use crate::random::random;

/// How the servers of a store are reached.
#[derive(Clone, Default)]
pub enum Transport<C> {
    #[default]
    Sockets,
    /// Servers in memory.
    Channels(Arc<OpenChannel<C>>),
}

/// Opens a connection to an endpoint, or returns why it cannot.
type OpenChannel<C> = dyn Fn(&str) -> Result<C, String> + Send + Sync;

impl<C> fmt::Debug for Transport<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sockets => "Sockets",
            Self::Channels(_) => "Channels",
        })
    }
}

impl<C> PartialEq for Transport<C> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Sockets, Self::Sockets) => true,
            (Self::Channels(open), Self::Channels(other)) => Arc::ptr_eq(open, other),
            (Self::Sockets, Self::Channels(_)) | (Self::Channels(_), Self::Sockets) => false,
        }
    }
}

impl<C> Eq for Transport<C> {}

/// The servers of one store.
pub(super) trait Servers {
    type Client;

    /// The beginning of the sentence that reports a refused list of all leases.
    const LIST_REFUSED: &str;

    fn count(&self) -> usize;

    /// Opens a connection to the server at `index`. The error contains no secrets.
    fn open(&self, index: usize) -> impl Future<Output = Result<Self::Client, String>>;

    /// The sentence that reports that no server can be used, the one at `index` for this reason.
    fn unusable(&self, index: usize, reason: &str) -> String;
}

/// The servers of one store, and the connection to the one in use.
pub(super) struct Failover<S: Servers> {
    pub(super) servers: S,
    pub(super) report: Report,
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
pub(super) enum Failure {
    /// No server could be reached, or it could not answer; see [`Report`].
    Unreachable,
    /// The server is reachable, and rejects the request.
    Refused(Refusal),
}

/// An answer that a retry on another connection would not change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
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

impl<S: Servers> Failover<S> {
    /// Does not connect yet. The server at `first` is used first.
    pub(super) fn starting_at(first: usize, servers: S, report: Report) -> Self {
        let current = Current { connection: None, server: first, changes: 0, failures: 0 };
        Self { servers, report, current: Mutex::new(current) }
    }

    pub(super) async fn connection(&self) -> Result<Arc<S::Client>, Failure> {
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
    pub(super) async fn open_connection(&self) -> Option<Arc<S::Client>> {
        self.current.lock().await.connection.clone()
    }

    /// The index of the server in use.
    pub(super) async fn server(&self) -> usize {
        self.current.lock().await.server
    }

    /// The same, if `connection` is still in use.
    pub(super) async fn server_of(&self, connection: &Arc<S::Client>) -> Option<usize> {
        let current = self.current.lock().await;
        current.uses(connection).then_some(current.server)
    }

    /// The next request goes to the server at `index`, although that of `used` is reachable.
    pub(super) async fn move_to(&self, index: usize, used: &Arc<S::Client>) {
        let mut current = self.current.lock().await;
        if current.uses(used) {
            (current.connection, current.server) = (None, index);
            current.changes += 1;
        }
    }

    /// The number of changes of the server in use.
    pub(super) async fn changes(&self) -> u64 {
        self.current.lock().await.changes
    }

    /// The same, if `connection` is still in use.
    pub(super) async fn changes_on(&self, connection: &Arc<S::Client>) -> Option<u64> {
        let current = self.current.lock().await;
        current.uses(connection).then_some(current.changes)
    }

    /// The server has answered.
    pub(super) async fn succeeded(&self) {
        self.answered().await;
        self.report.reachable();
    }

    /// The server has answered. The caller reports whether the store can be used.
    pub(super) async fn answered(&self) {
        self.current.lock().await.failures = 0;
    }

    /// The next request goes to the next server.
    pub(super) async fn drop_connection(&self, used: &Arc<S::Client>, reason: &str) -> Failure {
        let mut current = self.current.lock().await;
        if current.uses(used) {
            current.connection = None;
            self.use_next_server(&mut current, reason);
        }
        Failure::Unreachable
    }

    /// The server is overloaded, but the connection works: without another server it is kept, since
    /// a new one would add to the load.
    pub(super) async fn avoid_server(&self, used: &Arc<S::Client>, reason: &str) -> Failure {
        if self.servers.count() > 1 {
            return self.drop_connection(used, reason).await;
        }
        let mut current = self.current.lock().await;
        if current.uses(used) {
            self.use_next_server(&mut current, reason);
        }
        Failure::Unreachable
    }

    /// Tries each server once, since an operator waits for the answer.
    pub(super) async fn try_each_server<T, F>(&self, ask: impl Fn() -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        loop {
            match ask().await {
                Err(Failure::Unreachable) if self.report.unusable().is_none() => {}
                answer => return answer,
            }
        }
    }

    /// The error for the operator.
    pub(super) fn explained(&self, failure: Failure) -> Unavailable {
        let no_answer = || format!("no answer from {}", self.report.store);
        Unavailable(match failure {
            Failure::Unreachable => self.report.unusable().unwrap_or_else(no_answer),
            Failure::Refused(refusal) => self.refused(refusal),
        })
    }

    pub(super) fn refused(&self, refusal: Refusal) -> String {
        match refusal {
            Refusal::Denied(why) => why,
            refusal => format!("{} refuses: {refusal}", self.report.store),
        }
    }

    /// Notes whether this node's report was written.
    pub(super) fn published<T>(&self, written: Result<T, Failure>) -> Result<T, Unpublished> {
        match written {
            Ok(written) => {
                self.report.refuses_report(None);
                Ok(written)
            }
            Err(Failure::Refused(refusal)) => Err(self.unpublished(refusal)),
            Err(Failure::Unreachable) => {
                Err(Unpublished::Failed(format!("{} cannot be used", self.report.store)))
            }
        }
    }

    fn unpublished(&self, refusal: Refusal) -> Unpublished {
        if let Refusal::Invalid(why) | Refusal::Denied(why) = &refusal {
            self.report.refuses_report(Some(why));
            Unpublished::Refused(self.refused(refusal))
        } else {
            Unpublished::Failed(self.refused(refusal))
        }
    }

    /// The effect of a failed request for all leases on their history.
    pub(super) fn interrupted(&self, failure: Failure) -> Interrupted {
        match failure {
            Failure::Refused(Refusal::NoHistory | Refusal::Future) => return Interrupted::Gap,
            Failure::Refused(Refusal::Denied(why)) => self.report.withholds_leases(Some(&why)),
            Failure::Refused(refusal) => {
                let reason = format!("{}: {refusal}", S::LIST_REFUSED);
                self.report.withholds_leases(Some(&reason));
            }
            Failure::Unreachable => {}
        }
        Interrupted::Unreachable
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

pub(super) fn no_answer(timeout: Duration) -> String {
    format!("no answer within {} s", timeout.as_secs())
}

/// `message` with the innermost cause, which is the most specific.
pub(super) fn with_cause(message: &str, cause: Option<&(dyn StdError + 'static)>) -> String {
    let innermost = successors(cause, |error| (*error).source()).last().map(ToString::to_string);
    match innermost {
        Some(innermost) if !message.contains(&innermost) => format!("{message}: {innermost}"),
        Some(_) | None => message.to_owned(),
    }
}

/// Repeats `attempt` until it has a result, with a backoff up to `longest` in between.
pub(super) async fn retry<T, F>(longest: Duration, attempt: impl Fn() -> F) -> T
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
