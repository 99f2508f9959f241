//! Whole commands on a store of their own.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use proptest::prelude::*;

use super::index::Index;
use super::*;

struct Home {
    directory: tempfile::TempDir,
    config: Config,
}

impl Home {
    fn with(ipam: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(ipam);
        config.location.data_dir = directory.path().join("networks");
        config.location.results = directory.path().join("results");
        Self { directory, config }
    }

    fn small() -> Self {
        Self::with(r#"{"subnet": "10.0.0.0/29"}"#)
    }

    fn dual() -> Self {
        Self::with(r#"{"ranges": [[{"subnet": "10.0.0.0/29"}], [{"subnet": "fd00::/64"}]]}"#)
    }

    fn add(&self, container: &str) -> Result<Vec<String>, Error> {
        let allocation = allocate(&self.config, &attachment(container))?;
        Ok(allocation.addresses.iter().map(|one| one.address.to_string()).collect())
    }

    fn del(&self, container: &str) {
        release(&self.config, &attachment(container)).unwrap();
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.config.location.directory().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn names(&self) -> Vec<String> {
        names_in(&self.config.location.directory())
    }

    fn addresses(&self) -> Vec<String> {
        let is_address = |name: &String| name.parse::<IpAddr>().is_ok();
        self.names().into_iter().filter(is_address).collect()
    }
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn config(ipam: &str) -> Config {
    let json = format!(r#"{{"cniVersion": "1.0.0", "name": "net", "ipam": {ipam}}}"#);
    Config::parse(&serde_json::from_str(&json).unwrap(), None).unwrap()
}

fn attachment(container: &str) -> Attachment {
    Attachment { container_id: container.into(), interface: "eth0".into() }
}

fn msg<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.unwrap_err().msg
}

#[test]
fn the_store_holds_what_host_local_would_have_written() {
    let home = Home::dual();
    assert_eq!(home.add("a").unwrap(), ["10.0.0.2/29", "fd00::2/64"]);
    assert_eq!(
        home.names(),
        ["10.0.0.2", "fd00::2", "last_reserved_ip.0", "last_reserved_ip.1", "lock"]
    );
    assert_eq!(home.read("10.0.0.2"), "a\r\neth0");
    assert_eq!(home.read("fd00::2"), "a\r\neth0");
    assert_eq!(home.read("last_reserved_ip.0"), "10.0.0.2");
    assert_eq!(home.read("last_reserved_ip.1"), "fd00::2");
    assert_eq!(home.read("lock"), "");
    for (name, mode) in [("10.0.0.2", 0o600), ("last_reserved_ip.0", 0o600), ("lock", 0o750)] {
        let found = fs::metadata(home.path(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(found, mode, "{name}");
    }
    assert_eq!(names_in(&home.config.location.data_dir), [".net.index", "net"]);
}

#[test]
fn an_allocation_has_gateways_routes_and_name_resolution() {
    let home = Home::with(
        r#"{"subnet": "10.0.0.0/29", "gateway": "10.0.0.6", "routes": [{"dst": "0.0.0.0/0"}]}"#,
    );
    let mut config = home.config.clone();
    let resolv_conf = home.directory.path().join("resolv.conf");
    fs::write(&resolv_conf, "nameserver 192.0.2.1\n").unwrap();
    config.resolv_conf = Some(resolv_conf);
    let allocation = allocate(&config, &attachment("a")).unwrap();
    assert_eq!(allocation.addresses[0].gateway, Some("10.0.0.6".parse().unwrap()));
    assert_eq!(allocation.routes, home.config.routes);
    assert_eq!(allocation.dns.nameservers, ["192.0.2.1"]);

    config.resolv_conf = Some("/nonexistent".into());
    assert!(msg(allocate(&config, &attachment("b"))).starts_with("reading /nonexistent: "));
    assert_eq!(home.addresses(), ["10.0.0.1"]);
}

#[test]
fn a_freed_address_comes_round_last() {
    let home = Home::small();
    assert_eq!(home.add("a").unwrap(), ["10.0.0.2/29"]);
    home.del("a");
    let next: Vec<_> = (0..5).map(|id| home.add(&format!("b{id}")).unwrap().concat()).collect();
    assert_eq!(next, ["10.0.0.3/29", "10.0.0.4/29", "10.0.0.5/29", "10.0.0.6/29", "10.0.0.2/29"]);
}

#[test]
fn an_exhausted_pool_is_told_in_host_locals_words_and_recovers() {
    let home = Home::small();
    for id in 0..5 {
        assert!(status(&home.config).is_ok());
        home.add(&format!("a{id}")).unwrap();
    }
    let expected =
        "failed to allocate for range 0: no IP addresses available in range set: 10.0.0.1-10.0.0.6";
    assert_eq!(msg(home.add("b")), expected);
    assert_eq!(status(&home.config).unwrap_err().code, 50);
    home.del("a3");
    assert!(status(&home.config).is_ok());
    assert_eq!(home.add("b").unwrap(), ["10.0.0.5/29"]);
}

#[test]
fn what_fails_for_one_family_leaves_nothing_of_the_other() {
    let home = Home::dual();
    for id in 0..5 {
        home.add(&format!("a{id}")).unwrap();
    }
    home.del("a2");
    let mut v6_first = home.config.clone();
    v6_first.range_sets.reverse();
    v6_first.range_sets[1] = config(r#"{"subnet": "10.0.0.0/30"}"#).range_sets.remove(0);
    let before = home.addresses();
    assert!(msg(allocate(&v6_first, &attachment("b"))).contains("failed to allocate for range 1"));
    assert_eq!(home.addresses(), before);
    assert_eq!(home.read("last_reserved_ip.0"), "10.0.0.6");
}

#[test]
fn an_attachment_gets_one_address_and_two_interfaces_get_two() {
    let home = Home::small();
    home.add("a").unwrap();
    assert_eq!(
        msg(home.add("a")),
        "failed to allocate for range 0: 10.0.0.2 has been allocated to a, \
         duplicate allocation is not allowed"
    );
    let second = Attachment { container_id: "a".into(), interface: "net1".into() };
    assert!(allocate(&home.config, &second).is_ok());
    release(&home.config, &second).unwrap();
    assert_eq!(home.addresses(), ["10.0.0.2"]);
    check(&home.config, &attachment("a")).unwrap();
    assert!(msg(check(&home.config, &second)).contains("Failed to find address"));
}

fn requesting(home: &Home, wish: &str) -> Config {
    Config { requested: vec![wish.parse().unwrap()], ..home.config.clone() }
}

#[test]
fn a_requested_address_is_given_if_it_can_be() {
    let home = Home::dual();
    let add = |wish, container| allocate(&requesting(&home, wish), &attachment(container));
    let addresses = add("10.0.0.5", "a").unwrap().addresses;
    assert_eq!(addresses[0].address.to_string(), "10.0.0.5/29");
    assert_eq!(addresses[1].address.to_string(), "fd00::2/64");
    assert_eq!(home.read("last_reserved_ip.0"), "10.0.0.5");

    let before = home.addresses();
    assert_eq!(
        msg(add("10.0.0.5", "b")),
        "failed to allocate for range 0: requested IP address 10.0.0.5 is not available in range \
         set 10.0.0.1-10.0.0.6"
    );
    assert_eq!(
        msg(add("10.0.0.1", "b")),
        "failed to allocate for range 0: requested ip 10.0.0.1 is subnet's gateway"
    );
    assert_eq!(msg(add("10.9.0.1", "b")), "failed to allocate all requested IPs: 10.9.0.1");
    assert!(msg(add("10.0.0.4", "a")).contains("duplicate allocation"));
    assert_eq!(home.addresses(), before);
    assert_eq!(home.read("last_reserved_ip.0"), "10.0.0.5");
}

#[test]
fn freeing_twice_or_nothing_is_no_error() {
    let home = Home::small();
    home.del("a");
    assert!(!home.config.location.directory().exists());
    home.add("a").unwrap();
    home.del("b");
    home.del("a");
    home.del("a");
    assert_eq!(home.addresses(), Vec::<String>::new());
    assert_eq!(home.read("last_reserved_ip.0"), "10.0.0.2");
}

#[test]
fn an_address_outside_of_the_ranges_is_freed_as_well() {
    let home = Home::small();
    home.add("a").unwrap();
    let moved = Config {
        range_sets: config(r#"{"subnet": "10.9.0.0/24"}"#).range_sets,
        ..home.config.clone()
    };
    assert!(allocate(&moved, &attachment("a")).is_ok());
    release(&moved, &attachment("a")).unwrap();
    assert_eq!(home.addresses(), Vec::<String>::new());
}

#[test]
fn records_without_an_interface_are_freed_with_any() {
    let home = Home::small();
    home.add("b").unwrap();
    fs::write(home.path("10.0.0.4"), "old\n").unwrap();
    fs::write(home.path("10.0.0.5"), "old").unwrap();
    check(&home.config, &attachment("old")).unwrap();
    home.del("old");
    assert_eq!(home.addresses(), ["10.0.0.2"]);
}

#[test]
fn a_record_that_says_nothing_is_an_address_again() {
    let home = Home::small();
    home.add("a").unwrap();
    fs::write(home.path("10.0.0.3"), "").unwrap();
    fs::write(home.path("10.0.0.4"), "\0\0\0").unwrap();
    assert_eq!(home.add("b").unwrap(), ["10.0.0.3/29"]);
    assert_eq!(home.addresses(), ["10.0.0.2", "10.0.0.3"]);
}

#[test]
fn what_others_put_there_is_neither_taken_nor_touched() {
    let home = Home::small();
    home.add("a").unwrap();
    fs::write(home.path("10.0.0.3"), "kept for the printer").unwrap();
    fs::create_dir(home.path("10.0.0.4")).unwrap();
    fs::write(home.path("README"), "a\r\neth0").unwrap();
    assert_eq!(home.add("b").unwrap(), ["10.0.0.5/29"]);
    home.del("a");
    home.del("b");
    assert_eq!(collect(&home.config, &[]).unwrap(), []);
    assert_eq!(home.names(), ["10.0.0.3", "10.0.0.4", "README", "last_reserved_ip.0", "lock"]);
}

#[test]
fn what_host_local_did_in_between_counts() {
    let home = Home::small();
    home.add("a").unwrap();
    for round in 0..50 {
        let id = format!("go{round}");
        fs::write(home.path("10.0.0.4"), format!("{id}\r\neth0")).unwrap();
        let next = home.add("b").unwrap().concat();
        assert_ne!(next, "10.0.0.4/29");
        home.del("b");
        home.del(&id);
        assert_eq!(home.addresses(), ["10.0.0.2"]);
        fs::remove_file(home.path("10.0.0.2")).unwrap();
        assert!(check(&home.config, &attachment("a")).is_err());
        fs::write(home.path("10.0.0.2"), "a\r\neth0").unwrap();
        assert!(check(&home.config, &attachment("a")).is_ok());
    }
}

#[test]
fn a_record_that_was_rewritten_in_place_is_found_by_what_it_says() {
    let home = Home::small();
    home.add("a").unwrap();
    fs::write(home.path("10.0.0.2"), "b\r\neth0").unwrap();
    home.del("a");
    assert_eq!(home.addresses(), ["10.0.0.2"]);
    home.del("b");
    assert_eq!(home.addresses(), Vec::<String>::new());
}

#[test]
fn a_collection_keeps_what_is_valid() {
    let home = Home::dual();
    for container in ["a", "b", "c"] {
        home.add(container).unwrap();
    }
    fs::write(home.path("10.0.0.6"), "old").unwrap();
    let valid = [attachment("b"), attachment("old")];
    assert_eq!(collect(&home.config, &valid).unwrap(), [attachment("a"), attachment("c")]);
    assert_eq!(home.addresses(), ["10.0.0.3", "10.0.0.6", "fd00::3"]);
    let old = Attachment { container_id: "old".into(), interface: String::new() };
    assert_eq!(collect(&home.config, &[]).unwrap(), [attachment("b"), old]);
    assert_eq!(home.addresses(), Vec::<String>::new());
}

#[test]
fn a_store_whose_index_cannot_be_written_works_without() {
    let home = Home::small();
    fs::create_dir_all(home.config.location.index_path()).unwrap();
    assert_eq!(home.add("a").unwrap(), ["10.0.0.2/29"]);
    assert_eq!(home.add("b").unwrap(), ["10.0.0.3/29"]);
    home.del("a");
    assert_eq!(home.addresses(), ["10.0.0.3"]);
}

/// As if the machine had been booted since: the index is of another boot, the records are older.
fn boot(home: &Home) {
    let file = index::open_file(&home.config.location.index_path()).unwrap();
    let other = boot::Boot::of(4711);
    Index::build(file, other, &[]).unwrap().seal(&File::open(home.path(".")).unwrap()).unwrap();
}

#[test]
fn the_first_command_after_a_boot_frees_nothing_that_may_live() {
    let home = Home::small();
    home.add("a").unwrap();
    home.add("b").unwrap();
    boot(&home);
    // These records are younger than this machine's real boot.
    home.add("c").unwrap();
    assert_eq!(home.addresses(), ["10.0.0.2", "10.0.0.3", "10.0.0.4"]);
}

#[test]
fn nonsense_about_the_last_address_starts_over() {
    let home = Home::small();
    home.add("a").unwrap();
    for nonsense in ["", "10.0.0", "10.77.0.3", "fd00::3"] {
        fs::write(home.path("last_reserved_ip.0"), nonsense).unwrap();
        assert_eq!(home.add("b").unwrap(), ["10.0.0.3/29"], "{nonsense}");
        home.del("b");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Add(u8),
    Del(u8),
    Request(u8, u8),
    /// Another program removes a record, or the index.
    Remove(u8),
    Forget,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..9_u8).prop_map(Step::Add),
        5 => (0..9_u8).prop_map(Step::Del),
        1 => (0..9_u8, 0..16_u8).prop_map(|(id, wish)| Step::Request(id, wish)),
        1 => (0..16_u8).prop_map(Step::Remove),
        1 => Just(Step::Forget),
    ]
}

/// Host-local in a few lines: who has what, and which came last.
#[derive(Default)]
struct Model {
    held: BTreeMap<u8, String>,
    last: u8,
}

impl Model {
    const FIRST: u8 = 1;
    const LAST: u8 = 14;

    fn next(&self) -> Option<u8> {
        let after = (self.last + 1..=Self::LAST).chain(Self::FIRST..=self.last);
        let after = after.filter(|host| (2..=Self::LAST).contains(host));
        after.into_iter().find(|host| !self.held.contains_key(host))
    }

    fn holds(&self, id: &str) -> bool {
        self.held.values().any(|owner| owner == id)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn allocation_does_what_the_model_does(steps in prop::collection::vec(step(), 0..80)) {
        let home = Home::with(r#"{"subnet": "10.0.0.0/28"}"#);
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Add(id) => {
                    let id = id.to_string();
                    let expected = if model.holds(&id) { None } else { model.next() };
                    let got = home.add(&id).ok().map(|addresses| addresses.concat());
                    prop_assert_eq!(got, expected.map(|host| format!("10.0.0.{host}/28")));
                    if let Some(host) = expected {
                        model.held.insert(host, id);
                        model.last = host;
                    }
                }
                Step::Request(id, host) => {
                    let id = id.to_string();
                    let can = (2..=Model::LAST).contains(&host)
                        && !model.held.contains_key(&host)
                        && !model.holds(&id);
                    let wish = requesting(&home, &format!("10.0.0.{host}"));
                    prop_assert_eq!(allocate(&wish, &attachment(&id)).is_ok(), can);
                    if can {
                        model.held.insert(host, id);
                        model.last = host;
                    }
                }
                Step::Del(id) => {
                    home.del(&id.to_string());
                    model.held.retain(|_, owner| *owner != id.to_string());
                }
                Step::Remove(host) => {
                    drop(fs::remove_file(home.path(&format!("10.0.0.{host}"))));
                    model.held.remove(&host);
                }
                Step::Forget => drop(fs::remove_file(home.config.location.index_path())),
            }
            if home.config.location.directory().exists() {
                let expected: Vec<_> =
                    model.held.keys().map(|host| format!("10.0.0.{host}")).collect();
                let mut found = home.addresses();
                found.sort_by_key(|name| name.parse::<IpAddr>().unwrap());
                prop_assert_eq!(found, expected);
            }
        }
    }
}
