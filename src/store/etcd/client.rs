//! Talks to one etcd server at a time, and to the next one once that fails.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Error, KvClient, LeaseClient, ResponseHeader, WatchClient};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::answer::{Failure, Fault, Refusal, fault};
use super::connect::{EtcdOptions, describe, open, shown};
use super::pace::{TIMEOUT, breath, courtesy, faded, patience, turn};
use super::page::LONGEST_ANSWER;
use crate::store::backoff::Backoff;
use crate::store::report::Report;

/// A client with failover: the library's own sends a share of the requests to dead servers.
pub(super) struct Client {
    options: EtcdOptions,
    current: Mutex<Current>,
    pub(super) report: Report,
}

struct Current {
    connection: Option<Connection>,
    /// Index of the server in use.
    endpoint: usize,
    /// Counts connections, so that two requests that fail on one connection move on by one server.
    generation: u64,
    /// In a row, over all requests.
    failures: usize,
    /// How long this server took to answer, and when that was seen.
    latency: (Duration, Instant),
}

impl Current {
    /// Whether requests still go over `connection`: of several that fail on it, only the first leaves
    /// its server.
    fn uses(&self, connection: &Connection) -> bool {
        self.connection.is_some() && self.generation == connection.generation
    }

    fn latency(&self) -> Duration {
        let (latency, seen) = self.latency;
        faded(latency, seen.elapsed())
    }
}

#[derive(Clone)]
pub(super) struct Connection {
    /// Shared, since it is several kilobytes that every future would carry.
    client: Arc<etcd_client::Client>,
    generation: u64,
}

/// Between two tries: who waits longer than a busy server needs to recover is the last to be served.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

impl Connection {
    pub(super) fn kv(&self) -> KvClient {
        self.kv_of(LONGEST_ANSWER)
    }

    /// Takes answers of so many bytes; the library's own limit ends at some 24,000 leases.
    pub(super) fn kv_of(&self, longest: usize) -> KvClient {
        self.client.kv_client().max_decoding_message_size(longest)
    }

    pub(super) fn leases(&self) -> LeaseClient {
        self.client.lease_client()
    }

    pub(super) fn watches(&self) -> WatchClient {
        self.client.watch_client().max_decoding_message_size(LONGEST_ANSWER)
    }
}

impl Client {
    /// `random` chooses the first server, so that a cluster's nodes spread over all.
    pub(super) fn new(options: EtcdOptions, random: usize) -> Self {
        let endpoint = random.checked_rem(options.endpoints.len()).unwrap_or(0);
        let latency = (Duration::ZERO, Instant::now());
        let current = Current { connection: None, endpoint, generation: 0, failures: 0, latency };
        Self { options, current: Mutex::new(current), report: Report::of("etcd") }
    }

    /// Asks until there is an answer that can be gone by.
    pub(super) async fn request<T, F>(&self, ask: impl Fn(Connection) -> F) -> Result<T, Refusal>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut backoff = Backoff::up_to(LONGEST_PAUSE);
        loop {
            match self.once(&ask).await {
                Ok(answer) => {
                    self.report.has_subnet();
                    return Ok(answer);
                }
                // It cannot be done without, and there may be space again later.
                Err(Failure::Refused(Refusal::Invalid(reason))) => {
                    self.report.reachable();
                    self.report.lacks_subnet(&reason);
                }
                Err(Failure::Refused(refusal)) => return Err(refusal),
                Err(Failure::Away) => {}
            }
            sleep(backoff.delay(rand::random())).await;
        }
    }

    /// Asks one server, once.
    pub(super) async fn once<T, F>(&self, ask: impl FnOnce(Connection) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let connection = self.connection().await?;
        let patience = patience(self.latency().await, self.options.endpoints.len());
        let asked = Instant::now();
        let answer = timeout(patience, Box::pin(ask(connection.clone()))).await;
        self.note_latency(&connection, asked.elapsed()).await;
        match answer {
            Ok(Ok(answer)) => {
                self.succeeded().await;
                Ok(answer)
            }
            Ok(Err(error)) => Err(self.failed(&connection, &error).await),
            Err(_) => {
                self.pass_over(&connection, &no_answer(patience)).await;
                Err(Failure::Away)
            }
        }
    }

    /// A pause between two requests: none while the server answers briskly.
    pub(super) async fn breathe(&self) {
        sleep(breath(self.latency().await).mul_f64(rand::random())).await;
    }

    /// A longer one, before what can wait.
    pub(super) async fn stand_back(&self) {
        sleep(courtesy(self.latency().await).mul_f64(rand::random())).await;
    }

    /// Once more before a question that a whole crowd asks, neither all at once nor soon again.
    pub(super) async fn wait_for_turn(&self, crowd: u32) {
        let longest = turn(self.latency().await, crowd);
        sleep(longest.mul_f64(rand::random_range(0.5..1.0))).await;
    }

    pub(super) async fn is_busy(&self) -> bool {
        !courtesy(self.latency().await).is_zero()
    }

    pub(super) async fn succeeded(&self) {
        self.current.lock().await.failures = 0;
        self.report.reachable();
    }

    /// Judges `error`; if it is the server's or the connection's, the next request goes elsewhere.
    pub(super) async fn failed(&self, connection: &Connection, error: &Error) -> Failure {
        match fault(error) {
            // Whether the store can be used is for the caller to say, who knows what was refused.
            Fault::Answer(refusal @ Refusal::Invalid(_)) => {
                self.current.lock().await.failures = 0;
                return Failure::Refused(refusal);
            }
            Fault::Answer(refusal) => {
                self.succeeded().await;
                return Failure::Refused(refusal);
            }
            Fault::Server => self.pass_over(connection, &describe(error)).await,
            Fault::Connection => self.drop_connection(connection, &describe(error)).await,
        }
        Failure::Away
    }

    /// The next request goes to the next server.
    pub(super) async fn drop_connection(&self, connection: &Connection, reason: &str) {
        let mut current = self.current.lock().await;
        if current.uses(connection) {
            current.connection = None;
            self.move_on(&mut current, reason);
        }
    }

    /// The server does not keep up, but its connection is sound: it is kept where there is no other
    /// server, since to open a new one would only add to the load. A dead one is noticed by its pings.
    async fn pass_over(&self, connection: &Connection, reason: &str) {
        let mut current = self.current.lock().await;
        if current.uses(connection) {
            if self.options.endpoints.len() > 1 {
                current.connection = None;
            }
            self.move_on(&mut current, reason);
        }
    }

    async fn latency(&self) -> Duration {
        self.current.lock().await.latency()
    }

    /// One brisk answer does not yet make a server idle. A server that is no longer in use says
    /// nothing about the next one.
    async fn note_latency(&self, connection: &Connection, latency: Duration) {
        let mut current = self.current.lock().await;
        if current.uses(connection) {
            let latency = latency.max(current.latency() / 2);
            current.latency = (latency, Instant::now());
        }
    }

    async fn connection(&self) -> Result<Connection, Failure> {
        let mut current = self.current.lock().await;
        if let Some(connection) = &current.connection {
            return Ok(connection.clone());
        }
        let endpoint = self.options.endpoints.get(current.endpoint).map_or("", String::as_str);
        let opened = timeout(TIMEOUT, Box::pin(open(&self.options, endpoint))).await;
        match opened.unwrap_or_else(|_| Err(no_answer(TIMEOUT))) {
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
        let servers = self.options.endpoints.len().max(1);
        let endpoint = self.options.endpoints.get(current.endpoint).map_or("", String::as_str);
        current.failures += 1;
        if servers > 1 {
            current.endpoint = (current.endpoint + 1) % servers;
            current.latency.0 = Duration::ZERO;
        }
        if current.failures >= servers {
            let hint = self.hint(endpoint, reason);
            self.report.away(&format!("etcd at {}: {reason}{hint}", shown(endpoint)));
        }
    }

    /// A server that misses our certificate hangs up without a word of it.
    fn hint(&self, endpoint: &str, reason: &str) -> &'static str {
        let encrypted = endpoint.starts_with("https://") || !endpoint.contains("://");
        let hung_up = HUNG_UP.iter().any(|text| reason.contains(text));
        if encrypted && hung_up && self.options.cert_file.is_none() {
            " (does it ask for a client certificate? see etcd-certfile and etcd-keyfile)"
        } else {
            ""
        }
    }
}

/// What the library says when the other side ends the conversation.
const HUNG_UP: [&str; 4] = ["operation was canceled", "fatal alert", "closed", "reset"];

/// The store's revision as of an answer.
pub(super) fn revision(header: Option<&ResponseHeader>) -> i64 {
    header.map_or(0, ResponseHeader::revision)
}

fn no_answer(patience: Duration) -> String {
    format!("no answer within {} s", patience.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client() -> Client {
        let endpoints = [1, 2, 3].map(|port| format!("http://127.0.0.1:{port}")).to_vec();
        Client::new(EtcdOptions { endpoints, ..EtcdOptions::default() }, 0)
    }

    /// A request that the server never answers, `seconds` from now.
    async fn hanging(client: &Client, seconds: u64) {
        sleep(Duration::from_secs(seconds)).await;
        let answer = client.once(|_| std::future::pending::<Result<(), Error>>()).await;
        assert_eq!(answer, Err(Failure::Away));
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_fail_on_one_server_leave_it_once() {
        let client = client();
        tokio::join!(hanging(&client, 0), hanging(&client, 1), hanging(&client, 2));
        assert_eq!(client.current.lock().await.endpoint, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_hung_does_not_make_the_next_one_slow() {
        let client = client();
        let next = async {
            sleep(TIMEOUT + Duration::from_millis(500)).await;
            client.once(|_| async { Ok(()) }).await.unwrap();
        };
        tokio::join!(hanging(&client, 0), hanging(&client, 1), next);
        assert_eq!(client.latency().await, Duration::ZERO);
    }
}
