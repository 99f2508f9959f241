//! Properties of every plan, every kernel and every history of leases.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

#[path = "properties/any.rs"]
mod any;
#[path = "properties/difference.rs"]
mod difference;
#[path = "properties/foreign.rs"]
mod foreign;
#[path = "properties/history.rs"]
mod history;
mod notation;
#[path = "fuzz/records.rs"]
mod records;

use proptest::prelude::ProptestConfig;

/// A failing case becomes a test of its own; no file of seeds is written.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}
