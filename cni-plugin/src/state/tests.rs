//! Records: kept, found, damaged and removed.

use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc;
use std::thread;

use super::*;

fn attachment(container_id: &str, interface: &str) -> Attachment {
    Attachment { container_id: container_id.into(), interface: interface.into() }
}

fn config(mark: &str) -> Object {
    serde_json::from_value(serde_json::json!({"name": "cbr0", "mark": mark})).unwrap()
}

struct Home {
    directory: tempfile::TempDir,
    states: States,
}

impl Home {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let states = States::at(directory.path());
        Self { directory, states }
    }

    /// A record as flannel's plugin writes it.
    fn write_flannels(&self, container_id: &str, text: &str) {
        fs::write(self.directory.path().join(container_id), text).unwrap();
    }

    fn names(&self) -> Vec<String> {
        let mut names = self.states.names().unwrap();
        names.sort();
        names
    }
}

#[test]
fn a_record_is_written_where_flannel_reads_it() {
    let home = Home::new();
    let eth0 = attachment("c1", "eth0");
    home.states.keep(&eth0, &config("a")).unwrap();
    assert_eq!(home.states.recall(&eth0), Ok(StoredConfig::Config(config("a"))));
    let flannels = home.directory.path().join("c1");
    assert_eq!(fs::read_to_string(&flannels).unwrap(), r#"{"mark":"a","name":"cbr0"}"#);
    assert_eq!(fs::metadata(&flannels).unwrap().permissions().mode() & 0o777, 0o600);
    home.states.forget(&eth0).unwrap();
    assert_eq!(home.names(), [] as [&str; 0]);
}

#[test]
fn a_record_kept_again_replaces_the_former_under_both_names() {
    let home = Home::new();
    let (eth0, net1) = (attachment("c1", "eth0"), attachment("c1", "net1"));
    home.states.keep(&eth0, &config("a")).unwrap();
    home.states.keep(&eth0, &config("b")).unwrap();
    home.states.keep(&net1, &config("c")).unwrap();
    home.states.keep(&net1, &config("d")).unwrap();
    let flannels = fs::read_to_string(home.directory.path().join("c1")).unwrap();
    assert_eq!(flannels, r#"{"mark":"b","name":"cbr0"}"#);
    home.states.forget(&eth0).unwrap();
    assert_eq!(home.names(), ["c1:net1"]);
}

#[test]
fn interfaces_of_a_container_do_not_share_a_record() {
    let home = Home::new();
    let (eth0, net1) = (attachment("c1", "eth0"), attachment("c1", "net1"));
    home.states.keep(&eth0, &config("a")).unwrap();
    home.states.keep(&net1, &config("b")).unwrap();
    assert_eq!(home.states.recall(&net1), Ok(StoredConfig::Config(config("b"))));
    home.states.forget(&net1).unwrap();
    assert_eq!(home.states.recall(&eth0), Ok(StoredConfig::Config(config("a"))));
    assert_eq!(home.names(), ["c1", "c1:eth0"]);
}

#[test]
fn the_record_of_one_interface_is_not_used_for_another() {
    let home = Home::new();
    home.states.keep(&attachment("c1", "eth0"), &config("a")).unwrap();
    assert_eq!(home.states.recall(&attachment("c1", "net1")), Ok(StoredConfig::Absent));
    home.states.forget(&attachment("c1", "net1")).unwrap();
    assert_eq!(home.names(), ["c1", "c1:eth0"]);
}

#[test]
fn a_record_of_flannels_plugin_is_used_and_removed() {
    let home = Home::new();
    let eth0 = attachment("c1", "eth0");
    home.write_flannels("c1", r#"{"name":"cbr0","mark":"go"}"#);
    assert_eq!(home.states.recall(&eth0), Ok(StoredConfig::Config(config("go"))));
    home.states.forget(&eth0).unwrap();
    assert_eq!(home.names(), [] as [&str; 0]);
}

/// The name of an unfinished record is longer by one byte.
#[test]
fn a_record_with_the_longest_name_can_be_removed() {
    let home = Home::new();
    let container_id = "c".repeat(250);
    home.write_flannels(&format!("{container_id}:eth0"), "{}");
    home.states.forget(&attachment(&container_id, "eth0")).unwrap();
    assert_eq!(home.names(), [""; 0]);
}

#[test]
fn a_damaged_record_differs_from_an_absent_one() {
    let home = Home::new();
    let eth0 = attachment("c1", "eth0");
    for text in ["", "{\"name\":", "[]"] {
        home.write_flannels("c1", text);
        assert_eq!(home.states.recall(&eth0), Ok(StoredConfig::Damaged), "{text:?}");
    }
    assert_eq!(home.states.recall(&attachment("c2", "eth0")), Ok(StoredConfig::Absent));
}

#[test]
fn unfinished_work_of_a_crashed_process_is_completed() {
    let home = Home::new();
    let eth0 = attachment("c1", "eth0");
    // Two moments of a crash: before the renaming, and after the removal of the own name.
    let half = || fs::write(home.states.temporary(&eth0), "{\"na").unwrap();
    half();
    assert_eq!(home.states.recall(&eth0), Ok(StoredConfig::Absent));
    home.states.forget(&eth0).unwrap();
    assert_eq!(home.names(), [] as [&str; 0]);
    half();
    let _alone = home.states.lock(Sharing::Exclusive).unwrap();
    home.states.sweep().unwrap();
    assert_eq!(home.names(), [".lock"]);
    fs::remove_file(home.directory.path().join(".lock")).unwrap();
    home.states.keep(&eth0, &config("a")).unwrap();
    fs::remove_file(home.states.own(&eth0)).unwrap();
    assert_eq!(home.states.recall(&eth0), Ok(StoredConfig::Config(config("a"))));
    home.states.forget(&eth0).unwrap();
    assert_eq!(home.names(), [] as [&str; 0]);
}

#[test]
fn all_records_are_listed_once_each_with_its_owner() {
    let home = Home::new();
    home.states.keep(&attachment("c1", "eth0"), &config("a")).unwrap();
    home.write_flannels("c2", r#"{"name":"cbr0","mark":"go"}"#);
    let _lock = home.states.lock(Sharing::Exclusive).unwrap();
    let mut all = home.states.all().unwrap();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    let owner = |container_id: &str, interface: Option<&str>| Owner {
        container_id: container_id.into(),
        interface: interface.map(str::to_owned),
    };
    assert_eq!(
        all,
        [
            (owner("c1", Some("eth0")), StoredConfig::Config(config("a"))),
            (owner("c2", None), StoredConfig::Config(config("go"))),
        ]
    );
    for (owner, _) in &all {
        home.states.drop_record(owner).unwrap();
    }
    assert_eq!(home.names(), [".lock"]);
}

#[test]
fn anything_but_a_file_is_a_damaged_record_and_is_not_written_to() {
    let home = Home::new();
    let eth0 = attachment("c1", "eth0");
    let victim = home.directory.path().join("victim");
    fs::write(&victim, r#"{"name":"precious"}"#).unwrap();
    let link = |path: &Path| std::os::unix::fs::symlink(&victim, path).unwrap();
    let pipe = |path: &Path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for put in [&link as &dyn Fn(&Path), &pipe] {
        for path in [home.states.own(&eth0), home.states.flannels("c1")] {
            put(&path);
            assert_eq!(home.states.recall(&eth0), Ok(StoredConfig::Damaged));
            home.states.forget(&eth0).unwrap();
            assert_eq!(home.names(), ["victim"]);
        }
        put(&home.states.temporary(&eth0));
        home.states.keep(&eth0, &config("a")).unwrap();
        assert_eq!(home.states.recall(&eth0), Ok(StoredConfig::Config(config("a"))));
        home.states.forget(&eth0).unwrap();
        put(&home.directory.path().join(".lock"));
        drop(home.states.lock(Sharing::Exclusive).unwrap());
        fs::remove_file(home.directory.path().join(".lock")).unwrap();
    }
    assert_eq!(fs::read_to_string(&victim).unwrap(), r#"{"name":"precious"}"#);
}

#[test]
fn records_after_a_moment_are_separated_from_earlier_ones() {
    let home = Home::new();
    home.states.keep(&attachment("c1", "eth0"), &config("a")).unwrap();
    let moment = home.states.now().unwrap();
    // Timestamps of files advance in steps.
    while home.states.now().unwrap() == moment {}
    home.states.keep(&attachment("c2", "net1"), &config("b")).unwrap();
    home.write_flannels("c3", r#"{"name":"cbr0"}"#);
    let mut newer = home.states.kept_since(moment).unwrap();
    newer.sort();
    let expected = [("c2", "net1"), ("c3", "eth0")];
    assert_eq!(newer, expected.map(|(id, interface)| attachment(id, interface)));
}

#[test]
fn a_process_that_holds_all_records_for_too_long_is_named() {
    let mut home = Home::new();
    home.states.lock_wait = Duration::ZERO;
    let shared = [(); 2].map(|()| home.states.lock(Sharing::Shared).unwrap());
    let (enough, ended) = mpsc::channel::<()>();
    // A wait without a timeout would end only with the lock.
    let holder = thread::spawn(move || {
        let _ = ended.recv_timeout(Duration::from_secs(600));
        drop(shared);
    });
    let error = home.states.lock(Sharing::Exclusive).unwrap_err();
    assert_eq!(error.code, 11);
    assert!(error.msg.contains(&format!("process {} (", std::process::id())), "{error}");
    drop(enough);
    holder.join().unwrap();
}
