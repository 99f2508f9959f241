//! What operators read from a store, and the result of a write.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::claim::HeldLease;
use crate::model::lease::{LeaseId, Record};
use crate::model::report::NodeReport;

/// The data of a network in the store.
#[derive(Clone, Debug, Default)]
pub struct StoreContents {
    /// None if the key is missing.
    pub config: Option<Written>,
    pub records: Vec<Record>,
    /// Only valid ones.
    pub reports: Vec<StoredReport>,
}

/// A report, and how long ago its node refreshed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredReport {
    pub report: NodeReport,
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

/// What a command that changes leases decides by.
#[derive(Clone, Debug, Default)]
pub struct LeaseContents {
    /// None if the key is missing.
    pub config: Option<Written>,
    /// All that hold a subnet, in the order of their ids.
    pub leases: Vec<StoredLease>,
    /// That of the store when the first of them was read.
    pub revision: i64,
}

/// A lease, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredLease {
    pub held: HeldLease,
    /// Whether it is a reservation that no node has taken.
    pub is_vacant: bool,
    /// Empty if it is no lease.
    pub value: Vec<u8>,
    /// The revision that wrote it.
    pub revision: i64,
}

/// A change of one lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseChange {
    /// Writes a reservation, unless any lease was written after revision `seen`.
    Create { id: LeaseId, value: Vec<u8>, seen: i64 },
    /// Gives the lease that was written at revision `seen` no term.
    Keep { id: LeaseId, value: Vec<u8>, seen: i64 },
    /// Deletes the lease that was written at revision `seen`.
    Delete { id: LeaseId, seen: i64 },
}

/// The term of a lease: how long it lasts after a renewal, and for how long from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    pub whole: Duration,
    pub left: Duration,
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
