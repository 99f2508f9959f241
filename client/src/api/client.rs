//! Sends requests to an API server, waits if it requests a pause, and classifies its answers.

use std::collections::BTreeMap;
use std::sync::{self, Arc, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Collected, Limited};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, RETRY_AFTER};
use hyper::{HeaderMap, Method, Response, StatusCode};
use kube::client::Body;
use kube::core::Status;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::info;
use tweed_netlink::excerpt;

use super::connect::{ApiOptions, Program, failure, open};
use super::newest::Newest;
use super::request::ApiRequest;
use crate::backoff::Backoff;
use crate::failover::{Failover, Failure, Outcomes, Refusal, Servers, retry};
use crate::random::{random, shuffle};
use crate::transport::no_answer;

/// A client of the API servers of one cluster.
pub type Client<R> = Failover<ApiServers, R>;

pub struct ApiServers {
    options: ApiOptions,
    program: Program,
    /// In the order in which they are used; `None` is the server of the kubeconfig or the cluster.
    urls: Vec<Option<String>>,
    /// The ends of the pauses that servers requested, by their indices.
    quiet_until: Mutex<BTreeMap<usize, Instant>>,
    busy: sync::Mutex<Busy>,
    newest: sync::Mutex<Newest>,
}

/// Since when servers have answered every read by asking for a pause.
#[derive(Default)]
struct Busy(Option<Instant>);

impl Busy {
    /// They do so again. Returns whether that lasts for so long that changes may be missed: while a watch
    /// is open, nothing is read.
    fn lasts(&mut self) -> bool {
        self.0.get_or_insert_with(Instant::now).elapsed() >= LONGEST_BUSY
    }
}

pub(super) type Connection = Arc<kube::Client>;

/// The timeout for the start of an answer, and for its body.
const ANSWER: Duration = Duration::from_secs(15);

pub(super) const LONGEST: usize = 64 * 1024 * 1024;

/// The pause if the server requests one without a duration.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause, even if the server requests a longer one.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Longer than such a pause.
const LONGEST_BUSY: Duration = Duration::from_secs(90);
/// The longest random addition to a pause, so that nodes do not retry together.
const JITTER: Duration = Duration::from_secs(1);

impl Servers for ApiServers {
    type Client = kube::Client;

    fn count(&self) -> usize {
        self.urls.len()
    }

    async fn open(&self, index: usize) -> Result<kube::Client, String> {
        open(&self.options, self.program, self.url(index)).await
    }

    fn unusable(&self, index: usize, reason: &str) -> String {
        self.url(index).map_or_else(|| reason.to_owned(), |url| format!("{url}: {reason}"))
    }
}

impl ApiServers {
    /// The newest event that was received of any object.
    pub(super) fn newest(&self) -> MutexGuard<'_, Newest> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn busy(&self) -> MutexGuard<'_, Busy> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn url(&self, index: usize) -> Option<&str> {
        self.urls.get(index).and_then(Option::as_deref)
    }

    /// The end of the pause that the server at `index` requested, if it is not over.
    async fn quiet_until(&self, index: usize) -> Option<Instant> {
        let until = self.quiet_until.lock().await.get(&index).copied();
        until.filter(|until| *until > Instant::now())
    }
}

impl<R: Outcomes> Client<R> {
    /// Does not connect yet.
    pub fn new(options: ApiOptions, program: Program, report: R) -> Self {
        let mut urls: Vec<_> = options.urls.iter().cloned().map(Some).collect();
        if urls.is_empty() {
            urls.push(None);
        }
        // Clients distribute over all servers.
        shuffle(&mut urls);
        let servers = ApiServers {
            options,
            program,
            urls,
            quiet_until: Mutex::default(),
            busy: sync::Mutex::default(),
            newest: sync::Mutex::default(),
        };
        Self::starting_at(0, servers, report)
    }

    /// For a caller that has found that the cluster was restored from a backup. Returns what its
    /// reading fails with.
    pub fn was_restored(&self) -> Failure {
        let generation = self.servers.newest().generation;
        self.reject_history(generation)
    }

    /// Notes that the cluster was restored from a backup: what was read of any kind, up to this
    /// `generation` of the newest event, is of another history. Returns what its reader fails with.
    pub(super) fn reject_history(&self, generation: u64) -> Failure {
        let mut newest = self.servers.newest();
        if newest.generation == generation {
            info!("the cluster was restored from a backup: reading everything again");
        }
        newest.forget(generation);
        Failure::Refused(Refusal::NoHistory)
    }

    /// Retries until there is an answer other than a denied permission.
    pub async fn request(&self, ask: &ApiRequest) -> Result<Bytes, Refusal> {
        retry(Backoff::LONGEST, || async move {
            match self.once(ask).await {
                Ok(body) => Some(Ok(body)),
                Err(Failure::Refused(Refusal::Denied(reason))) => {
                    self.report.refuses(&reason);
                    None
                }
                Err(Failure::Refused(refusal)) => Some(Err(refusal)),
                Err(Failure::Unreachable) => None,
            }
        })
        .await
    }

    /// Sends one request to one server, and reads the whole answer.
    pub async fn once(&self, ask: &ApiRequest) -> Result<Bytes, Failure> {
        self.once_within(ask, LONGEST).await
    }

    /// The same, for an answer of at most `longest` bytes.
    pub(super) async fn once_within(
        &self,
        ask: &ApiRequest,
        longest: usize,
    ) -> Result<Bytes, Failure> {
        let (connection, response) = self.open(ask).await?;
        let body = Limited::new(response.into_body(), longest).collect();
        let reason = match timeout(ANSWER, body).await {
            Ok(Ok(body)) => return Ok(body.to_bytes()),
            Ok(Err(error)) => {
                let Some(error) = error.downcast_ref() else {
                    let reason = format!("its answer has more than {longest} bytes");
                    return Err(Failure::Refused(Refusal::TooLarge(reason)));
                };
                failure(error)
            }
            Err(_) => no_answer(ANSWER),
        };
        Err(self.drop_connection(&connection, &reason).await)
    }

    /// Sends one request to one server; the caller reads the body.
    pub(super) async fn open(
        &self,
        ask: &ApiRequest,
    ) -> Result<(Connection, Response<Body>), Failure> {
        if let Some(until) = self.servers.quiet_until(self.server().await).await {
            sleep_until(until + JITTER.mul_f64(random())).await;
        }
        let connection = self.connection().await?;
        let reason = match self.send(&connection, ask).await {
            Ok(response) if !response.status().is_success() => {
                return Err(self.classify(&connection, ask, response).await);
            }
            Ok(response) => {
                let Some(page) = page(response.headers()) else {
                    *self.servers.busy() = Busy::default();
                    self.succeeded().await;
                    return Ok((connection, response));
                };
                page
            }
            Err(reason) => reason,
        };
        Err(self.drop_connection(&connection, &reason).await)
    }

    /// The start of the answer, or why there is none.
    async fn send(
        &self,
        connection: &Connection,
        ask: &ApiRequest,
    ) -> Result<Response<Body>, String> {
        let request = ask.clone().map(Body::from);
        let asked = Instant::now();
        let answer = timeout(ANSWER, Box::pin(connection.send(request))).await;
        self.report.request_ended(asked);
        answer.map_err(|_| no_answer(ANSWER))?.map_err(|error| failure(&error))
    }

    /// Sends a request on which nothing depends, if there is a connection. Its failure neither
    /// changes the server nor is reported, and delays no other request.
    pub async fn send_unnoticed(&self, ask: &ApiRequest) -> Result<(), Dropped> {
        if self.servers.quiet_until(self.server().await).await.is_some() {
            return Err(Dropped::Failed("the API server requested a pause".to_owned()));
        }
        let unreachable = || Dropped::Failed("the API server is unreachable".to_owned());
        let connection = self.open_connection().await.ok_or_else(unreachable)?;
        let response = self.send(&connection, ask).await.map_err(Dropped::Failed)?;
        let (status, page) = (response.status(), page(response.headers()));
        match self.verdict(ask, response).await {
            _ if status.is_success() => page.map_or(Ok(()), |page| Err(Dropped::Failed(page))),
            Verdict::Refused(refusal) => Err(Dropped::Refused(refusal)),
            // As of an admission webhook that does not answer: other requests may succeed.
            Verdict::Failed(text) if status.is_server_error() => {
                Err(Dropped::Refused(Refusal::Invalid(text)))
            }
            Verdict::Failed(text) => Err(Dropped::Failed(text)),
            Verdict::Busy => Err(Dropped::Failed(status.to_string())),
        }
    }

    async fn classify(
        &self,
        connection: &Connection,
        ask: &ApiRequest,
        response: Response<Body>,
    ) -> Failure {
        if let Some(pause) = pause(response.status(), response.headers()) {
            self.note_pause(connection, pause).await;
        }
        match self.verdict(ask, response).await {
            Verdict::Refused(refusal) => {
                self.succeeded().await;
                Failure::Refused(refusal)
            }
            // A busy server is not unreachable, unless that lasts.
            Verdict::Busy => {
                self.leave_busy(connection).await;
                if ask.method() == Method::GET && self.servers.busy().lasts() {
                    self.report.unreachable("it is overloaded, and asks clients to wait");
                }
                Failure::Unreachable
            }
            Verdict::Failed(text) => self.drop_connection(connection, &text).await,
        }
    }

    /// Of several requests on one connection, the first one that is refused notes the pause.
    async fn note_pause(&self, connection: &Connection, pause: Duration) {
        if let Some(server) = self.server_of(connection).await {
            self.servers.quiet_until.lock().await.insert(server, Instant::now() + pause);
        }
    }

    /// Uses another server instead of that of `connection`, if one has requested no pause.
    async fn leave_busy(&self, connection: &Connection) {
        let Some(server) = self.server_of(connection).await else { return };
        let count = self.servers.count();
        for next in (1..count).map(|step| (server + step) % count) {
            if self.servers.quiet_until(next).await.is_none() {
                return self.move_to(next, connection).await;
            }
        }
    }

    async fn verdict(&self, ask: &ApiRequest, response: Response<Body>) -> Verdict {
        let status = response.status();
        let answer = read_status(response).await;
        let message = excerpt::sentence(&answer.message);
        let text = if message.is_empty() { status.to_string() } else { message.clone() };
        Verdict::Refused(match status {
            StatusCode::NOT_FOUND if answer.reason == "NotFound" => Refusal::Absent,
            // Of a proxy in front of the server, which knows no object.
            StatusCode::NOT_FOUND => return Verdict::Failed(text),
            StatusCode::CONFLICT => Refusal::Exists,
            StatusCode::FORBIDDEN => Refusal::Denied(self.denied(ask, &message)),
            StatusCode::GONE => Refusal::NoHistory,
            _ if is_future(&answer) => Refusal::Future,
            StatusCode::TOO_MANY_REQUESTS => return Verdict::Busy,
            // A retry may help, as after an expired token.
            StatusCode::UNAUTHORIZED | StatusCode::REQUEST_TIMEOUT => return Verdict::Failed(text),
            _ if status.is_client_error() => Refusal::Invalid(text),
            _ => return Verdict::Failed(text),
        })
    }

    fn denied(&self, ask: &ApiRequest, message: &str) -> String {
        let (method, path) = (ask.method(), ask.uri().path());
        let why = if message.is_empty() { String::new() } else { format!(": {message}") };
        let document = self.servers.program.permissions;
        format!(
            "the API server forbids {method} {path}{why}; {document} lists the permissions to grant"
        )
    }
}

/// Why a request on which nothing depends had no effect.
pub enum Dropped {
    Refused(Refusal),
    /// A retry may succeed soon.
    Failed(String),
}

/// What an answer other than success means.
enum Verdict {
    Refused(Refusal),
    /// The server asks clients to wait.
    Busy,
    /// The server failed, or accepts the account of the connection no more.
    Failed(String),
}

/// The body of an answer; empty if it cannot be read.
async fn read_status(response: Response<Body>) -> Status {
    let body = Limited::new(response.into_body(), LONGEST).collect();
    let body = timeout(ANSWER, body).await.ok().and_then(Result::ok);
    let body = body.map(Collected::to_bytes).unwrap_or_default();
    serde_json::from_slice(&body).unwrap_or_default()
}

/// What is wrong with a successful answer that a proxy sent instead of an API server.
fn page(headers: &HeaderMap) -> Option<String> {
    let content_type = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    let is_page = content_type.starts_with("text/html");
    is_page.then(|| {
        format!("its answer is {}, not that of an API server", excerpt::value(content_type))
    })
}

/// The pause that the server requests, if any.
fn pause(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let asked = seconds.map(|seconds| Duration::from_secs(seconds).min(LONGEST_PAUSE));
    asked.or_else(|| (status == StatusCode::TOO_MANY_REQUESTS).then_some(PAUSE))
}

/// Whether `answer` reports that the requested history is compacted, or in the future: versions
/// restart at lower numbers in a cluster restored from a backup.
pub(super) fn lacks_history(code: u16, answer: &Status) -> bool {
    code == StatusCode::GONE.as_u16() || is_future(answer)
}

fn is_future(answer: &Status) -> bool {
    let mut causes = answer.details.iter().flat_map(|details| &details.causes);
    causes.any(|cause| cause.reason == "ResourceVersionTooLarge")
        // Of a list at a version, before Kubernetes 1.34.
        || answer.message.contains("required revision is a future revision")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_only_asks_to_wait_is_unreachable_after_a_while() {
        let mut busy = Busy::default();
        assert!(!busy.lasts());
        tokio::time::advance(LONGEST_PAUSE + JITTER).await;
        assert!(!busy.lasts());
        tokio::time::advance(LONGEST_PAUSE).await;
        assert!(busy.lasts());
    }

    const PROGRAM: Program = Program { agent: "test", flags: "", permissions: "" };

    struct Unheard;

    impl Outcomes for Unheard {
        fn reachable(&self) {}

        fn unreachable(&self, _reason: &str) {}

        fn unusable(&self) -> Option<String> {
            None
        }

        fn refuses(&self, _sentence: &str) {}

        fn request_ended(&self, _asked: Instant) {}
    }

    #[tokio::test]
    async fn requests_that_fail_on_one_server_leave_it_once() {
        let urls = [1, 2, 3].map(|port| format!("http://127.0.0.1:{port}")).to_vec();
        let client = Client::new(ApiOptions { urls, ..ApiOptions::default() }, PROGRAM, Unheard);
        let connection = client.connection().await.unwrap();
        for _ in 0..3 {
            client.drop_connection(&connection, "no answer").await;
        }
        assert_eq!(client.changes().await, 1);
    }
}
