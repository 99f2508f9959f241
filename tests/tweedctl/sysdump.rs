//! Archives of `tweedctl sysdump`.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::Command;

use serde_json::json;

use crate::fake_daemon::FakeDaemon;

/// Marks secrets.
const MARK: &str = "MARKED-4711";

/// The files of an archive of gzip and tar, by name.
fn unpacked(archive: &[u8]) -> BTreeMap<String, String> {
    assert!(archive.starts_with(&[0x1f, 0x8b]), "the format of gzip");
    let deflated = archive.get(10..archive.len() - 8).unwrap();
    let data = miniz_oxide::inflate::decompress_to_vec(deflated).unwrap();
    let mut archive = tar::Archive::new(data.as_slice());
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let (name, mut text) = (entry.path().unwrap().display().to_string(), String::new());
        entry.read_to_string(&mut text).unwrap();
        let (folder, name) = name.split_once('/').unwrap();
        assert!(folder.starts_with("tweed-") && folder.ends_with('Z'), "{folder}");
        (name.to_owned(), text)
    });
    entries.collect()
}

#[test]
fn a_sysdump_contains_no_secret_and_names_what_is_missing() {
    let status = json!({
        "reasons": [format!("http://root:{MARK}@10.0.0.2:2379: refused")], "probeSecret": MARK,
    });
    let event = json!({ "message": format!("--etcd-password={MARK} is refused \u{202e}") });
    let ready = json!({ "ready": true, "reasons": [format!("token: {MARK}")] });
    let daemon = FakeDaemon::answering(json!({
        "/status": status, "/readyz": ready, "/peers": [{ "Token": [MARK] }],
        "/leases": [{ "backend_data": format!(r#"{{"Password":"{MARK}"}}"#) }],
        "/events": { "events": [event] }, "/inputs": null,
        "/metrics": format!("tweed_build_info{{secret=\"{MARK}\"}} 1"),
    }));
    let folder = daemon.folder.path();
    std::fs::write(folder.join("subnet.env"), format!("ETCD_TOKEN={MARK}\n")).unwrap();
    let checkpoint = format!(r#"{{"local":{{"api_key":"{MARK}","mtu":1450}}}}"#);
    std::fs::write(folder.join("subnet.state.json"), checkpoint).unwrap();
    let file = folder.join("dump.tar.gz");
    let dump = || daemon.tweedctl(&format!("sysdump {}", file.display()));
    let output = dump();
    // The checkpoint is invalid, so nothing can be compared.
    assert_eq!(output.0, 3, "{output:?}");
    assert!(output.1.contains("dump.tar.gz"), "{output:?}");
    assert!(output.2.contains("missing: diff.txt: "), "{output:?}");
    let parts = unpacked(&std::fs::read(&file).unwrap());
    for part in ["daemon/status.json", "daemon/events.json", "daemon/metrics.txt"] {
        assert!(parts[part].contains("(removed)"), "{part}: {}", parts[part]);
    }
    assert_eq!(parts["host/subnet.env"], "ETCD_TOKEN=(removed)\n");
    assert!(parts["host/checkpoint.json"].contains(r#""mtu": 1450"#), "{parts:?}");
    assert!(parts["summary.txt"].contains("missing: diff.txt: "), "{parts:?}");
    assert!(parts.contains_key("diff.txt.missing"), "{parts:?}");
    let all = format!("{output:?}{}", parts.into_values().collect::<String>());
    assert!(!all.contains("MARKED") && !all.contains('\u{202e}'), "{all}");

    let again = dump();
    assert_eq!(again.0, 2, "{again:?}");
    assert!(again.2.contains("dump.tar.gz cannot be written: File exists"), "{again:?}");
}

#[test]
fn a_sysdump_is_written_to_standard_output_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tweedctl"));
    command.args(["sysdump", "-", "-o", "json", "--subnet-file"]);
    let output = command.arg(folder.path().join("subnet.env")).output().unwrap();
    let (errors, parts) =
        (String::from_utf8_lossy(&output.stderr).into_owned(), unpacked(&output.stdout));
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(errors.contains("missing: daemon/status.json: no daemon answers on "), "{errors}");
    assert!(errors.contains(r#""file": "-""#), "{errors}");
    let reason = &parts["daemon/status.json.missing"];
    assert!(reason.starts_with("no daemon answers on "), "{reason}");
}
