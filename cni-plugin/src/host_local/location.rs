//! Where the store of a network is, and what lies around it.

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use crate::error::Error;
use crate::runtime_cache::RESULTS;

const DATA_DIR: &str = "/var/lib/cni/networks";

/// Shorter than the time after which any runtime gives up on a command.
const LOCK_WAIT: Duration = Duration::from_secs(45);

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Location {
    /// Also the name of the store below `data_dir`.
    pub network: String,
    pub data_dir: PathBuf,
    /// Where the runtime writes down what it has added.
    pub results: PathBuf,
    /// How long another process may keep the store locked.
    pub lock_wait: Duration,
}

impl Location {
    /// The store of `network` in the usual place.
    pub fn of(network: &str) -> Result<Self, Error> {
        let mut parts = Path::new(network).components();
        match (parts.next(), parts.next()) {
            (Some(Component::Normal(part)), None) if part == network => Ok(Self {
                network: network.to_owned(),
                data_dir: DATA_DIR.into(),
                results: RESULTS.into(),
                lock_wait: LOCK_WAIT,
            }),
            _ => Err(Error::invalid_config(format!(
                "the network's name is {network:?}: not a file name"
            ))),
        }
    }

    /// Where the reservations are.
    pub fn directory(&self) -> PathBuf {
        self.data_dir.join(&self.network)
    }

    /// Beside the store: what lies in it, host-local takes for a reservation.
    pub(super) fn index_path(&self) -> PathBuf {
        self.data_dir.join(format!(".{}.index", self.network))
    }
}
