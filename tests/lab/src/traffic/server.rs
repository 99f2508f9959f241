//! The server side: echoes streams, and answers requests with a page.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Shared;
use crate::traffic::probe::Pair;
use crate::wait::is_silence;

/// A page without data for this time has failed; long, because a busy machine delays it, and drops
/// packets that TCP repeats after 1, 3 and 7 s.
pub(super) const PAGE_SILENCE: Duration = Duration::from_secs(15);
/// The size of a page in bytes: some packets of the maximum size.
pub(super) const PAGE: usize = 10_000;

/// Interval of checks for the end, in milliseconds.
const LOOK: u16 = 100;

/// Runs in a pod, on ports that the kernel chooses.
#[derive(Debug)]
pub(super) struct Server {
    streams: TcpListener,
    pages: TcpListener,
}

/// The addresses of the two listeners.
#[derive(Clone, Copy, Debug)]
pub(super) struct Targets {
    pub(super) stream: SocketAddr,
    pub(super) pages: SocketAddr,
}

impl Server {
    pub(super) fn bind(pair: &Pair) -> Result<Self> {
        let address = pair.to.address(pair.family)?;
        let listen = || {
            let listener = TcpListener::bind((address, 0))?;
            listener.set_nonblocking(true)?;
            Ok::<_, std::io::Error>(listener)
        };
        let both =
            pair.to.namespace().within(|| Ok::<_, std::io::Error>((listen()?, listen()?)))?;
        let (streams, pages) = both.with_context(|| format!("listening on {address}"))?;
        Ok(Self { streams, pages })
    }

    pub(super) fn targets(&self) -> Result<Targets> {
        Ok(Targets { stream: self.streams.local_addr()?, pages: self.pages.local_addr()? })
    }

    /// Each connection gets a thread: a stalled one must not block the others.
    pub(super) fn run(self, shared: &Arc<Shared>) -> Result<()> {
        let mut echoes = Vec::new();
        while shared.is_running() {
            let readable = |socket| PollFd::new(AsFd::as_fd(socket), PollFlags::POLLIN);
            poll(&mut [&self.streams, &self.pages].map(readable), PollTimeout::from(LOOK))?;
            while let Ok((stream, _)) = self.streams.accept() {
                let shared = Arc::clone(shared);
                echoes.push(std::thread::spawn(move || echo(stream, &shared)));
            }
            while let Ok((stream, _)) = self.pages.accept() {
                // The client counts pages that it does not get.
                std::thread::spawn(move || answer(stream).ok());
            }
        }
        // A client's error ends its stream only.
        for echo in echoes {
            drop(echo.join());
        }
        Ok(())
    }
}

/// Echoes on one listener, each connection in its own thread.
pub(super) fn echo_all(listener: &TcpListener, shared: &Arc<Shared>) -> Result<()> {
    listener.set_nonblocking(true)?;
    while shared.is_running() {
        poll(&mut [PollFd::new(listener.as_fd(), PollFlags::POLLIN)], PollTimeout::from(LOOK))?;
        while let Ok((stream, _)) = listener.accept() {
            let shared = Arc::clone(shared);
            // The client reports broken connections.
            std::thread::spawn(move || echo(stream, &shared).ok());
        }
    }
    Ok(())
}

fn echo(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_millis(LOOK.into())))?;
    stream.set_nodelay(true)?;
    let mut bytes = [0; 64];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(length) => stream.write_all(bytes.get(..length).unwrap_or_default())?,
            Err(error) if is_silence(&error) => {}
            Err(error) => return Err(error),
        }
        if !shared.is_running() {
            return Ok(());
        }
    }
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PAGE_SILENCE))?;
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut bytes = [0; 512];
        match stream.read(&mut bytes)? {
            0 => return Ok(()),
            length => request.extend_from_slice(bytes.get(..length).unwrap_or_default()),
        }
    }
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {PAGE}\r\n\r\n");
    stream.write_all(&[head.as_bytes(), &[b'.'; PAGE]].concat())
}
