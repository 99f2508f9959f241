//! What was last known, on disk: enough to forward packets while the store is away.

use std::io;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::backend::Local;
use crate::lease::Lease;

/// Everything that the plan is made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub local: Local,
    /// Of the peers, believed or not.
    pub leases: Vec<Lease>,
}
