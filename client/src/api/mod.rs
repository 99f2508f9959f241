//! The API servers of Kubernetes: requests, and the histories of objects.

mod client;
mod connect;
mod history;
mod lines;
mod newest;
mod request;

pub use client::{ApiServers, Client, Dropped};
pub use connect::{ApiOptions, Program, own_namespace};
pub use history::{Continuity, Event, GAP, History, Kind, pages};
pub use request::{ApiRequest, Collection, built};
