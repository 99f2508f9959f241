//! Standard input, as flannel's config and as host-local's.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tweed_cni::host_local::Config;
use tweed_cni::protocol::network_config::NetworkConfig;
use tweed_cni::protocol::request::Command;

fuzz_target!(|input: (&str, &[u8])| {
    let (ip, json) = input;
    for command in [Command::Add, Command::Gc] {
        drop(NetworkConfig::parse(json, command));
    }
    let Ok(config) = serde_json::from_slice(json) else { return };
    let Ok(config) = Config::parse(&config, Some(ip)) else { return };
    assert!(config.location.directory().starts_with(&config.location.data_dir));
    for (index, one) in config.range_sets.iter().enumerate() {
        assert!(config.range_sets[..index].iter().all(|other| !one.overlaps(other)));
        for range in one.ranges() {
            assert!(range.contains(range.first) && range.contains(range.last));
            assert!(range.subnet.contains(range.first) && range.subnet.contains(range.last));
        }
    }
});
