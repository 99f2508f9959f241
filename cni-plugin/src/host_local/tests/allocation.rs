//! Addresses that an ADD gets, and refusals.

use super::*;

#[test]
fn the_store_has_the_form_of_host_locals() {
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
    for (name, mode) in [("10.0.0.2", 0o1600), ("last_reserved_ip.0", 0o600), ("lock", 0o750)] {
        let found = fs::metadata(home.path(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(found, mode, "{name}");
    }
    assert_eq!(names_in(&home.config.location.data_dir), ["net"]);
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
fn a_freed_address_is_allocated_last() {
    let home = Home::small();
    assert_eq!(home.add("a").unwrap(), ["10.0.0.2/29"]);
    home.del("a");
    let next: Vec<_> = (0..5).map(|id| home.add(&format!("b{id}")).unwrap().concat()).collect();
    assert_eq!(next, ["10.0.0.3/29", "10.0.0.4/29", "10.0.0.5/29", "10.0.0.6/29", "10.0.0.2/29"]);
}

#[test]
fn an_exhausted_pool_is_reported_as_by_host_local_and_recovers() {
    let home = Home::small();
    for id in 0..5 {
        home.add(&format!("a{id}")).unwrap();
    }
    let expected =
        "failed to allocate for range 0: no IP addresses available in range set: 10.0.0.1-10.0.0.6";
    assert_eq!(msg(home.add("b")), expected);
    assert!(status(&home.config).is_ok(), "its pods would be evicted");
    home.del("a3");
    assert_eq!(home.add("b").unwrap(), ["10.0.0.5/29"]);
}

#[test]
fn a_failure_of_one_family_leaves_no_address_of_the_other() {
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
    release(&home.config.location, &second, None).unwrap();
    assert_eq!(home.addresses(), ["10.0.0.2"]);
    check(&home.config.location, &attachment("a")).unwrap();
    assert!(msg(check(&home.config.location, &second)).contains("Failed to find address"));
}

#[test]
fn a_requested_address_is_allocated_if_it_is_free() {
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
fn a_store_that_no_add_can_use_is_reported_by_status() {
    let home = Home::small();
    fs::create_dir_all(&home.config.location.data_dir).unwrap();
    fs::write(home.config.location.directory(), "no directory").unwrap();
    assert!(home.add("a").is_err());
    assert_eq!(status(&home.config).unwrap_err().code, 50);
    home.del("a");
}

#[test]
fn the_addresses_are_kept_before_they_are_reserved() {
    let home = Home::dual();
    let reserved_at_keep = |kept: &[IpAddr]| {
        assert_eq!(home.addresses(), Vec::<String>::new());
        Err(Error::failed(format!("{kept:?}")))
    };
    let refused =
        super::super::allocate(&home.config, &attachment("a"), || Ok(None), reserved_at_keep);
    assert_eq!(msg(refused), "[10.0.0.2, fd00::2]");
    assert_eq!(home.addresses(), Vec::<String>::new());
}

#[test]
fn the_kept_addresses_include_those_of_other_ranges() {
    let home = Home::small();
    home.add("a").unwrap();
    let moved = Config {
        range_sets: config(r#"{"subnet": "10.9.0.0/24"}"#).range_sets,
        ..home.config.clone()
    };
    let mut kept = Vec::new();
    let keep = |addresses: &[IpAddr]| {
        kept = addresses.to_vec();
        Ok(())
    };
    super::super::allocate(&moved, &attachment("a"), || Ok(None), keep).unwrap();
    release(&moved.location, &attachment("a"), Some(&kept)).unwrap();
    assert_eq!(home.addresses(), Vec::<String>::new());
}
