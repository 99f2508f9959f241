//! What programs serve about themselves: an HTTP server for health, metrics and answers, and the page of
//! metrics.

mod connections;
mod listener;
mod server;

pub mod page;
pub mod process;

pub use listener::{Listener, bind_control, bind_tcp};
pub use server::{Response, event_stream, get_unix, html, json, not_found, serve, text};
