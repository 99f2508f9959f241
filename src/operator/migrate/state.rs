//! The state of a migration in the config, and how each step changes it.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, de::Error};
use serde_json::json;

use super::document::Document;
use crate::model::config::{self, BackendType, NetworkConfig, Rollout};
use crate::model::report::Quality;

/// The config holds the whole state of a migration, so any operator can continue it.
#[derive(Clone, Debug)]
pub(super) struct MigrationState {
    pub(super) config: NetworkConfig,
    pub(super) document: Document,
    /// The store's revision of the config key. In Kubernetes, also a change of another key or of a
    /// label of the ConfigMap increases it: only another text is another config.
    pub(super) revision: i64,
    pub(super) under_way: Option<UnderWay>,
}

/// A migration that was started and not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnderWay {
    pub(super) from: BackendType,
    pub(super) to: BackendType,
    pub(super) stage: Stage,
    pub(super) paused: Option<Note>,
    /// Oldest first; only the last few are kept.
    pub(super) history: Vec<Reached>,
}

/// The nodes that change to the new backend: those whose hash is below a percentage, and those that
/// are named. A hash below 7 is not 7 % of the nodes: [`super::cluster::ClusterView::stage_of`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stage {
    pub(super) percent: u8,
    pub(super) nodes: Vec<String>,
}

/// An author, and the time of writing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Note {
    #[serde(deserialize_with = "timestamp")]
    pub(super) at: Timestamp,
    pub(super) by: String,
}

/// A recorded stage. Daemons do not read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Reached {
    #[serde(flatten)]
    pub(super) note: Note,
    pub(super) percent: u8,
    #[serde(default)]
    pub(super) nodes: usize,
    /// Loss and latency before this stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) before: Option<Quality>,
}

/// A change of the config; a migration makes no other changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Turns `Mixed` on.
    Mix,
    Begin {
        to: BackendType,
        stage: Stage,
    },
    /// Any stage, forward or back; this ends a pause.
    Reach(Stage),
    Pause,
    /// All nodes are on `kind`, permanently, with or without `Mixed`.
    Finish {
        kind: BackendType,
        mixed: bool,
    },
}

/// The number of stages that the config keeps.
pub(super) const HISTORY: usize = 16;

/// The shares of the nodes in the stages after the canaries, in percent.
pub(super) const STEPS: [u8; 3] = [25, 50, ALL];
pub(super) const ALL: u8 = 100;

impl MigrationState {
    pub(super) fn parse(text: &str, revision: i64) -> Result<Self, config::Invalid> {
        let config = NetworkConfig::parse(text.as_bytes())?;
        let document = Document::parse(text)?;
        let under_way = config.rollout.as_ref().map(|rollout| {
            let written = document.object("Rollout").unwrap_or_default();
            UnderWay {
                from: rollout.from,
                to: config.backend.kind,
                stage: Stage { percent: rollout.percent, nodes: rollout.nodes.clone() },
                paused: read(&written, "Paused"),
                history: read(&written, "History").unwrap_or_default(),
            }
        });
        Ok(Self { config, document, revision, under_way })
    }

    /// The config after `step`; `before` is the loss and latency before the step.
    pub(super) fn after(&self, step: &Step, note: &Note, before: Option<Quality>) -> Document {
        let document = &self.document;
        let rollout = document.object("Rollout").unwrap_or_default();
        match step {
            Step::Mix => document.with("Mixed", "true"),
            Step::Begin { to, stage } => {
                let from = json!({ "From": { "Type": self.config.backend.kind.as_str() } });
                let rollout = Document::parse(from.to_string()).unwrap_or_default();
                let rollout = self.reached(&rollout, stage, note, before);
                with_backend(document, *to).with("Rollout", rollout.text())
            }
            Step::Reach(stage) => {
                let rollout = self.reached(&rollout.without("Paused"), stage, note, before);
                document.with("Rollout", rollout.text())
            }
            Step::Pause => {
                let rollout = rollout.with("Paused", &json!(note).to_string());
                document.with("Rollout", rollout.text())
            }
            Step::Finish { kind, mixed } => {
                let document = with_backend(document, *kind).without("Rollout");
                if *mixed { document } else { document.without("Mixed") }
            }
        }
    }

    /// `rollout` at `stage`, which is added to the history.
    fn reached(
        &self,
        rollout: &Document,
        stage: &Stage,
        note: &Note,
        before: Option<Quality>,
    ) -> Document {
        let Stage { percent, nodes } = stage;
        let reached = Reached { note: note.clone(), percent: *percent, nodes: nodes.len(), before };
        let recorded = self.under_way.as_ref().map_or(&[][..], |it| &it.history);
        let dropped = recorded.len().saturating_sub(HISTORY - 1);
        let history: Vec<&Reached> = recorded.iter().skip(dropped).chain([&reached]).collect();
        rollout
            .with("Percent", &percent.to_string())
            .with("Nodes", &json!(nodes).to_string())
            .with("History", &json!(history).to_string())
    }

    /// The differences from the config `before`, such as `Rollout.Percent: 25 → 50`.
    pub(super) fn changes(&self, before: &Self) -> Vec<String> {
        let mut changes = Vec::new();
        list_changes("", &before.document, &self.document, &mut changes);
        changes
    }

    /// The operator that changed `before` to this config, if the config names one.
    pub(super) fn author(&self, before: &Self) -> Option<&Note> {
        let (now, known) = (self.under_way.as_ref()?, before.under_way.as_ref());
        let paused = now.paused.as_ref();
        let paused = paused.filter(|_| known.is_none_or(|it| it.paused.is_none()));
        let last = now.history.last();
        let last = last.filter(|last| known.is_none_or(|it| !it.history.contains(last)));
        paused.or(last.map(|reached| &reached.note))
    }
}

impl Stage {
    #[must_use]
    pub(super) fn at(&self, percent: u8) -> Self {
        Self { percent, nodes: self.nodes.clone() }
    }

    /// The default stage before: fewer nodes, then the canaries alone, then no node.
    #[must_use]
    pub(super) fn previous(&self) -> Self {
        match STEPS.into_iter().rfind(|step| *step < self.percent) {
            Some(percent) => self.at(percent),
            None if self.percent > 0 => self.at(0),
            None => Self::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.percent == 0 && self.nodes.is_empty()
    }

    pub(super) const fn is_all(&self) -> bool {
        self.percent >= ALL
    }

    /// The command that continues from this stage.
    pub(super) const fn next_command(&self) -> &'static str {
        if self.is_all() { "tweedctl migrate finish" } else { "tweedctl migrate next" }
    }

    pub(super) fn rollout(&self, from: BackendType) -> Rollout {
        Rollout { from, percent: self.percent, nodes: self.nodes.clone() }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.nodes.join(", ");
        match (self.percent, nodes.as_str()) {
            (0, "") => f.write_str("no node"),
            (0, nodes) => f.write_str(nodes),
            (ALL.., _) => f.write_str("all nodes"),
            (percent, "") => write!(f, "Percent {percent}"),
            (percent, nodes) => write!(f, "Percent {percent} and {nodes}"),
        }
    }
}

/// A value in an unknown form, written by another program, counts as absent.
fn read<T: for<'de> Deserialize<'de>>(rollout: &Document, key: &str) -> Option<T> {
    serde_json::from_str(rollout.get(key)?).ok()
}

/// Accepts only the form that tweedctl writes: universal time, in seconds.
fn timestamp<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    let text = String::deserialize(deserializer)?;
    let time = text.parse::<Timestamp>().ok();
    time.filter(|time| time.strftime("%FT%TZ").to_string() == text)
        .ok_or_else(|| D::Error::custom("not a time like 2026-11-21T14:02:09Z"))
}

fn with_backend(document: &Document, kind: BackendType) -> Document {
    let backend = document.object("Backend").unwrap_or_default();
    let backend = backend.with("Type", &json!(kind.as_str()).to_string());
    document.with("Backend", backend.text())
}

fn list_changes(prefix: &str, before: &Document, after: &Document, changes: &mut Vec<String>) {
    // The author of the change is reported instead of these keys.
    let is_record = |key: &str| ["history", "paused"].contains(&key.to_lowercase().as_str());
    let mut keys = before.keys();
    keys.extend(after.keys().into_iter().filter(|key| before.get(key).is_none()));
    for key in keys.iter().filter(|key| before.get(key) != after.get(key) && !is_record(key)) {
        let name = format!("{prefix}{key}");
        if let (Some(before), Some(after)) = (before.object(key), after.object(key)) {
            list_changes(&format!("{name}."), &before, &after, changes);
        } else {
            let shown = |document: &Document| document.get(key).unwrap_or("nothing").to_owned();
            changes.push(format!("{name}: {} → {}", shown(before), shown(after)));
        }
    }
}
