//! What a runtime sends and gets: the environment, configs, results and errors of CNI.

pub mod error;
pub mod json;
pub mod network_config;
pub mod request;
pub mod result;
pub mod version;
