//! The units start programs with flags that exist.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use tweed::daemon::options::Options;
use tweed_cni::subnet_env::SubnetEnv;

use crate::{read, root};

#[test]
fn the_unit_starts_the_daemon_with_existing_flags() {
    let unit = read("config/systemd/system/tweedd.service");
    let program = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    // A flag would win over the same variable in the file of the operator.
    assert!(program.ends_with("/tweedd"), "{program}");
    let set = unit.lines().filter_map(|line| line.strip_prefix("Environment="));
    let set: Vec<_> = set.flat_map(|line| line.split(' ')).collect();
    let asked = RefCell::new(BTreeSet::new());
    let value = |name: &str| {
        asked.borrow_mut().insert(name.to_owned());
        let value = |set: &&str| Some(set.strip_prefix(name)?.strip_prefix('=')?.to_owned());
        set.iter().find_map(value)
    };
    let options = Options::parse(std::iter::empty::<&str>(), value).unwrap();
    assert!(options.warnings.is_empty(), "{:?}", options.warnings);
    for name in set.iter().filter_map(|set| Some(set.split_once('=')?.0)) {
        assert!(asked.borrow().contains(name), "{name} is no variable of tweedd");
    }
    assert!(options.health.unwrap().ip().is_loopback(), "pods reach {:?}", options.health);
    let folder = options.state_file.parent().unwrap();
    let state = unit.lines().find_map(|line| line.strip_prefix("StateDirectory=")).unwrap();
    assert_eq!(folder, std::path::Path::new("/var/lib").join(state));
    let run = unit.lines().find_map(|line| line.strip_prefix("RuntimeDirectory=")).unwrap();
    assert!(options.subnet_file.starts_with(std::path::Path::new("/run").join(run)));
}

/// The restrictions of the unit; systemd reports the remaining exposure.
#[test]
fn the_unit_removes_rights_that_the_daemon_does_not_need() {
    const UNIT: &str = "config/systemd/system/tweedd.service";
    let unit = read(UNIT);
    for line in [
        "CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
        "RestrictNamespaces=yes",
        "SystemCallFilter=@system-service",
    ] {
        assert!(unit.lines().any(|known| known == line), "{line}");
    }
    let path = root().join(UNIT);
    let judged = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--no-pager", "--threshold=30"])
        .arg(&path)
        .output()
        .unwrap();
    assert!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stdout));
}

#[test]
fn the_unit_creates_the_lock_that_iptables_legacy_needs() {
    let unit = read("config/systemd/system/tweedd.service");
    let command = unit.lines().find_map(|line| line.strip_prefix("ExecStartPre=")).unwrap();
    // Without the restrictions of the unit, under which /run is read-only.
    let quoted = command.strip_prefix("+/bin/sh -c '").and_then(|it| it.strip_suffix('\''));
    let folder = tempfile::tempdir().unwrap();
    let lock = folder.path().join("xtables.lock");
    let script = quoted.unwrap().replace("/run/xtables.lock", &lock.display().to_string());
    for content in ["", "held"] {
        assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
        assert_eq!(fs::read_to_string(&lock).unwrap(), content, "a lock that exists is kept");
        assert_eq!(fs::metadata(&lock).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&lock, "held").unwrap();
    }
}

/// `Requires=`, `BindsTo=` or `PartOf=` would stop all containers with the daemon.
#[test]
fn docker_starts_after_the_daemon_and_does_not_stop_with_it() {
    let unit = read("config/systemd/system/docker.service.d/tweed.conf");
    let named = unit.lines().filter(|line| !line.starts_with('#') && line.contains("tweedd"));
    assert_eq!(named.collect::<Vec<_>>(), ["Wants=tweedd.service", "After=tweedd.service"]);
}

/// Debian's docker.io has another path and a variable with options.
#[test]
fn docker_starts_with_the_packages_of_docker_and_of_debian() {
    let unit = read("config/systemd/system/docker.service.d/tweed.conf");
    let command = unit.lines().filter_map(|line| line.strip_prefix("ExecStart=")).next_back();
    let words: Vec<_> = command.unwrap().split(' ').collect();
    assert_eq!((words[0], words[words.len() - 1]), ("dockerd", "$DOCKER_OPTS"));
    assert!(unit.lines().any(|line| line == "Environment=DOCKER_OPTS="), "it may not exist");
}

#[test]
fn docker_gets_the_values_of_subnet_env() {
    let subnets = ["10.244.3.1/24", "fd00:10:244:3::1/64"];
    let env = SubnetEnv {
        networks: ["10.244.0.0/16", "fd00:10:244::/48"].map(|it| it.parse().unwrap()).into(),
        subnets: subnets.map(|it| it.parse().unwrap()).into(),
        mtu: 1450,
        ip_masq: true,
    };
    let rendered = env.render();
    let unit = read("config/systemd/system/docker.service.d/tweed.conf");
    let names: Vec<_> = unit.split("${").skip(1).filter_map(|rest| rest.split_once('}')).collect();
    assert_eq!(names.len(), 3);
    for (name, _) in names {
        assert!(rendered.contains(&format!("{name}=")), "{name}");
    }
}
