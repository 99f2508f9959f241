//! An open watch: reads its lines, and detects a server that does not answer.

use std::time::Duration;

use http_body_util::BodyExt;
use kube::client::Body;
use tokio::time::timeout;
use tracing::debug;

use super::client::{Client, Connection, LONGEST};
use super::connect::failure;
use super::request::{self, ApiRequest};
use crate::failover::{Failure, Outcomes};

pub(super) struct Lines {
    /// What is watched, in sentences.
    plural: &'static str,
    connection: Connection,
    body: Body,
    buffer: Vec<u8>,
    /// The number of bytes at the start of the buffer that `next` has returned.
    used: usize,
    /// Whether it has sent an event: a watch that ends without one is reopened only after a pause.
    pub(super) has_events: bool,
    /// Whether it has ended before its time.
    pub(super) is_cut: bool,
    /// Consecutive timeouts without data.
    silences: u32,
}

/// After this time without data, a request checks whether the server answers.
const SILENCE: Duration = Duration::from_secs(30);
/// The number of timeouts after which the watch is reopened; a working server sends data once a
/// minute.
const SILENCES: u32 = 5;

impl<R: Outcomes> Client<R> {
    /// `plural`: what is watched, in sentences.
    pub(super) async fn watch(
        &self,
        ask: &ApiRequest,
        plural: &'static str,
    ) -> Result<Lines, Failure> {
        let (connection, response) = self.open(ask).await?;
        let (body, buffer) = (response.into_body(), Vec::new());
        Ok(Lines {
            plural,
            connection,
            body,
            buffer,
            used: 0,
            has_events: false,
            is_cut: false,
            silences: 0,
        })
    }
}

impl Lines {
    /// The next line; none when the watch has ended, as it does after its duration.
    pub(super) async fn next<R: Outcomes>(
        &mut self,
        client: &Client<R>,
    ) -> Result<Option<&[u8]>, Failure> {
        let length = loop {
            let rest = self.buffer.get(self.used..).unwrap_or_default();
            if let Some(length) = rest.iter().position(|byte| *byte == b'\n') {
                break length;
            }
            if !self.wait_for_data(client).await? {
                return Ok(None);
            }
        };
        let start = self.used;
        self.used += length + 1;
        Ok(self.buffer.get(start..start + length))
    }

    /// Returns false when the watch has ended.
    async fn wait_for_data<R: Outcomes>(&mut self, client: &Client<R>) -> Result<bool, Failure> {
        let more = loop {
            match timeout(SILENCE, self.more()).await {
                Ok(Ok(more)) => break more,
                Ok(Err(reason)) => return Err(self.cut(client, &reason).await),
                Err(_) => self.check_server(client).await?,
            }
        };
        self.silences = 0;
        if self.buffer.len() > LONGEST {
            let reason = format!("a line of more than {LONGEST} bytes");
            return Err(client.drop_connection(&self.connection, &reason).await);
        }
        Ok(more)
    }

    /// A proxy in front of the server cuts watches without data, some after 30 seconds: the server is
    /// unreachable only if it does not answer.
    async fn cut<R: Outcomes>(&mut self, client: &Client<R>, reason: &str) -> Failure {
        self.is_cut = true;
        debug!("the watch on the {} was cut: {reason}", self.plural);
        // A failure is reported there.
        drop(client.once(&request::version()).await);
        Failure::Unreachable
    }

    async fn check_server<R: Outcomes>(&mut self, client: &Client<R>) -> Result<(), Failure> {
        self.silences += 1;
        if client.once(&request::version()).await == Err(Failure::Unreachable) {
            return Err(Failure::Unreachable);
        }
        if self.silences >= SILENCES {
            let reason = format!("the watch on the {} received no data", self.plural);
            return Err(client.drop_connection(&self.connection, &reason).await);
        }
        Ok(())
    }

    /// Waits for more data; returns whether there is any. Cancel safe.
    async fn more(&mut self) -> Result<bool, String> {
        let Some(frame) = self.body.frame().await else { return Ok(false) };
        let frame = frame.map_err(|error| failure(&error))?;
        self.buffer.drain(..std::mem::take(&mut self.used));
        if let Ok(data) = frame.into_data() {
            self.buffer.extend_from_slice(&data);
        }
        Ok(true)
    }
}
