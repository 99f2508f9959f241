//! The snapshot of all leases that nodes share in etcd: unchanged, or with its name and checksum
//! around content that inflates to the input.

#![no_main]

#[path = "../../notation/mod.rs"]
mod notation;
#[path = "../records.rs"]
mod records;

use libfuzzer_sys::fuzz_target;
use miniz_oxide::deflate::compress_to_vec;
use tweed::store::etcd::read_snapshot;

const NAME: &[u8] = b"tweed leases 1\n";

fuzz_target!(|input: (bool, &[u8])| {
    let (is_deflated, bytes) = input;
    let deflated = if is_deflated { bytes.to_vec() } else { compress_to_vec(bytes, 1) };
    let checksum = crc32fast::hash(&deflated).to_be_bytes();
    assert!(read_snapshot(bytes).is_none_or(|_| bytes.starts_with(NAME)));
    if let Some(read) = read_snapshot(&[NAME, &checksum, &deflated].concat()) {
        records::check(read);
    }
});
