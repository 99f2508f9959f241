//! An open watch: its lines, and its signs of life.

use std::time::Duration;

use http_body_util::BodyExt;
use kube::client::Body;
use tokio::time::timeout;

use super::Shared;
use super::client::{Client, Connection, LONGEST};
use super::connect::failure;
use super::request::{self, Ask};
use crate::store::failover::Failure;
use crate::store::watch::Interrupted;

pub(super) struct Open {
    connection: Connection,
    body: Body,
    /// What of the body is read, but not taken.
    buffer: Vec<u8>,
    /// Whether it has sent anything: one that ends without a line is not opened again at once.
    pub(super) has_told: bool,
    /// How often in a row it sent nothing.
    silences: u32,
}

/// After this time without a line the server is asked for a sign of life.
const SILENCE: Duration = Duration::from_secs(30);
/// A live server sends something once a minute; after this many silences the watch is opened again.
const SILENCES: u32 = 5;

impl Shared {
    pub(super) async fn open(&self, ask: &Ask) -> Result<Open, Interrupted> {
        self.try_open(ask).await.map_err(|failure| self.client.interrupted(failure))
    }

    pub(super) async fn try_open(&self, ask: &Ask) -> Result<Open, Failure> {
        let (connection, response) = self.client.open(ask).await?;
        let (body, buffer) = (response.into_body(), Vec::new());
        Ok(Open { connection, body, buffer, has_told: false, silences: 0 })
    }
}

impl Open {
    /// Waits for lines; returns whether there may be any. A watch ends when its time is over.
    pub(super) async fn listen(&mut self, client: &Client) -> Result<bool, Interrupted> {
        loop {
            match timeout(SILENCE, self.more()).await {
                Ok(Ok(more)) => {
                    self.silences = 0;
                    self.has_told |= more;
                    return Ok(more);
                }
                Ok(Err(reason)) => return Err(self.broken(client, &reason).await),
                Err(_) => self.ask_for_sign_of_life(client).await?,
            }
        }
    }

    async fn ask_for_sign_of_life(&mut self, client: &Client) -> Result<(), Interrupted> {
        self.silences += 1;
        if client.once(&request::sign_of_life()).await == Err(Failure::Away) {
            return Err(Interrupted::Away);
        }
        if self.silences >= SILENCES {
            return Err(self.broken(client, "the watch on the nodes is silent").await);
        }
        Ok(())
    }

    async fn broken(&mut self, client: &Client, reason: &str) -> Interrupted {
        client.failed(&self.connection, reason).await;
        Interrupted::Away
    }

    /// Waits for more; returns whether there is any. Nothing is lost if it is not waited for.
    async fn more(&mut self) -> Result<bool, String> {
        let Some(frame) = self.body.frame().await else { return Ok(false) };
        let frame = frame.map_err(|error| failure(&error))?;
        if let Ok(data) = frame.into_data() {
            self.buffer.extend_from_slice(&data);
        }
        if self.buffer.len() > LONGEST {
            return Err(format!("a line of more than {LONGEST} bytes"));
        }
        Ok(true)
    }

    /// Lines that were taken, but not used.
    pub(super) fn put_back(&mut self, lines: &[u8]) {
        self.buffer.splice(..0, lines.iter().copied());
    }

    /// The lines that are complete, taken out.
    pub(super) fn take(&mut self) -> Vec<u8> {
        let end = self.buffer.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let rest = self.buffer.split_off(end);
        std::mem::replace(&mut self.buffer, rest)
    }
}
