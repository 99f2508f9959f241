//! Uses one server of a store at a time, and the next one once that fails.

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::sleep;

use super::backoff::Backoff;
use super::operator::Away;
use super::report::Report;
use crate::model::status::StoreState;

/// The servers of one store.
pub(in crate::store) trait Servers {
    /// What requests are sent through.
    type Client;

    fn count(&self) -> usize;

    /// Opens a connection to the server at `index`. The error contains no secrets.
    fn open(&self, index: usize) -> impl Future<Output = Result<Self::Client, String>>;

    /// What to report if no server can be used, the one at `index` for this reason.
    fn unusable(&self, index: usize, reason: &str) -> String;
}

/// The servers of one store, and the connection to the one in use.
pub(in crate::store) struct Failover<S: Servers> {
    pub(in crate::store) servers: S,
    pub(in crate::store) report: Report,
    current: Mutex<Current<S::Client>>,
}

struct Current<C> {
    connection: Option<Connection<C>>,
    /// Index of the server in use.
    server: usize,
    /// Counts the changes of the server in use.
    changes: u64,
    /// Counts connections.
    generation: u64,
    /// In a row, over all requests.
    failures: usize,
}

/// Shared, since a client is several kilobytes that every future would carry.
pub(in crate::store) struct Connection<C> {
    client: Arc<C>,
    generation: u64,
}

/// Why a request brought nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) enum Failure<R> {
    /// No server could be asked, or it could not answer; the report says more.
    Away,
    /// The server is reachable, and refuses.
    Refused(R),
}

impl<R> From<R> for Failure<R> {
    fn from(refusal: R) -> Self {
        Self::Refused(refusal)
    }
}

impl<C> Clone for Connection<C> {
    fn clone(&self) -> Self {
        Self { client: Arc::clone(&self.client), generation: self.generation }
    }
}

impl<C> Deref for Connection<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.client
    }
}

impl<C> Current<C> {
    /// Whether requests still go over `connection`: of several that fail on it, only the first leaves
    /// its server.
    fn uses(&self, connection: &Connection<C>) -> bool {
        self.connection.is_some() && self.generation == connection.generation
    }
}

impl<S: Servers> Failover<S> {
    /// Connects to nothing yet; the server at `first` will be the first.
    pub(in crate::store) fn new(servers: S, first: usize, report: Report) -> Self {
        let current =
            Current { connection: None, server: first, changes: 0, generation: 0, failures: 0 };
        Self { servers, report, current: Mutex::new(current) }
    }

    pub(in crate::store) async fn connection<R>(
        &self,
    ) -> Result<Connection<S::Client>, Failure<R>> {
        let mut current = self.current.lock().await;
        if let Some(connection) = &current.connection {
            return Ok(connection.clone());
        }
        match Box::pin(self.servers.open(current.server)).await {
            Ok(client) => {
                current.generation += 1;
                let (client, generation) = (Arc::new(client), current.generation);
                let connection = Connection { client, generation };
                current.connection = Some(connection.clone());
                Ok(connection)
            }
            Err(reason) => {
                self.move_on(&mut current, &reason);
                Err(Failure::Away)
            }
        }
    }

    /// How often another server was chosen so far.
    pub(in crate::store) async fn changes(&self) -> u64 {
        self.current.lock().await.changes
    }

    /// The same, if requests still go over `connection`.
    pub(in crate::store) async fn changes_on(
        &self,
        connection: &Connection<S::Client>,
    ) -> Option<u64> {
        let current = self.current.lock().await;
        current.uses(connection).then_some(current.changes)
    }

    /// The server has answered.
    pub(in crate::store) async fn succeeded(&self) {
        self.answered().await;
        self.report.reachable();
    }

    /// The server has answered. Whether the store can be used is for the caller to report.
    pub(in crate::store) async fn answered(&self) {
        self.current.lock().await.failures = 0;
    }

    /// The next request goes to the next server.
    pub(in crate::store) async fn drop_connection(
        &self,
        connection: &Connection<S::Client>,
        reason: &str,
    ) {
        let mut current = self.current.lock().await;
        if current.uses(connection) {
            current.connection = None;
            self.move_on(&mut current, reason);
        }
    }

    /// The server does not keep up, but its connection is sound: it is kept where there is no other
    /// server, since to open a new one would only add to the load.
    pub(in crate::store) async fn pass_over(
        &self,
        connection: &Connection<S::Client>,
        reason: &str,
    ) {
        if self.servers.count() > 1 {
            return self.drop_connection(connection, reason).await;
        }
        let mut current = self.current.lock().await;
        if current.uses(connection) {
            self.move_on(&mut current, reason);
        }
    }

    /// Asks each server before it gives up: a person waits for the answer.
    pub(in crate::store) async fn ask_each<T, R, F>(
        &self,
        ask: impl Fn() -> F,
    ) -> Result<Result<T, R>, Away>
    where
        F: Future<Output = Result<T, Failure<R>>>,
    {
        loop {
            match ask().await {
                Ok(answer) => return Ok(Ok(answer)),
                Err(Failure::Refused(refusal)) => return Ok(Err(refusal)),
                Err(Failure::Away) => {
                    if let StoreState::Waiting(why) = &*self.report.state().borrow() {
                        return Err(Away(why.clone()));
                    }
                }
            }
        }
    }

    /// One dead server of several is nothing to report.
    fn move_on(&self, current: &mut Current<S::Client>, reason: &str) {
        let servers = self.servers.count().max(1);
        current.failures += 1;
        if current.failures >= servers {
            self.report.away(&self.servers.unusable(current.server, reason));
        }
        if servers > 1 {
            current.server = (current.server + 1) % servers;
            current.changes += 1;
        }
    }
}

/// Repeats `attempt` until it has a result, with a backoff up to `longest` in between.
pub(in crate::store) async fn retry<T, F>(longest: Duration, attempt: impl Fn() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let mut backoff = Backoff::up_to(longest);
    loop {
        if let Some(result) = attempt().await {
            return result;
        }
        sleep(backoff.delay(rand::random())).await;
    }
}
