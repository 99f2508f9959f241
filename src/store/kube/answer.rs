//! What the API server answers: bodies, lines, and refusals.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::header::RETRY_AFTER;
use hyper::{HeaderMap, StatusCode};
use kube::client::Body;
use serde::Deserialize;

use super::connect::failure;
use super::request::Ask;
use crate::excerpt;

/// An answer that another try would not change: the server is reachable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("there is no such object")]
    Absent,
    #[error("there is such an object already")]
    Exists,
    /// The history asked for is forgotten, or still to come.
    #[error("there is no such history")]
    NoHistory,
    #[error("its answer has more than {0} bytes")]
    TooLarge(usize),
    /// The server takes no such request, from anybody and at any time.
    #[error("{0}")]
    Invalid(String),
    /// We may not do this.
    #[error("{0}")]
    Denied(String),
}

/// The object that tells why a request was refused.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    code: u16,
    #[serde(deserialize_with = "excerpt::deserialize_sentence")]
    message: String,
    details: Details,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Details {
    causes: Vec<Cause>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Cause {
    reason: String,
}

/// The lines of an answer that goes on and on.
pub(super) struct Lines {
    body: Body,
    buffer: Vec<u8>,
}

/// Of one answer, in bytes.
pub(super) const LONGEST: usize = 64 * 1024 * 1024;

/// Why an answer is not read.
pub(super) enum Unread {
    /// It ended too soon, and why.
    Broken(String),
    TooLarge,
}

/// A server that says nothing of how long it wants to be left alone.
const PAUSE: Duration = Duration::from_secs(1);
/// Who wants longer is asked all the same.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

impl Lines {
    pub(super) const fn of(body: Body) -> Self {
        Self { body, buffer: Vec::new() }
    }

    /// Waits for more; returns whether there is any. Nothing is lost if it is not waited for.
    pub(super) async fn more(&mut self) -> Result<bool, String> {
        let Some(frame) = self.body.frame().await else { return Ok(false) };
        let frame = frame.map_err(|error| failure(&error))?;
        if let Ok(data) = frame.into_data() {
            self.buffer.extend_from_slice(&data);
        }
        if self.buffer.len() > LONGEST {
            return Err(format!("a line of more than {LONGEST} bytes"));
        }
        Ok(true)
    }

    /// For who took more than it could use.
    pub(super) fn put_back(&mut self, lines: &[u8]) {
        self.buffer.splice(..0, lines.iter().copied());
    }

    /// The lines that are complete, taken out.
    pub(super) fn take(&mut self) -> Vec<u8> {
        let end = self.buffer.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let rest = self.buffer.split_off(end);
        std::mem::replace(&mut self.buffer, rest)
    }
}

/// The whole of an answer, up to `longest` bytes.
pub(super) async fn read(mut body: Body, longest: usize) -> Result<Vec<u8>, Unread> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Unread::Broken(failure(&error)))?;
        if let Ok(data) = frame.into_data() {
            bytes.extend_from_slice(&data);
        }
        if bytes.len() > longest {
            return Err(Unread::TooLarge);
        }
    }
    Ok(bytes)
}

/// So long the server wants to be left alone, if it says so.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST_PAUSE))
}

/// The pause after a refusal for want of time that names none.
pub(super) fn is_throttled(status: StatusCode) -> Option<Duration> {
    (status == StatusCode::TOO_MANY_REQUESTS).then_some(PAUSE)
}

/// What an answer of `status` says in words, and what it means if it is an answer at all.
pub(super) fn judge(status: StatusCode, ask: &Ask, body: &[u8]) -> (String, Option<Refusal>) {
    let told: Status = serde_json::from_slice(body).unwrap_or_default();
    let refusal = match status {
        StatusCode::NOT_FOUND => Some(Refusal::Absent),
        StatusCode::CONFLICT => Some(Refusal::Exists),
        StatusCode::FORBIDDEN => Some(Refusal::Denied(denied(ask, &told))),
        _ if told.lacks_history(status) => Some(Refusal::NoHistory),
        _ => is_final(status).then(|| Refusal::Invalid(told.in_words(status))),
    };
    (told.in_words(status), refusal)
}

/// Whether the fault lies in the request. A token may have run out, and a server with too much to
/// do may have time later.
fn is_final(status: StatusCode) -> bool {
    let may_pass =
        [StatusCode::UNAUTHORIZED, StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS];
    status.is_client_error() && !may_pass.contains(&status)
}

impl Status {
    /// Whether an event that ends a watch says that its history is forgotten, or still to come.
    pub(super) fn ends_history(&self) -> bool {
        StatusCode::from_u16(self.code).is_ok_and(|code| self.lacks_history(code))
    }

    pub(super) fn words(&self) -> &str {
        &self.message
    }

    fn in_words(&self, status: StatusCode) -> String {
        if self.message.is_empty() { status.to_string() } else { self.message.clone() }
    }

    /// A cluster restored from a backup counts again from before what we have seen.
    fn lacks_history(&self, code: StatusCode) -> bool {
        let is_ahead = |cause: &Cause| cause.reason == "ResourceVersionTooLarge";
        code == StatusCode::GONE || self.details.causes.iter().any(is_ahead)
    }
}

fn denied(ask: &Ask, told: &Status) -> String {
    let (method, path) = (ask.method(), ask.uri().path());
    let why = if told.message.is_empty() { String::new() } else { format!(": {}", told.message) };
    format!("the API server forbids {method} {path}{why}; docs/kubernetes.md lists what to grant")
}
