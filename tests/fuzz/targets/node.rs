//! Nodes with their annotations, as the API server sends them: a line of JSON for each.

#![no_main]

#[path = "../../notation/mod.rs"]
mod notation;
#[path = "../records.rs"]
mod records;

use libfuzzer_sys::fuzz_target;
use tweed::store::kube::read_node;

fuzz_target!(|input: &[u8]| {
    records::check(input.split(|byte| *byte == b'\n').filter_map(read_node).collect());
});
