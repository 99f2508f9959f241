//! Whole commands on a store of their own.

mod allocation;
mod damage;
mod model;
mod release;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use super::*;
use crate::protocol::result::AddResult;

struct Home {
    directory: tempfile::TempDir,
    config: Config,
}

impl Home {
    fn with(ipam: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(ipam);
        config.location.data_dir = directory.path().join("networks");
        config.location.results = directory.path().join("results");
        Self { directory, config }
    }

    fn small() -> Self {
        Self::with(r#"{"subnet": "10.0.0.0/29"}"#)
    }

    fn dual() -> Self {
        Self::with(r#"{"ranges": [[{"subnet": "10.0.0.0/29"}], [{"subnet": "fd00::/64"}]]}"#)
    }

    fn add(&self, container: &str) -> Result<Vec<String>, Error> {
        let allocation = allocate(&self.config, &attachment(container))?;
        Ok(allocation.addresses.iter().map(|one| one.address.to_string()).collect())
    }

    fn del(&self, container: &str) {
        release(&self.config.location, &attachment(container), None).unwrap();
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.config.location.directory().join(name)
    }

    /// As this plugin creates it.
    fn write_by_plugin(&self, name: &str, content: &str) {
        let mut options = File::options();
        let file = options.write(true).create_new(true).mode(0o1600).open(self.path(name));
        file.unwrap().write_all(content.as_bytes()).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn names(&self) -> Vec<String> {
        names_in(&self.config.location.directory())
    }

    fn addresses(&self) -> Vec<String> {
        let is_address = |name: &String| name.parse::<IpAddr>().is_ok();
        self.names().into_iter().filter(is_address).collect()
    }
}

/// As a caller without records of attachments.
fn allocate(config: &Config, attachment: &Attachment) -> Result<AddResult, Error> {
    super::allocate(config, attachment, || Ok(None), |_| Ok(()))
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn config(ipam: &str) -> Config {
    let json = format!(r#"{{"cniVersion": "1.0.0", "name": "net", "ipam": {ipam}}}"#);
    Config::parse(&serde_json::from_str(&json).unwrap(), None).unwrap()
}

fn attachment(container: &str) -> Attachment {
    Attachment { container_id: container.into(), interface: "eth0".into() }
}

fn msg<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.unwrap_err().msg
}

fn requesting(home: &Home, wish: &str) -> Config {
    Config { requested: vec![wish.parse().unwrap()], ..home.config.clone() }
}
