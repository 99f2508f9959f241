//! One HTTP GET over a plain socket.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};

/// For a server that answers at once.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The response of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub body: String,
}

/// Sends the request from the namespace of the calling thread.
pub(crate) fn get(address: SocketAddr, path: &str) -> Result<Answer> {
    get_within(TIMEOUT, address, path)
}

/// `limit` is the longest time to connect, and the longest silence afterwards.
pub(crate) fn get_within(limit: Duration, address: SocketAddr, path: &str) -> Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&address, limit)
        .with_context(|| format!("connecting to {address}"))?;
    stream.set_read_timeout(Some(limit))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text).with_context(|| format!("reading http://{address}{path}"))?;
    parse(&text).with_context(|| format!("no HTTP answer from http://{address}{path}: {text:?}"))
}

fn parse(text: &str) -> Option<Answer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split_whitespace().nth(1)?.parse().ok()?;
    Some(Answer { status, body: body.to_owned() })
}
