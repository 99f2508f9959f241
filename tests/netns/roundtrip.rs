//! What is written is read back as it was written.

use tweed::kernel::NetlinkKernel;
use tweed::model::entry::{Entry, SettingKind};

use crate::host::{dump, establish, everything, on_a_host};

#[test]
fn every_kind_of_entry_is_read_back_as_written() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        assert_eq!(establish(&mut kernel, &everything()).await, [""; 0]);
        let mut held = dump(&mut kernel).await;
        held.retain(|entry| !is_the_kernels(entry));
        assert_eq!(held, everything());
    });
}

/// With an IPv6 address comes a route to it, and with a device who computes its checksums.
fn is_the_kernels(entry: &Entry) -> bool {
    match entry {
        Entry::Route(route) => route.protocol == 2,
        Entry::Setting(setting) => setting.is_on(SettingKind::TxChecksum),
        _ => false,
    }
}
