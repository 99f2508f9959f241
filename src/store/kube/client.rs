//! Asks the API server: one at a time, and none that wants to be left alone.

use std::ops::Deref;
use std::time::Duration;

use hyper::{Response, StatusCode};
use kube::client::Body;
use rand::seq::SliceRandom;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until, timeout};

use super::answer::{self, Refusal, Unread};
use super::connect::{ApiOptions, failure, open};
use super::request::Ask;
use crate::store::backoff::Backoff;
use crate::store::failover::{self, Failover, Servers, retry};
use crate::store::report::Report;

pub(super) struct Client {
    failover: Failover<ApiServers>,
    /// Until then the server wants to be left alone.
    quiet_until: Mutex<Option<Instant>>,
}

pub(super) struct ApiServers {
    options: ApiOptions,
    /// In the order in which they are tried; none stands for the one that is configured elsewhere.
    urls: Vec<Option<String>>,
}

/// A connection to one server.
pub(super) type Connection = failover::Connection<kube::Client>;

pub(super) type Failure = failover::Failure<Refusal>;

/// The server begins its answer sooner, unless it hangs.
const ANSWER: Duration = Duration::from_secs(15);

impl Servers for ApiServers {
    type Client = kube::Client;

    fn count(&self) -> usize {
        self.urls.len()
    }

    async fn open(&self, index: usize) -> Result<kube::Client, String> {
        open(&self.options, self.url(index)).await
    }

    fn unusable(&self, index: usize, reason: &str) -> String {
        self.url(index).map_or_else(|| reason.to_owned(), |url| format!("{url}: {reason}"))
    }
}

impl ApiServers {
    fn url(&self, index: usize) -> Option<&str> {
        self.urls.get(index).and_then(Option::as_deref)
    }
}

impl Client {
    pub(super) fn new(options: ApiOptions) -> Self {
        let mut urls: Vec<_> = options.urls.iter().cloned().map(Some).collect();
        if urls.is_empty() {
            urls.push(None);
        }
        // A cluster's nodes spread over all.
        urls.shuffle(&mut rand::rng());
        let servers = ApiServers { options, urls };
        let failover = Failover::new(servers, 0, Report::of("the API server"));
        Self { failover, quiet_until: Mutex::new(None) }
    }

    /// Asks until there is an answer. What we may not do is an answer only to who asks by [`once`](Self::once).
    pub(super) async fn request(&self, ask: &Ask) -> Result<Vec<u8>, Refusal> {
        retry(Backoff::LONGEST, || async move {
            match self.once(ask).await {
                Ok(body) => Some(Ok(body)),
                Err(Failure::Refused(Refusal::Denied(reason))) => {
                    self.report.lacks_subnet(&reason);
                    None
                }
                Err(Failure::Refused(refusal)) => Some(Err(refusal)),
                Err(Failure::Away) => None,
            }
        })
        .await
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
        let response = match timeout(ANSWER, Box::pin(connection.send(request))).await {
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
        self.drop_connection(connection, reason).await;
        Failure::Away
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
            *self.quiet_until.lock().await = Some(Instant::now() + pause);
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
        let quiet_until = *self.quiet_until.lock().await;
        if let Some(until) = quiet_until.filter(|until| *until > Instant::now()) {
            sleep_until(until + JITTER.mul_f64(rand::random())).await;
        }
    }
}

impl Deref for Client {
    type Target = Failover<ApiServers>;

    fn deref(&self) -> &Self::Target {
        &self.failover
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
        let connection = client.connection::<Refusal>().await.unwrap();
        for _ in 0..3 {
            client.failed(&connection, "no answer").await;
        }
        assert_eq!(client.changes().await, 1);
    }
}
