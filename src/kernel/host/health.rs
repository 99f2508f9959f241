//! Asks for flanneld where its processes cannot be seen: it answers for its health.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// The port that flannel's manifests and chart give it.
const PORT: u16 = 8081;
/// The body of flanneld's answer; ours is another.
const ANSWER: &str = "flanneld is running";
/// On loopback, and a daemon waits for it at its start.
const TIMEOUT: Duration = Duration::from_millis(300);
/// An answer of flanneld's is shorter, in bytes.
const LONGEST: u64 = 4096;

/// The TCP port on which flanneld answers in this network, if it does.
pub(super) fn flanneld() -> Option<u16> {
    let answer = ask(SocketAddr::from((Ipv4Addr::LOCALHOST, PORT))).ok()?;
    answer.trim_end().ends_with(ANSWER).then_some(PORT)
}

fn ask(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(LONGEST).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
