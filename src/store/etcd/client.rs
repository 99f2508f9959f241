//! Sends requests to one etcd server at a time, with timeouts and pauses according to its latency.

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Error, KvClient, LeaseClient, ResponseHeader, WatchClient};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tweed_client::failover::{Failover, Failure, Outcomes, Refusal, Servers, retry};
use tweed_client::transport::no_answer;

use super::connect::{Credentials, EtcdOptions, Fault, describe, fault, open, shown};
use super::pace::{self, TIMEOUT, faded};
use crate::random::random_range;
use crate::store::report::Report;

/// A client with failover, because the library's own sends some of the requests to dead servers.
pub(super) struct Client(Failover<EtcdServers, Report>);

impl Deref for Client {
    type Target = Failover<EtcdServers, Report>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

pub(super) struct EtcdServers {
    options: EtcdOptions,
    latency: Mutex<Latency>,
}

struct Latency {
    took: Duration,
    seen: Instant,
    /// The number of changes of the server in use when it was measured.
    changes: u64,
}

impl Latency {
    /// The latency after this number of changes; unknown if the server was changed since.
    fn after(&self, changes: u64) -> Duration {
        if self.changes == changes { faded(self.took, self.seen.elapsed()) } else { Duration::ZERO }
    }
}

pub(super) struct Server(etcd_client::Client);

pub(super) type Connection = Arc<Server>;

/// The longest answer, in bytes, more than tens of thousands of leases. It limits memory use.
pub(super) const LONGEST_ANSWER: usize = 8 * 1024 * 1024;

/// The longest pause between retries. A node that waits longer than a busy server needs to recover
/// would be served last.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

impl Server {
    pub(super) fn kv(&self) -> KvClient {
        self.kv_of(LONGEST_ANSWER)
    }

    /// A client for answers of up to `longest` bytes; the library's default is some 24,000 leases.
    pub(super) fn kv_of(&self, longest: usize) -> KvClient {
        self.0.kv_client().max_decoding_message_size(longest)
    }

    pub(super) fn leases(&self) -> LeaseClient {
        self.0.lease_client()
    }

    pub(super) fn watches(&self) -> WatchClient {
        self.0.watch_client().max_decoding_message_size(LONGEST_ANSWER)
    }
}

impl Servers for EtcdServers {
    type Client = Server;

    fn count(&self) -> usize {
        self.options.endpoints.len()
    }

    async fn open(&self, index: usize) -> Result<Server, String> {
        let opened = timeout(TIMEOUT, open(&self.options, self.options.endpoint(index))).await;
        opened.unwrap_or_else(|_| Err(no_answer(TIMEOUT))).map(Server)
    }

    fn unusable(&self, index: usize, reason: &str) -> String {
        let endpoint = self.options.endpoint(index);
        format!("etcd at {}: {reason}{}", shown(endpoint), self.options.hint(endpoint, reason))
    }
}

impl EtcdOptions {
    fn endpoint(&self, index: usize) -> &str {
        self.endpoints.get(index).map_or("", String::as_str)
    }

    /// etcd names neither the user nor the keys.
    fn denied(&self, reason: &str) -> String {
        let user = match &self.credentials {
            Some(Credentials { user, .. }) => format!("user {user}"),
            None => "the user that the client certificate names".to_owned(),
        };
        let prefix = self.prefix.trim_end_matches('/');
        let right = format!("a role that may read and write the keys below {prefix}/");
        format!("etcd denies a request ({reason}): grant {user} {right}")
    }

    /// A server that requires a client certificate closes the connection without a message.
    fn hint(&self, endpoint: &str, reason: &str) -> &'static str {
        let encrypted = endpoint.starts_with("https://") || !endpoint.contains("://");
        let is_closed = CONNECTION_CLOSED.iter().any(|text| reason.contains(text));
        if encrypted && is_closed && self.cert_file.is_none() {
            " (does it require a client certificate? see etcd-certfile and etcd-keyfile)"
        } else {
            ""
        }
    }
}

impl Client {
    /// `random` selects the first server, so that nodes distribute over all servers.
    pub(super) fn new(options: EtcdOptions, random: usize) -> Self {
        let first = random.checked_rem(options.endpoints.len()).unwrap_or(0);
        let latency = Latency { took: Duration::ZERO, seen: Instant::now(), changes: 0 };
        let servers = EtcdServers { options, latency: Mutex::new(latency) };
        Self(Failover::starting_at(first, servers, Report::of("etcd", "leases")))
    }

    /// Retries until there is an answer.
    pub(super) async fn request<T, F>(&self, ask: impl Fn(Connection) -> F) -> Result<T, Refusal>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let ask = &ask;
        retry(LONGEST_PAUSE, || async move {
            match self.once(ask).await {
                Ok(answer) => {
                    self.report.has_subnet();
                    Some(Ok(answer))
                }
                // There is no lease without it. The server may have space again later, and the
                // permission may be granted.
                Err(Failure::Refused(refusal @ (Refusal::Invalid(_) | Refusal::Denied(_)))) => {
                    self.report.reachable();
                    self.report.refuses(&self.report.refused(refusal));
                    None
                }
                Err(Failure::Refused(refusal)) => Some(Err(refusal)),
                Err(Failure::Unreachable) => None,
            }
        })
        .await
    }

    pub(super) async fn once<T, F>(&self, ask: impl FnOnce(Connection) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let connection = self.connection().await?;
        let longest = pace::answer_timeout(self.latency().await, self.servers.count());
        let asked = Instant::now();
        let answer = timeout(longest, Box::pin(ask(connection.clone()))).await;
        self.report.request_ended(asked);
        self.note_latency(&connection, asked.elapsed()).await;
        match answer {
            Ok(Ok(answer)) => {
                self.succeeded().await;
                Ok(answer)
            }
            Ok(Err(error)) => Err(self.failed(&connection, &error).await),
            // Pings detect a dead server instead.
            Err(_) => Err(self.avoid_server(&connection, &no_answer(longest)).await),
        }
    }

    /// Pauses before a request that `waiting` other nodes send too, to distribute them over time.
    pub(super) async fn wait_among(&self, waiting: u32) {
        let longest = pace::wait(self.latency().await, waiting);
        sleep(longest.mul_f64(random_range(0.5..1.0))).await;
    }

    pub(super) async fn is_busy(&self) -> bool {
        pace::is_busy(self.latency().await)
    }

    /// Classifies `error`; if server or connection failed, the next request uses the next server.
    pub(super) async fn failed(&self, connection: &Connection, error: &Error) -> Failure {
        let refusal = match fault(error) {
            Fault::Answer(refusal) => refusal,
            Fault::NoToken(refusal) if self.servers.options.credentials.is_none() => refusal,
            Fault::Server => return self.avoid_server(connection, &describe(error)).await,
            // If authentication was enabled meanwhile, a new connection gets a token.
            Fault::NoToken(_) | Fault::Connection => {
                return self.drop_connection(connection, &describe(error)).await;
            }
        };
        self.answered().await;
        Failure::Refused(match refusal {
            Refusal::Invalid(_) => refusal,
            Refusal::Denied(reason) => Refusal::Denied(self.servers.options.denied(&reason)),
            refusal => {
                self.report.reachable();
                refusal
            }
        })
    }

    async fn latency(&self) -> Duration {
        let changes = self.changes().await;
        self.servers.latency.lock().await.after(changes)
    }

    /// Notes a latency. The noted value halves at most, since one quick answer does not mean an
    /// idle server. The latency of a server that is no longer in use is ignored.
    async fn note_latency(&self, connection: &Connection, took: Duration) {
        let Some(changes) = self.changes_on(connection).await else { return };
        let mut latency = self.servers.latency.lock().await;
        let took = took.max(latency.after(changes) / 2);
        *latency = Latency { took, seen: Instant::now(), changes };
    }
}

/// The library's errors when the server closes the connection.
const CONNECTION_CLOSED: [&str; 4] = ["operation was canceled", "fatal alert", "closed", "reset"];

pub(super) fn revision(header: Option<&ResponseHeader>) -> i64 {
    header.map_or(0, ResponseHeader::revision)
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
        assert_eq!(answer, Err(Failure::Unreachable));
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_fail_on_one_server_leave_it_once() {
        let client = client();
        tokio::join!(hanging(&client, 0), hanging(&client, 1), hanging(&client, 2));
        assert_eq!(client.changes().await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_latency_of_a_server_that_hung_does_not_count_for_the_next() {
        let client = client();
        let next = async {
            sleep(TIMEOUT + Duration::from_millis(500)).await;
            client.once(|_| async { Ok(()) }).await.unwrap();
        };
        tokio::join!(hanging(&client, 0), hanging(&client, 1), next);
        assert_eq!(client.latency().await, Duration::ZERO);
    }
}
