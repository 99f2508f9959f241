//! A minimal HTTP server: GET over TCP for supervisors, and over a Unix socket for `tweedctl`.

use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use futures::future::{Abortable, Either};
use futures::stream::FuturesUnordered;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep_until, timeout};
use tweed_netlink::excerpt;

use crate::connections::{Connections, HasAsked};
use crate::listener::Listener;

pub type Response = hyper::Response<Full<Bytes>>;

/// A connection is closed if the whole request has not arrived within this time.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest time that a connection lasts, for clients that do not read the answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The longest request, in bytes; a longer one is rejected before all of it is in memory.
const LONGEST_REQUEST: usize = 16 << 10;
/// The longest answer that [`get_unix`] accepts, in bytes.
const LONGEST_ANSWER: usize = 256 << 20;

/// Answers each GET with the result of `route` for its path. Runs until dropped.
pub async fn serve<L: Listener, R: Future<Output = Response>>(
    listener: L,
    route: impl Fn(String) -> R,
) {
    let mut open = Connections::default();
    let mut answers = FuturesUnordered::new();
    let mut accept_after = Instant::now();
    loop {
        let accepts = L::REPLACES || !open.check_full();
        let accept = async {
            sleep_until(accept_after).await;
            listener.accept().await
        };
        tokio::select! {
            // A request that has arrived is read before a new connection may replace its own.
            biased;
            Some(_) = answers.next() => {}
            accepted = accept, if accepts => match accepted {
                Ok((connection, source)) => {
                    let (has_asked, registration) = open.open(source);
                    let answer = answer(connection, has_asked, &route);
                    answers.push(Abortable::new(answer, registration));
                }
                // Most likely, there are no free file descriptors until other connections end.
                Err(_) => accept_after = Instant::now() + ACCEPT_PAUSE,
            },
        }
    }
}

/// Sends a GET to the program behind the socket `path`, and returns status code and body.
///
/// # Errors
/// No program answers in time.
pub async fn get_unix(path: &Path, target: &str) -> io::Result<(u16, Bytes)> {
    let asked = ask(path, target);
    timeout(CONNECTION_TIMEOUT, asked).await.map_err(|_| io::ErrorKind::TimedOut)?
}

pub fn text(status: u16, body: &str) -> Response {
    response(status, "text/plain; charset=utf-8", body.to_owned().into_bytes())
}

/// Pretty-printed, with only printable characters, since people also read it on terminals.
pub fn json(status: u16, body: &impl Serialize) -> Response {
    match serde_json::to_string_pretty(body) {
        Ok(json) => {
            let json = excerpt::printable_json(json) + "\n";
            response(status, "application/json", json.into_bytes())
        }
        Err(error) => text(500, &format!("{error}\n")),
    }
}

pub fn html(body: &str) -> Response {
    response(200, "text/html; charset=utf-8", body.to_owned().into_bytes())
}

/// A stream of server-sent events that ends after these.
pub fn event_stream(events: &str) -> Response {
    response(200, "text/event-stream", events.to_owned().into_bytes())
}

pub fn not_found() -> Response {
    text(404, "not found\n")
}

fn response(status: u16, content_type: &'static str, body: Vec<u8>) -> Response {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

async fn answer<R: Future<Output = Response>>(
    connection: impl AsyncRead + AsyncWrite + Unpin + 'static,
    has_asked: HasAsked,
    route: impl Fn(String) -> R,
) {
    let service = service_fn(|request: Request<Incoming>| {
        has_asked.store(true, Ordering::Relaxed);
        let answer = match *request.method() {
            Method::GET | Method::HEAD => Either::Left(route(request.uri().path().to_owned())),
            _ => Either::Right(async { text(405, "only GET is supported\n") }),
        };
        async { Ok::<_, std::convert::Infallible>(answer.await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .max_buf_size(LONGEST_REQUEST)
        .keep_alive(false)
        .serve_connection(TokioIo::new(connection), service);
    // A client that disconnects needs no report.
    drop(timeout(CONNECTION_TIMEOUT, served).await);
}

async fn ask(path: &Path, target: &str) -> io::Result<(u16, Bytes)> {
    let stream = TokioIo::new(UnixStream::connect(path).await?);
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(stream).await.map_err(io::Error::other)?;
    let request = Request::get(target)
        .header(hyper::header::HOST, "localhost")
        .body(Full::<Bytes>::default())
        .map_err(io::Error::other)?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(io::Error::other)?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), LONGEST_ANSWER).collect().await;
        Ok((status, body.map_err(io::Error::other)?.to_bytes()))
    };
    let (exchanged, _) = tokio::join!(exchange, connection);
    exchanged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::bind_control;
    use std::os::unix::fs::PermissionsExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn echo(path: String) -> Response {
        if path == "/missing" { not_found() } else { text(200, &path) }
    }

    async fn with_server<T>(work: impl AsyncFnOnce(&Path) -> T) -> T {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("run/test.sock");
        let listener = bind_control(&socket).unwrap();
        tokio::select! {
            () = serve(listener, echo) => unreachable!(),
            result = work(&socket) => result,
        }
    }

    #[tokio::test]
    async fn a_path_is_answered_over_a_unix_socket() {
        with_server(async |socket| {
            let (status, body) = get_unix(socket, "/status").await.unwrap();
            assert_eq!((status, &body[..]), (200, &b"/status"[..]));
            assert_eq!(get_unix(socket, "/missing").await.unwrap().0, 404);
        })
        .await;
    }

    #[tokio::test]
    async fn only_get_is_accepted() {
        with_server(async |socket| {
            let mut stream = UnixStream::connect(socket).await.unwrap();
            stream
                .write_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
                .await
                .unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
        })
        .await;
    }

    #[tokio::test]
    async fn a_request_that_is_too_long_is_rejected() {
        with_server(async |socket| {
            let mut stream = UnixStream::connect(socket).await.unwrap();
            let request = format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}", "x".repeat(20 << 10));
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = [0; 13];
            stream.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"HTTP/1.1 431 ");
        })
        .await;
    }

    #[tokio::test]
    async fn json_contains_no_control_characters() {
        let body = json(200, &"\u{9b}2J\u{202e}").into_body().collect().await.unwrap();
        assert_eq!(body.to_bytes(), "\"\\u009b2J\\u202e\"\n");
    }

    #[tokio::test]
    async fn a_silent_client_delays_no_other_client() {
        with_server(async |socket| {
            let _silent = UnixStream::connect(socket).await.unwrap();
            assert_eq!(get_unix(socket, "/status").await.unwrap().0, 200);
        })
        .await;
    }

    #[tokio::test]
    async fn a_socket_on_which_another_process_answers_is_not_replaced() {
        with_server(async |socket| {
            let error = bind_control(socket).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        })
        .await;
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        std::fs::write(&path, "data").unwrap();
        assert_eq!(bind_control(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "data");
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_only_root_has_access() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("test.sock");
        drop(bind_control(&socket).unwrap());
        let _listener = bind_control(&socket).unwrap();
        let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
