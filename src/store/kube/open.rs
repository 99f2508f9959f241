//! A watch that is open: its lines, and its signs of life.

use std::time::Duration;

use tokio::time::timeout;

use super::Shared;
use super::answer::{Lines, Refusal};
use super::client::{Client, Connection, Failure};
use super::request::{self, Ask};
use crate::store::watch::Interrupted;

pub(super) struct Open {
    connection: Connection,
    pub(super) lines: Lines,
    /// Whether it has said anything: one that ends without a word is not opened again at once.
    pub(super) has_told: bool,
    /// How often in a row it said nothing.
    silences: u32,
}

/// After so much silence the server is asked for a sign of life.
const SILENCE: Duration = Duration::from_secs(30);
/// A server that lives says something once a minute; after so many silences the watch is opened anew.
const SILENCES: u32 = 5;

impl Shared {
    pub(super) async fn open(&self, ask: &Ask) -> Result<Open, Interrupted> {
        self.try_open(ask).await.map_err(|failure| self.interrupted(failure))
    }

    pub(super) async fn try_open(&self, ask: &Ask) -> Result<Open, Failure> {
        let (connection, response) = self.client.open(ask).await?;
        let lines = Lines::of(response.into_body());
        Ok(Open { connection, lines, has_told: false, silences: 0 })
    }

    /// What a request about all nodes that brought nothing means for their history.
    pub(super) fn interrupted(&self, failure: Failure) -> Interrupted {
        let report = &self.client.report;
        match failure {
            Failure::Refused(Refusal::NoHistory) => return Interrupted::Gap,
            Failure::Refused(Refusal::Denied(reason)) => report.away(&reason),
            Failure::Refused(refusal) => {
                report.away(&format!("the API server does not tell of nodes: {refusal}"));
            }
            Failure::Away => {}
        }
        Interrupted::Away
    }
}

impl Open {
    /// Waits for lines; returns whether there may be any. A watch ends when its time is over.
    pub(super) async fn listen(&mut self, client: &Client) -> Result<bool, Interrupted> {
        loop {
            match timeout(SILENCE, self.lines.more()).await {
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
}
