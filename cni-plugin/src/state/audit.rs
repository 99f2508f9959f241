//! All records of attachments: which are of use, and which belong to no container any more.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use super::{Owner, States, StoredConfig};
use crate::bridge;
use crate::disk::if_present;
use crate::disk::lock::Sharing;
use crate::disk::plain_file::changed;
use crate::excerpt;
use crate::host_local::{
    self, Classification, Finding, Kind, Liveness, Location, Repair, alive, leaked,
};
use crate::protocol::error::Error;

/// What still belongs to the container of a record.
struct Traces {
    liveness: Liveness,
    /// Containers with a reserved address.
    holders: HashSet<String>,
    /// Containers with a port on this host.
    connected: HashSet<String>,
}

/// Classifies every record in `directory`, sorted by name, and removes dead ones for `Repair::Free`.
/// The stores of addresses are in `data_dir` and where records name one; `results` is the cache.
pub fn audit(
    directory: &Path,
    data_dir: &Path,
    results: &Path,
    repair: Repair,
) -> Result<Vec<Finding>, Error> {
    let states = States::at(directory);
    let _alone = states.lock(Sharing::Exclusive)?;
    let mut all = states.all()?;
    if all.is_empty() {
        return Ok(Vec::new());
    }
    all.sort_by(|(one, _), (other, _)| one.cmp(other));
    let traces = Traces::gather(&all, data_dir, results)?;
    treat(&states, all, &traces, repair)
}

fn treat(
    states: &States,
    all: Vec<(Owner, StoredConfig)>,
    traces: &Traces,
    repair: Repair,
) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    for (owner, _) in all {
        let path = states.directory.join(owner.file_name());
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        let classification = classify(&owner.container_id, changed(&metadata), traces);
        let freed = classification.proven_dead && repair == Repair::Free;
        if freed {
            states.drop_record(&owner)?;
        }
        let name = excerpt::value(&owner.file_name());
        findings.push(Finding { name, owner: shown(&owner), classification, freed });
    }
    Ok(findings)
}

impl Traces {
    /// Fails if any of it cannot be read: a part of it proves nothing.
    fn gather(
        all: &[(Owner, StoredConfig)],
        data_dir: &Path,
        results: &Path,
    ) -> Result<Self, Error> {
        let networks = locations(all, data_dir)
            .map_err(|cause| Error::failed(format!("listing {}: {cause}", data_dir.display())))?;
        let mut holders = HashSet::new();
        for location in networks {
            holders.extend(host_local::holders(&location)?);
        }
        let liveness = Liveness::gather(results)?;
        Ok(Self { liveness, holders, connected: bridge::connected()? })
    }
}

/// Each store once.
fn locations(all: &[(Owner, StoredConfig)], data_dir: &Path) -> io::Result<Vec<Location>> {
    let networks = if_present(host_local::networks(data_dir))?.unwrap_or_default();
    let usual = networks.iter().filter_map(|network| Location::of(network).ok());
    let usual = usual.map(|location| Location { data_dir: data_dir.to_owned(), ..location });
    let named = all.iter().filter_map(|(_, record)| match record {
        StoredConfig::Config(config) => Location::parse(config).ok(),
        StoredConfig::Damaged | StoredConfig::Absent => None,
    });
    let mut locations: Vec<Location> = Vec::new();
    for location in usual.chain(named) {
        if !locations.iter().any(|known| known.directory() == location.directory()) {
            locations.push(location);
        }
    }
    Ok(locations)
}

fn classify(container: &str, changed: SystemTime, traces: &Traces) -> Classification {
    let liveness = &traces.liveness;
    let held = [
        (liveness.cached.knows_container(container), "the runtime lists its container"),
        (liveness.busy.contains(container), "a plugin is working on its container"),
        (traces.holders.contains(container), "an address is reserved for its container"),
        (traces.connected.contains(container), "its container has a link"),
    ];
    if let Some((_, reason)) = held.into_iter().find(|(is_held, _)| *is_held) {
        return alive(Kind::Held, reason);
    }
    let unknown = "the runtime does not know its container, which has neither address nor link";
    leaked(unknown, changed, liveness)
}

fn shown(owner: &Owner) -> String {
    let container = || format!("container {}", owner.container_id);
    let attachment = owner.interface.as_ref().map(|_| owner.attachment().to_string());
    excerpt::value(&attachment.unwrap_or_else(container))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::protocol::request::Attachment;

    const CONTAINERS: [&str; 4] = ["known", "holder", "connected", "gone"];

    fn traces(home: &Path, now: SystemTime) -> Traces {
        let liveness = Liveness::gather(&home.join("results")).unwrap();
        Traces {
            liveness: Liveness { now, booted: SystemTime::UNIX_EPOCH, ..liveness },
            holders: HashSet::from(["holder".to_owned()]),
            connected: HashSet::from(["connected".to_owned()]),
        }
    }

    #[test]
    fn a_record_is_dead_only_without_any_trace_and_after_some_time() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("results")).unwrap();
        fs::write(home.path().join("results/cbr0-known-eth0"), "").unwrap();
        let written = SystemTime::now();
        let verdicts = |later| {
            let traces = traces(home.path(), written + Duration::from_secs(later));
            CONTAINERS.map(|container| {
                let classification = classify(container, written, &traces);
                (classification.kind, classification.proven_dead)
            })
        };
        let held = (Kind::Held, false);
        assert_eq!(verdicts(599), [held, held, held, (Kind::Leaked, false)]);
        assert_eq!(verdicts(601), [held, held, held, (Kind::Leaked, true)]);
    }

    #[test]
    fn only_remains_of_deleted_pods_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("flannel");
        let states = States::at(&directory);
        let config = serde_json::json!({"name": "cbr0"});
        for container in ["holder", "gone"] {
            let attachment =
                Attachment { container_id: container.into(), interface: "eth0".into() };
            states.keep(&attachment, config.as_object().unwrap()).unwrap();
        }
        // The form in which Go's plugin leaves it.
        fs::write(directory.join("gone-too"), r#"{"name":"cbr0"}"#).unwrap();
        let later = traces(home.path(), SystemTime::now() + Duration::from_secs(601));
        let freed = |repair| {
            let findings = treat(&states, states.all().unwrap(), &later, repair).unwrap();
            findings.iter().filter(|finding| finding.freed).count()
        };
        assert_eq!(freed(Repair::Nothing), 0);
        assert_eq!(freed(Repair::Free), 2);
        let mut names = states.names().unwrap();
        names.sort();
        assert_eq!(names, ["holder", "holder:eth0"]);
    }

    #[test]
    fn a_reservation_in_the_named_store_keeps_a_record() {
        let home = tempfile::tempdir().unwrap();
        let place = |name: &str| home.path().join(name);
        let states = States::at(&place("flannel"));
        let attachment =
            Attachment { container_id: "0123456789ab".into(), interface: "eth0".into() };
        let config = serde_json::json!({"name": "cbr0", "ipam": {"dataDir": place("elsewhere")}});
        states.keep(&attachment, config.as_object().unwrap()).unwrap();
        let kinds = || {
            let audited =
                audit(&place("flannel"), &place("networks"), &place("results"), Repair::Free);
            audited
                .unwrap()
                .into_iter()
                .map(|one| (one.name, one.classification.kind))
                .collect::<Vec<_>>()
        };
        let name = "0123456789ab:eth0".to_owned();
        assert_eq!(kinds(), [(name.clone(), Kind::Leaked)]);
        fs::create_dir_all(place("elsewhere/cbr0")).unwrap();
        fs::write(place("elsewhere/cbr0/10.0.0.2"), "0123456789ab\r\neth0").unwrap();
        assert_eq!(kinds(), [(name, Kind::Held)]);
    }
}
