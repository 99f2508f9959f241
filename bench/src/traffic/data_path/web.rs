//! A server of one small page, and clients that open a connection for each request.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{ScopedJoinHandle, scope};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeVal;
use tweed_lab::{Family, Pod};

/// The length of nginx's welcome page.
const PAGE: usize = 612;
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 612\r\nConnection: close\r\n\r\n";
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n";
const CLIENTS: usize = 32;
const SERVERS: usize = 8;
const LASTING: Duration = Duration::from_secs(1);
/// The interval, in microseconds, at which a server without clients checks whether it must end.
const LOOK_UP: i64 = 50_000;

pub(super) fn requests_per_second(from: &Pod, to: &Pod) -> Result<u64> {
    let address = (to.address(Family::V4)?, 0);
    let listener = to.namespace().within(|| TcpListener::bind(address))??;
    setsockopt(&listener, sockopt::ReceiveTimeout, &TimeVal::new(0, LOOK_UP))?;
    let (server, serving) = (listener.local_addr()?, AtomicBool::new(true));
    scope(|threads| {
        for _ in 0..SERVERS {
            threads.spawn(|| serve(&listener, &serving));
        }
        let asked = from.namespace().within(|| ask_in_parallel(server));
        serving.store(false, Ordering::SeqCst);
        asked?
    })
}

fn serve(listener: &TcpListener, serving: &AtomicBool) {
    while serving.load(Ordering::SeqCst) {
        if let Ok((client, _)) = listener.accept() {
            // A client that ends reports its own error.
            let _ = answer(client);
        }
    }
}

fn answer(mut client: TcpStream) -> Result<()> {
    // The connection inherits the timeout of the listener.
    client.set_read_timeout(None)?;
    let mut request = [0; 256];
    let length = client.read(&mut request)?;
    ensure!(length == REQUEST.len(), "a request of {length} bytes");
    Ok(client.write_all(&[HEAD, &[b'.'; PAGE]].concat())?)
}

/// A thread runs in the namespace of the thread that starts it.
fn ask_in_parallel(server: SocketAddr) -> Result<u64> {
    let start = Instant::now();
    let answered: u64 = scope(|threads| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| threads.spawn(|| ask_often(server))).collect();
        clients.into_iter().map(join).sum::<Result<u64>>()
    })?;
    let millis = u64::try_from(start.elapsed().as_millis())?;
    Ok(answered * 1000 / millis)
}

fn ask_often(server: SocketAddr) -> Result<u64> {
    let (start, mut answered) = (Instant::now(), 0);
    while start.elapsed() < LASTING {
        ask(server)?;
        answered += 1;
    }
    Ok(answered)
}

fn ask(server: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect(server).with_context(|| server.to_string())?;
    stream.write_all(REQUEST)?;
    let mut page = Vec::with_capacity(HEAD.len() + PAGE);
    stream.read_to_end(&mut page)?;
    ensure!(page.len() == HEAD.len() + PAGE, "a page of {} bytes", page.len());
    Ok(())
}

fn join(client: ScopedJoinHandle<'_, Result<u64>>) -> Result<u64> {
    client.join().map_err(|_| anyhow!("a client panicked"))?
}
