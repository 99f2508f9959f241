//! The smallest HTTP there is: GET on a few paths, over TCP for supervisors and over a Unix socket for `tweedctl`.

use std::future::Future;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use futures::StreamExt;
use futures::future::Either;
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
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::time::{sleep, timeout};

pub type Response = hyper::Response<Full<Bytes>>;

/// So many connections are served at once; further ones wait.
const CONNECTIONS: usize = 64;
/// A client that says nothing for so long is dropped.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest answer that a client takes, in bytes.
const LONGEST_ANSWER: usize = 256 << 20;

/// Where connections come from.
pub trait Listener {
    type Connection: AsyncRead + AsyncWrite + Unpin + 'static;

    fn accept(&self) -> impl Future<Output = io::Result<Self::Connection>>;
}

impl Listener for TcpListener {
    type Connection = tokio::net::TcpStream;

    async fn accept(&self) -> io::Result<Self::Connection> {
        Self::accept(self).await.map(|(connection, _)| connection)
    }
}

impl Listener for UnixListener {
    type Connection = UnixStream;

    async fn accept(&self) -> io::Result<Self::Connection> {
        Self::accept(self).await.map(|(connection, _)| connection)
    }
}

/// Answers each GET with what `route` makes of its path. Runs until dropped.
pub async fn serve<R: Future<Output = Response>>(
    listener: impl Listener,
    route: impl Fn(String) -> R,
) {
    let mut connections = FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS => match accepted {
                Ok(connection) => connections.push(answer(connection, &route)),
                // Out of file descriptors, most likely: others must close theirs first.
                Err(_) => sleep(Duration::from_millis(100)).await,
            },
            Some(()) = connections.next() => {}
        }
    }
}

/// Binds `path` for root alone. A socket that nobody answers on any more is replaced.
///
/// # Errors
/// Somebody answers on it, or the path cannot be used.
pub fn bind_control(path: &Path) -> io::Result<UnixListener> {
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        let message = "another tweedd answers on it: stop it first, or give this one a --subnet-file of its own";
        return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    match std::fs::symlink_metadata(path) {
        Ok(file) if !file.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is there and no socket"));
        }
        Ok(_) => std::fs::remove_file(path)?,
        Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Asks the daemon behind the socket `path`: `get_unix(socket, "/status")` gives status code and body.
///
/// # Errors
/// Nobody answers, or not in time.
pub async fn get_unix(path: &Path, target: &str) -> io::Result<(u16, Bytes)> {
    let asked = ask(path, target);
    timeout(PATIENCE * 2, asked).await.map_err(|_| io::ErrorKind::TimedOut)?
}

pub fn text(status: u16, body: &str) -> Response {
    response(status, "text/plain; charset=utf-8", body.to_owned().into_bytes())
}

/// Pretty-printed: people read it too.
pub fn json(status: u16, body: &impl Serialize) -> Response {
    match serde_json::to_vec_pretty(body) {
        Ok(mut bytes) => {
            bytes.push(b'\n');
            response(status, "application/json", bytes)
        }
        Err(error) => text(500, &format!("{error}\n")),
    }
}

pub fn not_found() -> Response {
    text(404, "there is nothing here\n")
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
    route: impl Fn(String) -> R,
) {
    let service = service_fn(|request: Request<Incoming>| {
        let answer = match *request.method() {
            Method::GET | Method::HEAD => Either::Left(route(request.uri().path().to_owned())),
            _ => Either::Right(async { text(405, "only GET is understood\n") }),
        };
        async { Ok::<_, std::convert::Infallible>(answer.await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .keep_alive(false)
        .serve_connection(TokioIo::new(connection), service);
    // A client that went away in the middle is its own concern.
    drop(served.await);
}

async fn ask(path: &Path, target: &str) -> io::Result<(u16, Bytes)> {
    let stream = TokioIo::new(UnixStream::connect(path).await?);
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(stream).await.map_err(io::Error::other)?;
    let request = Request::get(target)
        .header(hyper::header::HOST, "tweedd")
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
    async fn only_get_is_understood() {
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
    async fn a_silent_client_keeps_nobody_waiting() {
        with_server(async |socket| {
            let _silent = UnixStream::connect(socket).await.unwrap();
            assert_eq!(get_unix(socket, "/status").await.unwrap().0, 200);
        })
        .await;
    }

    #[tokio::test]
    async fn a_socket_that_somebody_answers_on_is_not_taken() {
        with_server(async |socket| {
            let error = bind_control(socket).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        })
        .await;
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        std::fs::write(&path, "data").unwrap();
        assert_eq!(bind_control(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "data");
    }

    #[tokio::test]
    async fn a_socket_left_behind_is_replaced_and_is_for_root_alone() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("test.sock");
        drop(bind_control(&socket).unwrap());
        let _listener = bind_control(&socket).unwrap();
        let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
