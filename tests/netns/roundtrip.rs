//! Tests that entries are read back as they were written.

use tweed::kernel::NetlinkKernel;
use tweed::model::entry::{Entry, SettingKind};

use crate::host::{dump, establish, everything, on_a_host};

#[test]
fn every_kind_of_entry_is_read_back_as_written() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        assert_eq!(establish(&mut kernel, &everything()).await, [""; 0]);
        let mut held = dump(&mut kernel).await;
        held.retain(|entry| !is_created_by_the_kernel(entry));
        assert_eq!(held, everything());
    });
}

/// The kernel adds a route for an IPv6 address, and a checksum setting for a device.
pub(crate) fn is_created_by_the_kernel(entry: &Entry) -> bool {
    match entry {
        Entry::Route(route) => route.protocol == 2,
        Entry::Setting(setting) => setting.is_on(SettingKind::TxChecksum),
        _ => false,
    }
}
