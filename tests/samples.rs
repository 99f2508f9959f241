//! Every sample in config/ is what it says: it parses, and a node can be planned with it.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tweed::config::NetworkConfig;
use tweed::prefix::Family;

#[test]
fn every_network_config_parses() {
    for sample in network_configs() {
        let parsed = NetworkConfig::parse(&fs::read(&sample).unwrap());
        assert!(parsed.is_ok(), "{}: {}", sample.display(), parsed.unwrap_err());
    }
}

#[test]
fn every_network_config_can_be_planned_with() {
    for sample in network_configs() {
        let config = NetworkConfig::parse(&fs::read(&sample).unwrap()).unwrap();
        let mut tweedctl = Command::new(env!("CARGO_BIN_EXE_tweedctl"));
        tweedctl.args(["plan", "--leases", "/dev/null", "--config"]).arg(&sample);
        for pool in &config.pools {
            let public_ip = match pool.network.family() {
                Family::V4 => "172.16.0.5",
                Family::V6 => "fd00:172::5",
            };
            tweedctl.args(["--public-ip", public_ip]);
        }
        let planned = tweedctl.output().unwrap();
        assert!(planned.status.success(), "{}: {planned:?}", sample.display());
    }
}

#[test]
fn each_way_of_using_the_config_has_a_sample() {
    let names: Vec<String> = network_configs()
        .iter()
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(
        names,
        ["direct-routing", "dual-stack", "host-gw", "masquerade", "mixed", "rollout", "vxlan"]
    );
}

fn network_configs() -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/config/networks");
    let mut samples: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    samples.sort();
    samples
}
