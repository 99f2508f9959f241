//! Responses of an API server, in Kubernetes' own form.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::header::{CONTENT_TYPE, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use super::fault::Page;

/// An error in a body ends the connection without a message.
pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;

pub(super) fn json(status: StatusCode, value: &Value) -> Response<Body> {
    let body = Full::new(Bytes::from(value.to_string())).map_err(|never| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = status;
    let kind = hyper::header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

pub(super) fn refusal(status: StatusCode, reason: &str, message: &str) -> Response<Body> {
    json(status, &self::status(status, reason, message))
}

pub(super) fn status(status: StatusCode, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": status.as_u16(),
    })
}

/// The requested version is newer than the server's.
pub(super) fn too_large(asked: u64, current: u64) -> Response<Body> {
    let message = format!("Too large resource version: {asked}, current: {current}");
    let mut status = status(StatusCode::GATEWAY_TIMEOUT, "Timeout", &message);
    status["details"] = json!({ "causes": [{ "reason": "ResourceVersionTooLarge" }] });
    json(StatusCode::GATEWAY_TIMEOUT, &status)
}

/// The body was not read to its end.
pub(super) fn entity_too_large(limit: usize) -> Response<Body> {
    let message = format!("Request entity too large: limit is {limit}");
    refusal(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", &message)
}

/// As of a proxy.
pub(super) fn page(Page { content_type, status, .. }: Page) -> Response<Body> {
    let words = match content_type {
        "application/json" => r#"{"status":"ok"}"#,
        _ => "<html>\n<body>Please log in.</body>\n</html>\n",
    };
    let words = Bytes::from_static(words.as_bytes());
    let mut response =
        Response::new(Full::new(words).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    let kind = hyper::header::HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Plain text, as a real server's priority and fairness sends it.
pub(super) fn throttled(retry_after: Option<u64>) -> Response<Body> {
    let words = Bytes::from_static(b"Too many requests, please try again later.");
    let body = Full::new(words).map_err(|never| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}
