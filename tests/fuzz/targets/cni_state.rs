//! State files: with any content, each is reported once and can be removed.

#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;
use tweed_cni::protocol::request::Attachment;
use tweed_cni::state::{StoredConfig, States};

fuzz_target!(|files: Vec<(&str, &[u8])>| {
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    for (name, content) in &files {
        drop(fs::write(home.path().join(name.replace(['/', '\0'], "")), content));
    }
    let states = States::at(home.path());
    let attachment = Attachment { container_id: "abc".into(), interface: "eth0".into() };
    drop(states.recall(&attachment));
    states.keep(&attachment, &serde_json::Map::new()).unwrap();
    assert_eq!(states.recall(&attachment).unwrap(), StoredConfig::Config(serde_json::Map::new()));
    for (owner, _) in states.all().unwrap() {
        states.drop_record(&owner).unwrap();
    }
    states.forget(&attachment).unwrap();
    assert_eq!(states.all().unwrap(), []);
});
