//! Saves and loads the checkpoint, from which packets are forwarded while the store is unreachable.

use std::io;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::excerpt;
use crate::model::checkpoint::HostId;

/// Created at the first boot. A machine's image contains it, unless it was removed.
const MACHINE_ID: &str = "/etc/machine-id";
/// Created at each boot. Unlike the clock, it does not change until the next boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The host on which this process runs. Constant while the process runs.
pub fn this_host() -> HostId {
    HostId { machine: id(MACHINE_ID), boot: id(BOOT_ID) }
}

/// None if the host has no such id, or this container cannot read it.
fn id(path: &str) -> Option<String> {
    let id = std::fs::read_to_string(path).ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
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
/// The checkpoint contains no secret, but no other user needs it.
const MODE: u32 = 0o600;

/// Why a checkpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{path} cannot be read")]
    Unreadable { path: String, source: io::Error },
    #[error("{path} is damaged: {reason}; the daemon writes a new one")]
    Damaged { path: String, reason: String },
}

/// Writes `data` to `path` atomically.
pub fn save(path: &Path, data: &impl Serialize) -> io::Result<()> {
    let data = serde_json::to_vec(data)?;
    let crc32 = crc32fast::hash(&data);
    let head = format!(r#"{{"version":{VERSION},"crc32":{crc32},"data":"#);
    // In parts, to avoid a copy of megabytes.
    tweed_cni::disk::atomic_file::write(path, &[head.as_bytes(), &data, b"}"], MODE)
}

/// The data saved at `path`; none if the file does not exist.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, LoadError> {
    let name = || path.display().to_string();
    let document = match std::fs::read(path) {
        Ok(document) => document,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(LoadError::Unreadable { path: name(), source }),
    };
    decode(&document).map(Some).map_err(|reason| LoadError::Damaged { path: name(), reason })
}

fn decode<T: DeserializeOwned>(document: &[u8]) -> Result<T, String> {
    // The error may quote untrusted text of the document.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_saved_checkpoint_is_loaded_without_change() {
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
        let expected =
            "state.json is damaged: its version is 2, not 1; the daemon writes a new one";
        assert!(error.ends_with(expected), "{error}");
    }

    #[test]
    fn a_process_finds_itself_on_the_same_host() {
        assert!(this_host().is_of_same_boot(&this_host()));
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
