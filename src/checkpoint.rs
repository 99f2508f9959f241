//! What was last known, on disk: enough to forward packets while the store is away.

use std::io;
use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::backend::{Detours, Local};
use crate::excerpt;
use crate::lease::Lease;

/// Everything that the plan is made from, at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub local: Local,
    /// Of the peers, believed or not; shared with whoever goes on with them.
    #[serde(serialize_with = "plain", deserialize_with = "shared")]
    pub leases: Vec<Arc<Lease>>,
    #[serde(default)]
    pub detours: Detours,
    /// Where it was saved.
    #[serde(default)]
    pub host: Host,
}

/// A machine between two boots, as far as it says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// A copy of the machine gets another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    machine: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<String>,
}

/// Made at the first boot. The image of a machine carries it, unless it was removed.
const MACHINE_ID: &str = "/etc/machine-id";
/// Made at each boot. A clock may step; this does not.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

impl Host {
    /// The host on which this process runs. It does not change while it runs.
    pub fn this() -> Self {
        Self { machine: id(MACHINE_ID), boot: id(BOOT_ID) }
    }

    /// Whether both machines are known, and are not the same.
    fn is_another_machine(&self, other: &Self) -> bool {
        self.machine.is_some() && other.machine.is_some() && self.machine != other.machine
    }

    /// Whether neither has been booted since the other.
    fn is_of_same_boot(&self, other: &Self) -> bool {
        self.boot.is_some() && self.boot == other.boot
    }
}

/// None where the host has no such id, or this container does not see it.
fn id(path: &str) -> Option<String> {
    let id = std::fs::read_to_string(path).ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}

impl Checkpoint {
    /// Of a machine that is a copy of the one that saved it, takes away that one's lease; returns it.
    /// What is known of the peers serves all the same.
    pub fn forget_other_machine(&mut self, host: &Host) -> Option<Lease> {
        self.host.is_another_machine(host).then(|| self.local.own.take())?
    }

    /// A boot sets all filters back: those of an earlier one are nothing to restore.
    pub fn forget_other_boot(&mut self, host: &Host) {
        if !self.host.is_of_same_boot(host) {
            self.local.strict.clear();
        }
    }
}

/// The document on disk.
#[derive(Deserialize)]
struct Envelope<D> {
    version: u32,
    /// Of the bytes of `data`.
    crc32: u32,
    data: D,
}

const VERSION: u32 = 1;
/// It holds no secret, but it is nobody else's business.
const MODE: u32 = 0o600;

/// A checkpoint that is of no use.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path} cannot be read")]
    Unreadable { path: String, source: io::Error },
    #[error("{path} is damaged: {reason}; the daemon makes it anew")]
    Damaged { path: String, reason: String },
}

/// Makes `data` the content of `path`: all of it, or what was there before.
pub fn save(path: &Path, data: &impl Serialize) -> io::Result<()> {
    let data = serde_json::to_vec(data)?;
    let crc32 = crc32fast::hash(&data);
    let head = format!(r#"{{"version":{VERSION},"crc32":{crc32},"data":"#);
    // In parts, for it may be megabytes.
    tweed_cni::atomic_file::write_parts(path, &[head.as_bytes(), &data, b"}"], MODE)
}

/// What was saved at `path`; none if nothing was.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Error> {
    let name = || path.display().to_string();
    let document = match std::fs::read(path) {
        Ok(document) => document,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::Unreadable { path: name(), source }),
    };
    decode(&document).map(Some).map_err(|reason| Error::Damaged { path: name(), reason })
}

fn decode<T: DeserializeOwned>(document: &[u8]) -> Result<T, String> {
    // An error may quote the document.
    let shown = |error: serde_json::Error| excerpt::sentence(&error.to_string());
    let envelope: Envelope<&RawValue> = serde_json::from_slice(document).map_err(shown)?;
    if envelope.version != VERSION {
        return Err(format!("its version is {}, not {VERSION}", envelope.version));
    }
    if crc32fast::hash(envelope.data.get().as_bytes()) != envelope.crc32 {
        return Err("its checksum does not match".to_owned());
    }
    serde_json::from_str(envelope.data.get()).map_err(shown)
}

fn plain<S: Serializer>(leases: &[Arc<Lease>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(leases.iter().map(AsRef::as_ref))
}

fn shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Arc<Lease>>, D::Error> {
    let leases: Vec<Lease> = Vec::deserialize(deserializer)?;
    Ok(leases.into_iter().map(Arc::new).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_was_saved_is_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        assert_eq!(load::<Vec<u32>>(&path).unwrap(), None);
        save(&path, &[1, 2, 3]).unwrap();
        assert_eq!(load::<Vec<u32>>(&path).unwrap(), Some(vec![1, 2, 3]));
    }

    #[test]
    fn a_damaged_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        std::fs::write(&path, r#"{"version":2,"crc32":0,"data":[]}"#).unwrap();
        let error = load::<Vec<u32>>(&path).unwrap_err().to_string();
        let expected = "state.json is damaged: its version is 2, not 1; the daemon makes it anew";
        assert!(error.ends_with(expected), "{error}");
    }

    #[test]
    fn only_a_machine_with_another_id_is_a_copy() {
        let [one, two] = ["one", "two"].map(|id| host(id, "boot"));
        assert!(one.is_another_machine(&two));
        assert!(!one.is_another_machine(&one.clone()));
        assert!(!Host::default().is_another_machine(&two), "it was saved by an older version");
        assert!(!one.is_another_machine(&Host::default()), "this container does not see the id");
    }

    fn host(machine: &str, boot: &str) -> Host {
        Host { machine: Some(machine.to_owned()), boot: Some(boot.to_owned()) }
    }

    #[test]
    fn only_the_same_boot_id_says_that_filters_are_as_they_were_left() {
        let first = host("one", "first");
        assert!(first.is_of_same_boot(&host("one", "first")));
        assert!(!first.is_of_same_boot(&host("one", "second")));
        assert!(!Host::default().is_of_same_boot(&Host::default()), "none of them says");
        assert!(Host::this().is_of_same_boot(&Host::this()));
    }

    proptest! {
        #[test]
        fn a_changed_byte_is_noticed_or_changes_nothing(at in 0_usize..90, bits in 1_u8..=255) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("state.json");
            let data = vec!["10.244.1.0/24".to_owned(), "10.244.2.0/24".to_owned()];
            save(&path, &data).unwrap();
            let mut document = std::fs::read(&path).unwrap();
            let at = at % document.len();
            document[at] ^= bits;
            if let Ok(loaded) = decode::<Vec<String>>(&document) {
                prop_assert_eq!(loaded, data);
            }
        }
    }
}
