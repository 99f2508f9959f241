//! A boot, and damaged files.

use std::time::{Duration, SystemTime};

use super::*;

/// Simulates a boot since the last command.
fn boot(home: &Home) {
    let lock = File::open(home.path("lock")).unwrap();
    lock.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1)).unwrap();
}

fn last_clean_up(home: &Home) -> SystemTime {
    fs::metadata(home.path("lock")).unwrap().modified().unwrap()
}

#[test]
fn the_index_of_earlier_versions_is_ignored_and_removed() {
    let home = Home::small();
    home.add("a").unwrap();
    let index = home.config.location.data_dir.join(".net.index");
    let clean_ups: [fn(&Home); 2] =
        [|home| drop(collect(&home.config.location, &[attachment("a")]).unwrap()), boot];
    for clean_up in clean_ups {
        fs::write(&index, "an index").unwrap();
        status(&home.config).unwrap();
        assert!(index.exists());
        clean_up(&home);
        status(&home.config).unwrap();
        assert!(!index.exists());
    }
    assert_eq!(home.addresses(), ["10.0.0.2"]);
}

#[test]
fn a_boot_is_noticed_once() {
    let home = Home::small();
    home.add("a").unwrap();
    boot(&home);
    let before = SystemTime::now();
    home.add("b").unwrap();
    let noticed = last_clean_up(&home);
    assert!(noticed >= before);
    home.add("c").unwrap();
    assert_eq!(last_clean_up(&home), noticed);
}

#[test]
fn the_first_command_after_a_boot_frees_nothing_that_may_be_in_use() {
    let home = Home::small();
    home.add("a").unwrap();
    home.add("b").unwrap();
    boot(&home);
    // These records are younger than this machine's real boot.
    home.add("c").unwrap();
    assert_eq!(home.addresses(), ["10.0.0.2", "10.0.0.3", "10.0.0.4"]);
}

#[test]
fn an_invalid_last_address_restarts_the_order() {
    let home = Home::small();
    home.add("a").unwrap();
    for nonsense in ["", "10.0.0", "10.77.0.3", "fd00::3"] {
        fs::write(home.path("last_reserved_ip.0"), nonsense).unwrap();
        assert_eq!(home.add("b").unwrap(), ["10.0.0.3/29"], "{nonsense}");
        home.del("b");
    }
}

/// Creates something at the first path; the second is the target of a link.
type Put = fn(&Path, &Path);

#[test]
fn a_pipe_or_a_link_in_place_of_a_file_causes_no_hang_and_no_redirection() {
    let home = Home::small();
    home.add("a").unwrap();
    home.del("a");
    let victim = home.directory.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let put: [(&str, Put); 2] = [
        ("pipe", |path, _| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap()),
        ("link", |path, victim| std::os::unix::fs::symlink(victim, path).unwrap()),
    ];
    let places = [home.path("last_reserved_ip.0"), home.path("lock"), home.path("10.0.0.4")];
    for (kind, put) in put {
        for path in &places {
            drop(fs::remove_file(path));
            put(path, &victim);
            let added = home.add("b").unwrap().concat();
            let is_taken = path.ends_with("10.0.0.4") && added == "10.0.0.4/29";
            assert!(!is_taken, "{kind}");
            check(&home.config.location, &attachment("b")).unwrap();
            status(&home.config).unwrap();
            home.del("b");
            collect(&home.config.location, &[]).unwrap();
            assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
            fs::remove_file(path).unwrap();
        }
    }
    assert_eq!(home.addresses(), Vec::<String>::new());
}
