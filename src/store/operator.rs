//! What operators read from a store, and the result of a write.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::lease::Record;
use crate::model::report::{NodeReport, ReportSummary};

/// The data of a network in the store.
#[derive(Clone, Debug, Default)]
pub struct StoreContents {
    /// None if the key is missing.
    pub config: Option<Written>,
    pub records: Vec<Record>,
    /// Only valid ones.
    pub reports: Vec<NodeReport>,
}

/// What a list of all nodes is made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeContents {
    pub records: Vec<Record>,
    /// Only valid ones.
    pub reports: Vec<StoredReport>,
}

/// A report, and how long ago its node refreshed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredReport {
    pub report: ReportSummary,
    /// None if the store does not have the time.
    pub age: Option<Duration>,
}

/// The store of a daemon, for other programs on its host. It contains no secret: keys are in files,
/// which only root can read, and the password is not part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "store", rename_all = "lowercase")]
pub enum StoreLocation {
    Etcd {
        endpoints: Vec<String>,
        prefix: String,
        ca_file: Option<PathBuf>,
        cert_file: Option<PathBuf>,
        key_file: Option<PathBuf>,
        username: Option<String>,
    },
    Kubernetes,
}

/// A value, and the revision that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    pub text: String,
    pub revision: i64,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    /// At this revision.
    Done(i64),
    /// The key was written by another client since it was read; nothing is changed.
    Outdated,
}

/// Why the store cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(pub String);

impl Swap {
    /// The result of a write of `text` over revision `seen` that failed with `failure`. The server
    /// may still have executed it; then the config `found` afterwards is `text`.
    ///
    /// # Errors
    /// Nothing was written.
    pub(super) fn after(
        failure: Unavailable,
        found: Option<Written>,
        seen: i64,
        text: &str,
    ) -> Result<Self, Unavailable> {
        match found {
            Some(written) if written.text == text => Ok(Self::Done(written.revision)),
            Some(written) if written.revision == seen => Err(failure),
            Some(_) | None => Ok(Self::Outdated),
        }
    }
}
