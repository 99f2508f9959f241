//! How servers are reached, and why not.

use std::error::Error as StdError;
use std::fmt;
use std::iter::successors;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;

/// How servers are reached.
#[derive(Clone, Default)]
pub enum Transport<C> {
    #[default]
    Sockets,
    /// Servers in memory.
    Channels(Arc<OpenChannel<C>>),
}

/// Opens a connection to an endpoint, or returns why it cannot.
type OpenChannel<C> = dyn Fn(&str) -> Result<C, String> + Send + Sync;

impl<C> fmt::Debug for Transport<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sockets => "Sockets",
            Self::Channels(_) => "Channels",
        })
    }
}

/// Whether secrets may be sent to the server `url`: over TLS, or on this host.
pub fn is_protected(url: &Uri) -> bool {
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_loopback = host.parse().map_or(host == "localhost", |ip: IpAddr| ip.is_loopback());
    url.scheme_str() == Some("https") || is_loopback
}

pub fn no_answer(timeout: Duration) -> String {
    format!("no answer within {} s", timeout.as_secs())
}

/// `message` with the innermost cause, which is the most specific.
pub fn with_cause(message: &str, cause: Option<&(dyn StdError + 'static)>) -> String {
    let innermost = successors(cause, |error| (*error).source()).last().map(ToString::to_string);
    match innermost {
        Some(innermost) if !message.contains(&innermost) => format!("{message}: {innermost}"),
        Some(_) | None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_protected_by_tls_and_on_this_host() {
        let protected = ["https://10.0.0.1:6443", "http://127.0.0.1:8001", "http://[::1]:8001"];
        for url in protected.into_iter().chain(["http://localhost:8001"]) {
            assert!(is_protected(&url.parse().unwrap()), "{url}");
        }
        for url in ["http://10.0.0.1:6443", "http://[fd00::1]", "http://localhost.example.org"] {
            assert!(!is_protected(&url.parse().unwrap()), "{url}");
        }
    }
}
