//! Containers that a runtime adds again after a boot, without a DEL before.

use std::fs;
use std::path::PathBuf;

use tweed_lab::install;

use crate::harness::kernel::Place;
use crate::harness::{DUAL, Node};

/// The plugin, as if the machine had just been booted.
fn just_booted(node: &Node) -> PathBuf {
    let (uptime, script) = (node.home.path().join("uptime"), node.home.path().join("just-booted"));
    fs::write(&uptime, "0.00 0.00\n").unwrap();
    // It has its own mount namespace.
    let text = format!(
        "#!/bin/sh\nmount --bind {} /proc/uptime && exec {}\n",
        uptime.display(),
        env!("CARGO_BIN_EXE_flannel")
    );
    install(&text, &script).unwrap();
    script
}

#[test]
fn a_container_from_before_the_boot_is_added_again() {
    // No other namespace of the machine has these addresses.
    let node = Node::new(&DUAL.replace("10.244.7.", "10.244.77.").replace(":7::", ":77::"));
    let (before, after) = (node.pod(), node.pod());
    let config = node.config("1.0.0");
    let _ = node.add(&before, &config).result();
    before.lose_netns();
    let again = || node.call("ADD", &after, &config).with("CNI_CONTAINERID", &before.id);

    let (code, error) = again().run().error();
    assert_eq!(code, 999);
    assert!(error.contains("duplicate allocation is not allowed"), "{error}");

    let added = again().program(&just_booted(&node)).run().addresses();
    let mut added: Vec<_> = added.iter().map(|it| it.split('/').next().unwrap()).collect();
    added.sort_unstable();
    let held = node.reservations();
    assert_eq!(held.iter().map(|(address, _)| address.as_str()).collect::<Vec<_>>(), added);
    assert!(held.iter().all(|(_, owner)| owner.contains(&before.id)), "{held:?}");

    node.call("DEL", &after, &config).with("CNI_CONTAINERID", &before.id).run().is_silent();
    assert_eq!(node.reservations(), []);
    assert_eq!(node.states(), [] as [&str; 0]);
}

#[test]
fn a_clock_set_forward_removes_nothing_of_a_running_container() {
    let node = Node::new(DUAL);
    let pod = node.pod();
    let config = node.config("1.0.0");
    let _ = node.add(&pod, &config).result();
    let before = (node.states(), node.reservations(), node.links());
    // The record appears older than the boot.
    let again = node.call("ADD", &pod, &config).program(&just_booted(&node)).run();
    let (_, error) = again.error();
    assert!(error.contains("duplicate allocation is not allowed"), "{error}");
    assert_eq!((node.states(), node.reservations(), node.links()), before);
    assert!(pod.pings("10.244.7.1"));
}

#[test]
fn a_failed_add_removes_nothing_of_a_container_whose_reservation_was_lost() {
    let node = Node::new(&DUAL.replace("FLANNEL_IPMASQ=true", "FLANNEL_IPMASQ=false"));
    let pod = node.pod();
    let config = node.config("1.0.0");
    let _ = node.add(&pod, &config).result();
    let rules = || node.exec("nft list table inet cni_plugins_masquerade").1;
    let before = (node.states(), node.links(), rules());
    fs::remove_dir_all(node.store()).unwrap();
    let (_, error) = node.add(&pod, &config).error();
    assert!(error.ends_with("already exists"), "{error}");
    assert_eq!(node.reservations(), []);
    assert_eq!((node.states(), node.links(), rules()), before);
    assert!(pod.pings("10.244.7.1"));
    node.del(&pod, &config).is_silent();
    assert_eq!(node.links(), ["cni0"]);
}
