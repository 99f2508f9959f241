//! Which addresses are freed, by which command, and which stay.

use super::*;

/// Names of containers as runtimes choose them.
const OLD: &str = "0123456789ab";

#[test]
fn repeated_and_empty_releases_are_no_error() {
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
    release(&moved.location, &attachment("a"), None).unwrap();
    assert_eq!(home.addresses(), Vec::<String>::new());
}

#[test]
fn records_without_an_interface_are_freed_with_any() {
    let home = Home::small();
    home.add("b").unwrap();
    fs::write(home.path("10.0.0.4"), "old\n").unwrap();
    fs::write(home.path("10.0.0.5"), "old").unwrap();
    check(&home.config.location, &attachment("old")).unwrap();
    home.del("old");
    assert_eq!(home.addresses(), ["10.0.0.2"]);
}

#[test]
fn a_record_without_content_is_freed() {
    let home = Home::small();
    home.add("a").unwrap();
    home.write_by_plugin("10.0.0.3", "");
    home.write_by_plugin("10.0.0.4", "\0\0\0");
    assert_eq!(home.add("b").unwrap(), ["10.0.0.3/29"]);
    assert_eq!(home.addresses(), ["10.0.0.2", "10.0.0.3"]);
}

#[test]
fn a_full_range_set_frees_records_without_content() {
    let home = Home::small();
    let add = |container| {
        let known = || Ok(Some(Vec::new()));
        let allocation =
            super::super::allocate(&home.config, &attachment(container), known, |_| Ok(()));
        allocation.map(|allocation| allocation.addresses[0].address.to_string())
    };
    home.add("a").unwrap();
    home.write_by_plugin("10.0.0.3", "");
    for (container, expected) in [("b", "10.0.0.4/29"), ("c", "10.0.0.5/29"), ("d", "10.0.0.6/29")]
    {
        assert_eq!(add(container).unwrap(), expected);
    }
    assert_eq!(add("e").unwrap(), "10.0.0.3/29");
    assert!(add("f").is_err());
}

#[test]
fn a_release_uses_the_record_if_the_store_confirms_it() {
    let home = Home::small();
    home.add("a").unwrap();
    home.write_by_plugin("10.0.0.6", "a\r\neth0");
    let [first, other]: [IpAddr; 2] = ["10.0.0.2", "10.0.0.5"].map(|text| text.parse().unwrap());
    // One of the addresses in the record is missing: the store itself is searched.
    release(&home.config.location, &attachment("a"), Some(&[first, other])).unwrap();
    assert_eq!(home.addresses(), Vec::<String>::new());
    home.add("a").unwrap();
    home.add("b").unwrap();
    let held_by_a: IpAddr = "10.0.0.3".parse().unwrap();
    release(&home.config.location, &attachment("b"), Some(&[held_by_a])).unwrap();
    assert_eq!(home.addresses(), ["10.0.0.3"]);
    release(&home.config.location, &attachment("a"), Some(&[held_by_a])).unwrap();
    assert_eq!(home.addresses(), Vec::<String>::new());
}

#[test]
fn foreign_files_are_not_used_and_not_changed() {
    let home = Home::small();
    home.add("a").unwrap();
    fs::write(home.path("10.0.0.3"), "kept for the printer").unwrap();
    fs::create_dir(home.path("10.0.0.4")).unwrap();
    fs::write(home.path("README"), "a\r\neth0").unwrap();
    assert_eq!(home.add("b").unwrap(), ["10.0.0.5/29"]);
    home.del("a");
    home.del("b");
    assert_eq!(collect(&home.config.location, &[]).unwrap(), []);
    assert_eq!(home.names(), ["10.0.0.3", "10.0.0.4", "README", "last_reserved_ip.0", "lock"]);
}

#[test]
fn an_address_blocked_by_hand_stays_blocked() {
    let home = Home::small();
    home.add("a").unwrap();
    fs::write(home.path("10.0.0.3"), "printer").unwrap();
    fs::write(home.path("10.0.0.4"), "").unwrap();
    // Written under the umask 077, which is usual for root.
    fs::write(home.path("10.0.0.5"), "").unwrap();
    fs::set_permissions(home.path("10.0.0.5"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(home.add("b").unwrap(), ["10.0.0.6/29"]);
    assert!(home.add("c").is_err());
    assert_eq!(collect(&home.config.location, &[]).unwrap(), [attachment("a"), attachment("b")]);
    assert_eq!(home.addresses(), ["10.0.0.3", "10.0.0.4", "10.0.0.5"]);
    for finding in audit(&home.config.location, Repair::Free).unwrap() {
        assert_eq!((finding.classification.kind, finding.freed), (Kind::Foreign, false));
    }
    assert_eq!(home.addresses().len(), 3);
}

#[test]
fn a_failed_add_frees_its_own_addresses_and_no_others() {
    let home = Home::small();
    home.add("a").unwrap();
    let moved = Config {
        range_sets: config(r#"{"subnet": "10.9.0.0/24"}"#).range_sets,
        ..home.config.clone()
    };
    let second = allocate(&moved, &attachment("a")).unwrap();
    assert_eq!(home.addresses(), ["10.0.0.2", "10.9.0.2"]);
    let mut forgotten = 0;
    let mut give_back = |of: &AddResult| {
        let location = &moved.location;
        super::super::give_back(location, &attachment("a"), &of.addresses, || forgotten += 1)
            .unwrap();
        forgotten
    };
    assert_eq!(give_back(&second), 0);
    assert_eq!(home.addresses(), ["10.0.0.2"]);
    // Another container has reserved it since.
    fs::write(home.path("10.9.0.2"), "b\r\neth0").unwrap();
    assert_eq!(give_back(&second), 0);
    assert_eq!(home.addresses(), ["10.0.0.2", "10.9.0.2"]);
    // The record is useless once no address is held.
    let address = "10.0.0.2/29".parse().unwrap();
    let first = Address { interface: None, address, gateway: None };
    assert_eq!(give_back(&AddResult { addresses: vec![first], ..second.clone() }), 1);
    assert_eq!(home.addresses(), ["10.9.0.2"]);
}

#[test]
fn changes_by_host_local_meanwhile_are_respected() {
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
        assert!(check(&home.config.location, &attachment("a")).is_err());
        fs::write(home.path("10.0.0.2"), "a\r\neth0").unwrap();
        assert!(check(&home.config.location, &attachment("a")).is_ok());
    }
}

#[test]
fn a_record_that_was_rewritten_in_place_is_found_by_its_content() {
    let home = Home::small();
    home.add("a").unwrap();
    fs::write(home.path("10.0.0.2"), "b\r\neth0").unwrap();
    home.del("a");
    assert_eq!(home.addresses(), ["10.0.0.2"]);
    home.del("b");
    assert_eq!(home.addresses(), Vec::<String>::new());
}

#[test]
fn a_collection_keeps_valid_attachments() {
    let home = Home::dual();
    for container in ["a", "b", "c"] {
        home.add(container).unwrap();
    }
    fs::write(home.path("10.0.0.6"), OLD).unwrap();
    let valid = [attachment("b"), attachment(OLD)];
    assert_eq!(collect(&home.config.location, &valid).unwrap(), [attachment("a"), attachment("c")]);
    assert_eq!(home.addresses(), ["10.0.0.3", "10.0.0.6", "fd00::3"]);
    let old = Attachment { container_id: OLD.into(), interface: String::new() };
    assert_eq!(collect(&home.config.location, &[]).unwrap(), [old, attachment("b")]);
    assert_eq!(home.addresses(), Vec::<String>::new());
}
