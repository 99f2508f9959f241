//! Audits of real stores, with the liveness of this machine and with made-up ones.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use super::super::liveness::booted;
use super::*;

struct Home {
    _directory: tempfile::TempDir,
    location: Location,
    store: Store,
}

impl Home {
    fn with(records: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut location = Location::of("cbr0").unwrap();
        location.data_dir = directory.path().to_owned();
        location.results = directory.path().join("results");
        let store = Store::at(location.directory());
        store.create().unwrap();
        fs::write(store.lock_path(), "").unwrap();
        fs::create_dir(&location.results).unwrap();
        for (name, content) in records {
            let path = location.directory().join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o1600)).unwrap();
        }
        Self { _directory: directory, location, store }
    }

    fn cache(&self, container: &str, address: &str) {
        let json = format!(
            r#"{{"kind": "cniCacheV1", "containerId": "{container}", "ifName": "eth0",
            "networkName": "cbr0", "result": {{"ips": [{{"address": "{address}/24"}}]}}}}"#
        );
        fs::write(self.location.results.join(format!("cbr0-{container}-eth0")), json).unwrap();
    }

    fn names(&self) -> Vec<String> {
        let entries = self.store.entries().unwrap();
        let mut names: Vec<_> = entries.into_iter().map(|entry| entry.name).collect();
        names.sort();
        names
    }
}

fn shown(findings: &[Finding]) -> Vec<(&str, Kind, bool)> {
    findings.iter().map(|one| (one.name.as_str(), one.classification.kind, one.freed)).collect()
}

#[test]
fn an_audit_names_every_record_and_frees_only_the_dead() {
    let home = Home::with(&[
        ("10.0.0.2", "alive\r\neth0"),
        ("10.0.0.3", "new\r\neth0"),
        ("10.0.0.4", ""),
        ("10.0.0.5", "the printer's own"),
        ("127.0.0.1", "configured"),
        ("last_reserved_ip.0", "10.0.0.5"),
    ]);
    home.cache("alive", "10.0.0.2");
    let expected = [
        ("10.0.0.2", Kind::Held, false),
        ("10.0.0.3", Kind::Leaked, false),
        ("10.0.0.4", Kind::HalfWritten, false),
        ("10.0.0.5", Kind::Foreign, false),
        ("127.0.0.1", Kind::Held, false),
    ];
    assert_eq!(shown(&audit(&home.location, Repair::Nothing).unwrap()), expected);
    assert_eq!(home.names().len(), 5);
    let mut repaired = expected;
    repaired[2].2 = true;
    assert_eq!(shown(&audit(&home.location, Repair::Free).unwrap()), repaired);
    assert_eq!(home.names(), ["10.0.0.2", "10.0.0.3", "10.0.0.5", "127.0.0.1"]);
}

#[test]
fn after_a_boot_only_addresses_that_the_runtime_still_has_are_kept() {
    let home = Home::with(&[
        ("10.0.0.2", "alive\r\neth0"),
        ("10.0.0.3", "dead\r\neth0"),
        ("10.0.0.4", "deaddeaddead"),
        ("10.0.0.6", "printer"),
        ("127.0.0.1", "configured\r\neth0"),
    ]);
    home.cache("alive", "10.0.0.2");
    let now = SystemTime::now();
    sweep(&home.store, &home.location, booted(now).unwrap()).unwrap();
    assert_eq!(home.names().len(), 5);

    sweep(&home.store, &home.location, now + Duration::from_secs(5)).unwrap();
    assert_eq!(home.names(), ["10.0.0.2", "10.0.0.6", "127.0.0.1"]);
}

#[test]
fn any_content_of_a_record_is_shown_on_one_printable_line() {
    let long = format!("{}\r\neth\u{1b}[2J", "a".repeat(3000));
    let home = Home::with(&[("10.0.0.2", &long), ("10.0.0.3", "b\r\neth\u{1b}[2J")]);
    let found = audit(&home.location, Repair::Nothing).unwrap();
    assert_eq!(found[1].owner, "eth\\u{1b}[2J of container b");
    assert!(excerpt::is_printable(&found[0].owner) && found[0].owner.chars().count() == 120);
}

#[test]
fn a_network_is_a_directory_with_a_lock() {
    let home = Home::with(&[]);
    fs::create_dir(home.location.data_dir.join("empty")).unwrap();
    assert_eq!(networks(&home.location.data_dir).unwrap(), ["cbr0"]);
    assert!(networks(Path::new("/nonexistent")).is_err());
}
