//! The index: damaged in any way it costs time, and never somebody's address.

#![no_main]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use libfuzzer_sys::fuzz_target;
use tweed_cni::attachment::Attachment;
use tweed_cni::host_local::{self, Config};

const CONFIG: &str = r#"{"cniVersion": "1.0.0", "name": "net", "ipam":
    {"ranges": [[{"subnet": "10.0.0.0/28"}], [{"subnet": "fd00::/124"}]]}}"#;

fn attachment(number: u8) -> Attachment {
    Attachment { container_id: format!("c{number}"), interface: "eth0".into() }
}

fuzz_target!(|input: (Option<u16>, Vec<(u16, &[u8])>)| {
    let (length, damages) = input;
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut config = Config::parse(&serde_json::from_str(CONFIG).unwrap(), None).unwrap();
    config.location.data_dir = home.path().to_owned();
    config.location.results = home.path().join("results");
    for number in 0..4 {
        host_local::allocate(&config, &attachment(number)).unwrap();
    }
    let held = || {
        let files = fs::read_dir(config.location.directory()).unwrap();
        let mut held: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        held.retain(|path| path.file_name().unwrap().to_string_lossy().contains(['.', ':']));
        held.retain(|path| !path.to_string_lossy().contains("last_reserved"));
        held.sort();
        held.into_iter().map(|path| (fs::read(&path).unwrap(), path)).collect::<Vec<_>>()
    };
    let before = held();
    let index = OpenOptions::new().write(true).open(home.path().join(".net.index")).unwrap();
    for (offset, bytes) in damages {
        index.write_all_at(bytes, u64::from(offset)).unwrap();
    }
    if let Some(length) = length {
        index.set_len(u64::from(length)).unwrap();
    }
    drop(host_local::status(&config));
    let added = host_local::allocate(&config, &attachment(9));
    let after = held();
    assert!(before.iter().all(|record| after.contains(record)));
    if let Ok(allocation) = added {
        assert_eq!(after.len(), before.len() + allocation.addresses.len());
    }
    host_local::release(&config.location, &attachment(9)).unwrap();
    host_local::release(&config.location, &attachment(3)).unwrap();
    let rest = held();
    assert!(before.iter().filter(|(text, _)| !text.starts_with(b"c3")).all(|one| rest.contains(one)));
});
