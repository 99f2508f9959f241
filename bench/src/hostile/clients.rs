//! Slow clients of the health port: each begins a request and never completes it.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::join_all;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};
use tweed_lab::Family;

use super::scene::Scene;

const CLIENTS: u32 = 5000;
/// The number of source addresses of the clients, all in this prefix.
const SOURCES: u32 = 100;
const FIRST_SOURCE: u32 = 0x0a42_0001;
const PREFIX: &str = "10.66.0.0/24";
/// Open files of this process that are not connections of clients.
const OTHER_FILES: u64 = 1000;
const PORT: u16 = 8081;
const UNFINISHED: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: victim\r\nX-Slow: ";
/// A client that is dropped connects again after this pause.
const PAUSE: Duration = Duration::from_secs(1);

/// Returns how many connections were opened.
pub(super) fn attack(scene: &Scene, lasting: Duration) -> Result<u64> {
    allow_files(u64::from(CLIENTS) + OTHER_FILES)?;
    // The unknown source has every address of the prefix.
    scene.unknown.ip(format!("route add local {PREFIX} dev lo"))?;
    let target = SocketAddr::new(scene.victim.address(Family::V4)?, PORT);
    let runtime = Builder::new_current_thread().enable_all().build()?;
    scene.unknown.namespace().within(move || {
        let opened = Cell::new(0);
        let clients = (0..CLIENTS).map(|number| client(source(number), target, &opened));
        // The clients never end by themselves.
        let _ = runtime.block_on(async { timeout(lasting, join_all(clients)).await });
        opened.get()
    })
}

fn source(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(FIRST_SOURCE + number % SOURCES).into()
}

async fn client(source: IpAddr, target: SocketAddr, opened: &Cell<u64>) {
    loop {
        if let Ok(stream) = connect(source, target).await {
            opened.set(opened.get() + 1);
            let _ = wait_for_end(&stream).await;
        }
        sleep(PAUSE).await;
    }
}

async fn connect(source: IpAddr, target: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(source, 0))?;
    socket.connect(target).await
}

/// Sends the beginning of a request, and waits until the server closes the connection.
async fn wait_for_end(stream: &TcpStream) -> io::Result<()> {
    stream.writable().await?;
    stream.try_write(UNFINISHED)?;
    loop {
        stream.readable().await?;
        match stream.try_read(&mut [0; 256]) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

fn allow_files(wanted: u64) -> Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    ensure!(hard >= wanted, "{wanted} open files are needed: raise `ulimit -Hn`, which is {hard}");
    if soft >= wanted {
        return Ok(());
    }
    setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).context("raising the limit of open files")
}
