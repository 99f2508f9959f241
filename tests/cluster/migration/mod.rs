//! Changes of backend, and from flanneld to tweed, under traffic.

mod connections;
mod edit;
mod faults;
mod flip;
mod migrate;
mod takeover;
mod translated;
