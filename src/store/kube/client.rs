//! Talks to one API server at a time, and to the next one once that fails.

use std::sync::Arc;
use std::time::Duration;

use hyper::{Response, StatusCode};
use kube::client::Body;
use rand::seq::SliceRandom;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::answer::{self, Refusal, Unread};
use super::connect::{failure, open};
use super::options::ApiOptions;
use super::request::Ask;
use crate::store::backoff::Backoff;
use crate::store::report::Report;

pub(super) struct Client {
    options: ApiOptions,
    /// In the order in which they are tried; none stands for the one that is configured elsewhere.
    servers: Vec<Option<String>>,
    current: Mutex<Current>,
    pub(super) report: Report,
}

struct Current {
    connection: Option<Connection>,
    /// Index of the server in use.
    server: usize,
    /// Counts connections, so that two requests that fail on one connection move on by one server.
    generation: u64,
    /// In a row, over all requests.
    failures: usize,
    /// Until then the server wants to be left alone.
    quiet_until: Option<Instant>,
}

#[derive(Clone)]
pub(super) struct Connection {
    /// Shared, since every future would carry it.
    client: Arc<kube::Client>,
    generation: u64,
}

/// Why a request brought nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// No server could be asked, or it could not answer; the report says more.
    Away,
    Refused(Refusal),
}

/// The server begins its answer sooner, unless it hangs.
const ANSWER: Duration = Duration::from_secs(15);

impl Client {
    pub(super) fn new(options: ApiOptions) -> Self {
        let mut servers: Vec<_> = options.urls.iter().cloned().map(Some).collect();
        if servers.is_empty() {
            servers.push(None);
        }
        // A cluster's nodes spread over all.
        servers.shuffle(&mut rand::rng());
        let current =
            Current { connection: None, server: 0, generation: 0, failures: 0, quiet_until: None };
        let report = Report::of("the API server");
        Self { options, servers, current: Mutex::new(current), report }
    }

    /// Asks until there is an answer. What we may not do is an answer only to who asks by [`once`](Self::once).
    pub(super) async fn request(&self, ask: &Ask) -> Result<Vec<u8>, Refusal> {
        let mut backoff = Backoff::default();
        loop {
            match self.once(ask).await {
                Ok(body) => return Ok(body),
                Err(Failure::Refused(Refusal::Denied(reason))) => self.report.lacks_subnet(&reason),
                Err(Failure::Refused(refusal)) => return Err(refusal),
                Err(Failure::Away) => {}
            }
            sleep(backoff.delay(rand::random())).await;
        }
    }

    /// Asks one server, once, for the whole answer.
    pub(super) async fn once(&self, ask: &Ask) -> Result<Vec<u8>, Failure> {
        self.once_within(ask, answer::LONGEST).await
    }

    /// The same, for an answer of at most `longest` bytes.
    pub(super) async fn once_within(&self, ask: &Ask, longest: usize) -> Result<Vec<u8>, Failure> {
        let (connection, response) = self.open(ask).await?;
        match timeout(ANSWER, answer::read(response.into_body(), longest)).await {
            Ok(Ok(body)) => Ok(body),
            Ok(Err(Unread::TooLarge)) => Err(Failure::Refused(Refusal::TooLarge(longest))),
            Ok(Err(Unread::Broken(reason))) => Err(self.failed(&connection, &reason).await),
            Err(_) => Err(self.failed(&connection, &no_answer()).await),
        }
    }

    /// Asks one server, once; what it goes on to say is for the caller to read.
    pub(super) async fn open(&self, ask: &Ask) -> Result<(Connection, Response<Body>), Failure> {
        self.keep_quiet().await;
        let connection = self.connection().await?;
        let request = ask.clone().map(Body::from);
        let response = match timeout(ANSWER, Box::pin(connection.client.send(request))).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.failed(&connection, &failure(&error)).await),
            Err(_) => return Err(self.failed(&connection, &no_answer()).await),
        };
        if response.status().is_success() {
            self.succeeded().await;
            return Ok((connection, response));
        }
        Err(self.refused(&connection, ask, response).await)
    }

    /// The next request goes to the next server.
    pub(super) async fn failed(&self, connection: &Connection, reason: &str) -> Failure {
        let mut current = self.current.lock().await;
        // Of several requests that fail on one connection, only the first leaves its server.
        if current.connection.is_some() && current.generation == connection.generation {
            current.connection = None;
            self.move_on(&mut current, reason);
        }
        Failure::Away
    }

    async fn succeeded(&self) {
        self.current.lock().await.failures = 0;
        self.report.reachable();
    }

    /// Judges an answer that is none.
    async fn refused(
        &self,
        connection: &Connection,
        ask: &Ask,
        response: Response<Body>,
    ) -> Failure {
        let status = response.status();
        let pause = answer::retry_after(response.headers());
        let body = timeout(ANSWER, answer::read(response.into_body(), answer::LONGEST)).await;
        let body = body.ok().and_then(Result::ok).unwrap_or_default();
        if let Some(pause) = pause.or_else(|| answer::is_throttled(status)) {
            self.current.lock().await.quiet_until = Some(Instant::now() + pause);
        }
        let (message, refusal) = answer::judge(status, ask, &body);
        match refusal {
            Some(refusal) => {
                self.succeeded().await;
                Failure::Refused(refusal)
            }
            // A server with too much to do is not away.
            None if status == StatusCode::TOO_MANY_REQUESTS => Failure::Away,
            None => self.failed(connection, &message).await,
        }
    }

    /// Not all nodes that were sent away together come back together.
    async fn keep_quiet(&self) {
        let quiet_until = self.current.lock().await.quiet_until;
        if let Some(until) = quiet_until.filter(|until| *until > Instant::now()) {
            sleep_until(until + JITTER.mul_f64(rand::random())).await;
        }
    }

    async fn connection(&self) -> Result<Connection, Failure> {
        let mut current = self.current.lock().await;
        if let Some(connection) = &current.connection {
            return Ok(connection.clone());
        }
        let url = self.servers.get(current.server).and_then(Option::as_deref);
        match Box::pin(open(&self.options, url)).await {
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

    /// One dead server of several is nothing to report.
    fn move_on(&self, current: &mut Current, reason: &str) {
        current.failures += 1;
        if current.failures >= self.servers.len() {
            match self.servers.get(current.server).and_then(Option::as_deref) {
                Some(url) => self.report.away(&format!("{url}: {reason}")),
                None => self.report.away(reason),
            }
        }
        current.server = (current.server + 1).checked_rem(self.servers.len()).unwrap_or(0);
    }
}

const JITTER: Duration = Duration::from_secs(1);

fn no_answer() -> String {
    format!("no answer within {} s", ANSWER.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_that_fail_on_one_server_leave_it_once() {
        let urls = [1, 2, 3].map(|port| format!("http://127.0.0.1:{port}")).to_vec();
        let client = Client::new(ApiOptions { urls, ..ApiOptions::default() });
        let connection = client.connection().await.unwrap();
        for _ in 0..3 {
            client.failed(&connection, "no answer").await;
        }
        assert_eq!(client.current.lock().await.server, 1);
    }
}
