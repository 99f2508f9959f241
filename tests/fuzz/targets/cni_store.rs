//! The files of a store: with any content, no address is allocated twice and all of tweed's are
//! freed.

#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;
use tweed_cni::protocol::request::Attachment;
use tweed_cni::host_local::{self, Config};

const CONFIG: &str = r#"{"cniVersion": "1.0.0", "name": "net", "ipam":
    {"ranges": [[{"subnet": "10.0.0.0/28"}], [{"subnet": "fd00::/124"}]]}}"#;

/// Names with a meaning are more likely than others.
fn name(number: u8, other: &str) -> String {
    match number {
        0..16 => format!("10.0.0.{number}"),
        16..32 => format!("fd00::{:x}", number - 16),
        32..34 => format!("last_reserved_ip.{}", number - 32),
        34 => ".reserving".into(),
        35 => "fd00:0::3".into(),
        _ => other.replace(['/', '\0'], ""),
    }
}

fuzz_target!(|files: Vec<(u8, &str, &[u8])>| {
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut config = Config::parse(&serde_json::from_str(CONFIG).unwrap(), None).unwrap();
    config.location.data_dir = home.path().to_owned();
    config.location.results = home.path().join("results");
    let directory = config.location.directory();
    fs::create_dir(&directory).unwrap();
    for (number, other, content) in &files {
        drop(fs::write(directory.join(name(*number, other)), content));
    }
    drop(host_local::status(&config));
    let ours = Attachment { container_id: "abc".into(), interface: "eth0".into() };
    host_local::release(&config.location, &ours, None).unwrap();
    assert!(host_local::check(&config.location, &ours).is_err());
    if let Ok(allocation) = host_local::allocate(&config, &ours, || Ok(None), |_| Ok(())) {
        for allocated in &allocation.addresses {
            let path = directory.join(allocated.address.ip().to_string());
            assert_eq!(fs::read(path).unwrap(), b"abc\r\neth0");
        }
        assert!(host_local::check(&config.location, &ours).is_ok());
        host_local::release(&config.location, &ours, None).unwrap();
    }
    assert!(host_local::check(&config.location, &ours).is_err());
    host_local::collect(&config.location, &[]).unwrap();
    assert_eq!(host_local::collect(&config.location, &[]).unwrap(), []);
});
