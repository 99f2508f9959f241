//! One TCP stream, without a limit of its rate.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::scope;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeVal;
use tweed_lab::{Family, Pod};

const LASTING: Duration = Duration::from_secs(1);
const CHUNK: usize = 128 << 10;
/// The stream must begin within this time, in seconds.
const TIMEOUT: i64 = 10;

pub(super) fn megabits_per_second(from: &Pod, to: &Pod) -> Result<u64> {
    let address = (to.address(Family::V4)?, 0);
    let listener = to.namespace().within(|| TcpListener::bind(address))??;
    setsockopt(&listener, sockopt::ReceiveTimeout, &TimeVal::new(TIMEOUT, 0))?;
    let sink = listener.local_addr()?;
    scope(|threads| {
        let received = threads.spawn(|| receive(&listener));
        from.namespace().within(|| send(sink))??;
        received.join().map_err(|_| anyhow!("the receiver panicked"))?
    })
}

fn send(sink: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect(sink).with_context(|| sink.to_string())?;
    let (start, chunk) = (Instant::now(), vec![0; CHUNK]);
    while start.elapsed() < LASTING {
        stream.write_all(&chunk)?;
    }
    Ok(())
}

/// Measures from the first byte to the last.
fn receive(listener: &TcpListener) -> Result<u64> {
    let (mut stream, _) = listener.accept().context("no stream came")?;
    let mut chunk = vec![0; CHUNK];
    let mut bytes = stream.read(&mut chunk)? as u64;
    let start = Instant::now();
    loop {
        match stream.read(&mut chunk)? as u64 {
            0 => break,
            length => bytes += length,
        }
    }
    let micros = u64::try_from(start.elapsed().as_micros())?.max(1);
    Ok(bytes * 8 / micros)
}
