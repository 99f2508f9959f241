//! Leases in etcd: keys and values.

#![no_main]

#[path = "../../notation/mod.rs"]
mod notation;
#[path = "../records.rs"]
mod records;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| records::check(records::leases(input)));
