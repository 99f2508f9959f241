//! Where the store of a network is, and what lies around it.

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use crate::error::Error;
use crate::excerpt;
use crate::json::{self, Object};
use crate::lock::LOCK_WAIT;
use crate::runtime_cache::RESULTS;

const DATA_DIR: &str = "/var/lib/cni/networks";

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
                "the network's name is {}: not a file name",
                excerpt::quoted(network)
            ))),
        }
    }

    /// The store that a config of host-local names: all that it takes to free what is in it.
    ///
    /// # Errors
    /// The network has no name that a directory can have.
    pub fn parse(config: &Object) -> Result<Self, Error> {
        let location = Self::of(json::text(config, "name")?.unwrap_or_default())?;
        // A plugin that was given another type has refused it, and made nothing.
        let ipam = json::object(config, "ipam").ok().flatten();
        let data_dir = ipam.and_then(|ipam| json::text(ipam, "dataDir").ok().flatten());
        Ok(match data_dir.filter(|path| !path.is_empty()) {
            Some(path) => Self { data_dir: path.into(), ..location },
            None => location,
        })
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
