//! What the config says of a migration, and how each step is written into it.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Document, Mixing, Moment, Stage};
use crate::model::config::{self, Kind, NetworkConfig};
use crate::model::report::Quality;

/// A config as it stands. All that is known of a migration stands in it, so that anybody can take over.
#[derive(Clone, Debug)]
pub struct Course {
    pub config: NetworkConfig,
    pub document: Document,
    /// The store's, of the config key.
    pub revision: i64,
    pub under_way: Option<UnderWay>,
}

/// A migration that was started and not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnderWay {
    pub from: Kind,
    pub to: Kind,
    pub stage: Stage,
    pub paused: Option<Note>,
    /// Oldest first; only the last few are kept.
    pub history: Vec<Entry>,
}

/// Who did something, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Note {
    pub at: Moment,
    pub by: String,
}

/// A stage that was reached. Daemons do not read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Entry {
    #[serde(flatten)]
    pub note: Note,
    pub percent: u8,
    #[serde(default)]
    pub nodes: usize,
    /// How well packets travelled until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Quality>,
}

/// A change of the config; all a migration ever does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Turns `Mixed` on.
    Mix,
    Begin {
        to: Kind,
        stage: Stage,
    },
    /// To any stage, forward or back; a pause ends.
    Reach(Stage),
    Pause,
    /// Everybody is on `kind`, for good.
    Finish {
        kind: Kind,
        mixing: Mixing,
    },
}

/// Why a config cannot be migrated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Config(#[from] config::Error),
    #[error("the network config is no JSON object: {0}")]
    Json(#[from] serde_json::Error),
}

/// So many stages are remembered.
const HISTORY: usize = 16;

impl Course {
    pub fn parse(text: &str, revision: i64) -> Result<Self, Error> {
        let config = NetworkConfig::parse(text.as_bytes())?;
        let document = Document::parse(text)?;
        let under_way = config.rollout.as_ref().map(|rollout| {
            let own = document.object("Rollout");
            UnderWay {
                from: rollout.from,
                to: config.backend.kind,
                stage: Stage { percent: rollout.percent, nodes: rollout.nodes.clone() },
                paused: own.as_ref().and_then(|own| read(own, "Paused")),
                history: own.and_then(|own| read(&own, "History")).unwrap_or_default(),
            }
        });
        Ok(Self { config, document, revision, under_way })
    }

    /// The config that `step` makes of this one; `note` says whose step it is, and `before` how well
    /// packets travelled until then.
    pub fn after(&self, step: &Step, note: &Note, before: Option<Quality>) -> Document {
        let document = &self.document;
        match step {
            Step::Mix => document.with("Mixed", "true"),
            Step::Begin { to, stage } => {
                let from = json!({ "From": { "Type": self.config.backend.kind.as_str() } });
                let rollout = Document::parse(from.to_string()).unwrap_or_default();
                let rollout = reached(&rollout, stage, &[], &entry(stage, note, before));
                typed(document, *to).with("Rollout", rollout.text())
            }
            Step::Reach(stage) => {
                let history = self.under_way.as_ref().map_or(&[][..], |it| &it.history);
                let rollout = document.object("Rollout").unwrap_or_default();
                let rollout = reached(
                    &rollout.without("Paused"),
                    stage,
                    history,
                    &entry(stage, note, before),
                );
                document.with("Rollout", rollout.text())
            }
            Step::Pause => {
                let rollout = document.object("Rollout").unwrap_or_default();
                let rollout = rollout.with("Paused", &json!(note).to_string());
                document.with("Rollout", rollout.text())
            }
            Step::Finish { kind, mixing } => {
                let document = typed(document, *kind).without("Rollout");
                match mixing {
                    Mixing::On => document,
                    Mixing::Off => document.without("Mixed"),
                }
            }
        }
    }
}

/// What cannot be read was not written by us; it is of no use, and no harm.
fn read<T: for<'de> Deserialize<'de>>(rollout: &Document, key: &str) -> Option<T> {
    serde_json::from_str(rollout.get(key)?).ok()
}

fn typed(document: &Document, kind: Kind) -> Document {
    let backend = document.object("Backend").unwrap_or_default();
    let backend = backend.with("Type", &json!(kind.as_str()).to_string());
    document.with("Backend", backend.text())
}

fn entry(stage: &Stage, note: &Note, before: Option<Quality>) -> Entry {
    Entry { note: note.clone(), percent: stage.percent, nodes: stage.nodes.len(), before }
}

fn reached(rollout: &Document, stage: &Stage, history: &[Entry], entry: &Entry) -> Document {
    let kept = history.len().saturating_sub(HISTORY - 1);
    let history: Vec<&Entry> = history.iter().skip(kept).chain([entry]).collect();
    rollout
        .with("Percent", &stage.percent.to_string())
        .with("Nodes", &json!(stage.nodes).to_string())
        .with("History", &json!(history).to_string())
}
