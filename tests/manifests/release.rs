//! What `make release` packs, with programs of a few bytes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::{files, read, root};

/// A Debian package, made in a folder and with a umask of its own.
fn package(umask: &str) -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let mut copy = Command::new("cp");
    copy.arg("-r").args(["config", "CHANGELOG.md"]).arg(folder.path()).current_dir(root());
    assert!(copy.status().unwrap().success());
    for file in [
        "image/amd64/flannel",
        "image/amd64/opt/bin/flanneld",
        "image/amd64/opt/bin/tweedctl",
        "share/man/man1/tweedctl.1",
        "share/zsh/site-functions/_tweedctl",
    ] {
        let path = folder.path().join("target").join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file).unwrap();
    }
    let script = format!("umask {umask}; exec config/release/deb amd64 0.1.0 target/stage target");
    let mut deb = Command::new("sh");
    deb.args(["-c", &script]).current_dir(folder.path());
    deb.env("AUTHOR", "test <test@example.org>").env("SOURCE_DATE_EPOCH", "1764201600");
    assert!(deb.status().unwrap().success());
    let path = folder.path().join("target/tweed_0.1.0-1_amd64.deb");
    (folder, path)
}

fn unpacked() -> (TempDir, PathBuf) {
    let (folder, package) = package("022");
    let to = folder.path().join("unpacked");
    let status = Command::new("dpkg-deb").arg("--raw-extract").args([&package, &to]).status();
    assert!(status.unwrap().success());
    (folder, to)
}

#[test]
fn a_debian_package_has_the_same_bytes_wherever_it_is_built() {
    let ((_here, first), (_there, second)) = (package("022"), package("077"));
    assert!(fs::read(first).unwrap() == fs::read(second).unwrap());
}

#[test]
fn the_unit_of_the_package_starts_the_daemon_of_the_package() {
    let (_folder, package) = unpacked();
    let unit = package.join("usr/lib/systemd/system/tweedd.service");
    let unit = fs::read_to_string(unit).unwrap();
    let program = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let program = program.split(' ').next().unwrap();
    assert!(package.join(program.trim_start_matches('/')).exists(), "{program}");
    let file = unit.lines().find_map(|line| line.strip_prefix("EnvironmentFile=-/")).unwrap();
    let conffiles = fs::read_to_string(package.join("DEBIAN/conffiles")).unwrap();
    assert!(conffiles.lines().any(|it| it == format!("/{file}")), "{conffiles}");
    assert!(!unit.contains("Install it"), "{unit}");
}

/// As after `apt remove` and `apt install`, which keep the file with the flags.
#[test]
fn an_upgrade_succeeds_while_the_daemon_is_stopped() {
    let folder = TempDir::new().unwrap();
    let place = |name: &str| folder.path().join(name).display().to_string();
    // systemd refuses to kill a unit that does not run.
    fs::write(place("systemctl"), "#!/bin/sh\necho \"$*\" >>\"$0.log\"\n[ \"$2\" != kill ]\n")
        .unwrap();
    fs::set_permissions(place("systemctl"), fs::Permissions::from_mode(0o755)).unwrap();
    let script = read("config/release/debian/postinst")
        .replace("/run/systemd/system", folder.path().to_str().unwrap())
        .replace("/etc/default/tweedd", &place("flags"));
    for (flags, last) in [
        ("FLANNELD_IFACE=eth0\n", "--no-block try-restart tweedd.service"),
        ("FLANNELD_RELEASE_ON_EXIT=true\n", "--no-block kill --signal=KILL tweedd.service"),
    ] {
        fs::write(place("flags"), flags).unwrap();
        let mut postinst = Command::new("sh");
        postinst.args(["-c", &script, "postinst", "configure", "0.1.0-1"]);
        let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
        assert!(postinst.env("PATH", path).status().unwrap().success(), "{flags}");
        let log = fs::read_to_string(place("systemctl.log")).unwrap();
        assert_eq!(log.lines().last(), Some(last));
    }
}

/// All flags of the sample exist.
#[test]
fn the_package_suggests_only_flags_that_exist() {
    let help = tweed::daemon::options::Options::parse(["--help"], |_| None).unwrap_err();
    let help = help.to_string();
    let sample = read("config/release/debian/default");
    let names: Vec<_> = sample
        .lines()
        .filter_map(|line| line.strip_prefix("#FLANNELD_")?.split('=').next())
        .collect();
    assert!(!names.is_empty());
    for name in names {
        let flag = format!("--{}", name.to_lowercase().replace('_', "-"));
        assert!(help.contains(&flag), "{flag}");
    }
}

/// What changes the whole host is an example.
#[test]
fn every_config_file_is_in_the_package() {
    let (_folder, package) = unpacked();
    for folder in ["systemd/network", "systemd/networkd.conf.d", "systemd/system"] {
        for file in files(&format!("config/{folder}")) {
            let name = Path::new(folder).join(file.file_name().unwrap());
            assert!(package.join("usr/lib").join(&name).exists(), "{}", name.display());
        }
    }
    for folder in ["sysctl.d", "modules-load.d", "monitoring", "networks", "cni"] {
        for file in files(&format!("config/{folder}")) {
            let name = Path::new(folder).join(file.file_name().unwrap());
            let examples = package.join("usr/share/doc/tweed/examples");
            assert!(examples.join(&name).exists(), "{}", name.display());
        }
    }
}

#[test]
fn the_workflow_of_a_release_calls_existing_targets() {
    let workflow = read(".github/workflows/release.yml");
    let makefile = read("Makefile");
    let targets: Vec<_> =
        workflow.lines().filter_map(|line| line.trim().strip_prefix("- run: make ")).collect();
    assert_eq!(targets, ["test", "release"]);
    for target in targets {
        assert!(makefile.contains(&format!("\n{target}: ")), "{target}");
    }
}

/// Without the setting, tests of users other than root cannot run on Ubuntu.
#[test]
fn the_workflow_of_a_release_allows_the_namespaces_of_the_tests() {
    let workflow = read(".github/workflows/release.yml");
    let (before, _) = workflow.split_once("- run: make test\n").unwrap();
    let (_, setting) = before.split_once("- run: sudo sysctl -w ").unwrap();
    let setting = setting.lines().next().unwrap();
    for file in ["tests/lab/sandbox", "README.md"] {
        assert!(read(file).contains(setting), "{file} does not name {setting}");
    }
}

/// `make release` refuses a version that the changelog does not have.
#[test]
fn the_changelog_has_this_version_with_a_date() {
    let heading = concat!("## ", env!("CARGO_PKG_VERSION"), " - ");
    let changelog = read("CHANGELOG.md");
    let date = changelog.lines().find_map(|line| line.strip_prefix(heading));
    let date: jiff::civil::Date = date.expect(heading).parse().unwrap();
    assert!(date.year() >= 2026);
}
