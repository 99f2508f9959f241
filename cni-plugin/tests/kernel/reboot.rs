//! Containers that a runtime adds again after a boot, without having deleted them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::harness::{DUAL, Node};

/// The plugin on a machine that was booted a moment ago.
fn just_booted(node: &Node) -> PathBuf {
    let (uptime, script) = (node.home.path().join("uptime"), node.home.path().join("just-booted"));
    fs::write(&uptime, "0.00 0.00\n").unwrap();
    // The namespace of its mounts is its own.
    let text = format!(
        "#!/bin/sh\nmount --bind {} /proc/uptime && exec {}\n",
        uptime.display(),
        env!("CARGO_BIN_EXE_flannel")
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    script
}

#[test]
fn a_container_from_before_the_boot_is_added_again() {
    let node = Node::new(DUAL);
    let (before, after) = (node.pod(), node.pod());
    let config = node.config("1.0.0");
    let _ = node.add(&before, &config).result();
    before.lose_netns();
    let again = || node.call("ADD", &after, &config).with("CNI_CONTAINERID", &before.id);

    let (code, told) = again().run().error();
    assert_eq!(code, 999);
    assert!(told.contains("duplicate allocation is not allowed"), "{told}");

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
