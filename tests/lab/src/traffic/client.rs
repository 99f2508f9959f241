//! The client side of streams and requests.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Shared;
use super::progress::Progress;
use super::server::{PAGE, PAGE_SILENCE};
use crate::network::http;
use crate::traffic::probe::Pair;

const BETWEEN_MESSAGES: Duration = Duration::from_millis(100);
const BETWEEN_PAGES: Duration = Duration::from_millis(500);
/// A stream without data for this time is broken.
const SILENCE: Duration = Duration::from_secs(10);

/// Sends messages through a stream, and waits for each to be returned.
#[derive(Debug)]
pub(super) struct Caller {
    target: SocketAddr,
    stream: TcpStream,
    progress: Arc<Progress>,
}

/// Requests pages, each by its own connection.
#[derive(Debug)]
pub(super) struct Browser {
    pub(super) target: SocketAddr,
    pub(super) progress: Arc<Progress>,
}

impl Caller {
    pub(super) fn connect(
        pair: &Pair,
        target: SocketAddr,
        progress: Arc<Progress>,
    ) -> Result<Self> {
        let stream = pair.from.namespace().within(|| connect(target))?;
        Ok(Self { target, stream: stream.with_context(|| pair.to_string())?, progress })
    }

    /// Reconnects if the stream breaks.
    pub(super) fn run(mut self, shared: &Shared) {
        while shared.is_running() {
            let (turn, started) = (shared.turn(), Instant::now());
            self.progress.begin();
            match self.echo() {
                Ok(()) => {
                    shared.counters.echo(started.elapsed());
                    self.progress.complete();
                }
                // At the end, the server may stop first.
                Err(_) if !shared.is_running() => return,
                Err(_) => {
                    shared.counters.broken();
                    self.progress.fail();
                    self.reconnect(shared);
                }
            }
            shared.pause(turn, BETWEEN_MESSAGES.saturating_sub(started.elapsed()));
        }
    }

    fn echo(&mut self) -> std::io::Result<()> {
        let mut answer = [0; MESSAGE.len()];
        self.stream.write_all(MESSAGE)?;
        self.stream.read_exact(&mut answer)
    }

    fn reconnect(&mut self, shared: &Shared) {
        while shared.is_running() {
            if let Ok(stream) = connect(self.target) {
                self.stream = stream;
                return;
            }
            self.progress.fail();
            std::thread::sleep(BETWEEN_MESSAGES);
        }
    }
}

const MESSAGE: &[u8; 16] = b"is the peer up ?";

fn connect(target: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&target, SILENCE)
        .with_context(|| format!("connecting to {target}"))?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl Browser {
    pub(super) fn run(&self, shared: &Shared) {
        while shared.is_running() {
            let (turn, started) = (shared.turn(), Instant::now());
            self.progress.begin();
            match self.page() {
                Ok(()) => {
                    shared.counters.page();
                    self.progress.complete();
                }
                Err(_) if !shared.is_running() => return,
                Err(error) => {
                    eprintln!("page failed after {:.1?}: {error:#}", started.elapsed());
                    shared.counters.failed();
                    self.progress.fail();
                }
            }
            shared.pause(turn, BETWEEN_PAGES.saturating_sub(started.elapsed()));
        }
    }

    fn page(&self) -> Result<()> {
        let length = http::get_within(PAGE_SILENCE, self.target, "/")?.body.len();
        ensure!(length == PAGE, "{length} bytes from {}", self.target);
        Ok(())
    }
}
