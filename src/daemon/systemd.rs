//! Notifies systemd of the daemon's status.

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use anyhow::{Context, Result};

use super::Shared;
use crate::excerpt;

/// Notifies systemd once that the daemon is ready, and then of each change of its status.
pub(super) async fn notify_when_ready(shared: Shared) -> Result<()> {
    shared.until_ready().await?;
    notify("READY=1");
    let mut progress = shared.progress.clone();
    loop {
        let reasons = progress.borrow_and_update().readiness.reasons.join("; ");
        // A second line would be another assignment to systemd.
        let reasons = excerpt::line(&reasons);
        let status = if reasons.is_empty() { "running" } else { &reasons };
        notify(&format!("STATUS={status}"));
        progress.changed().await.context("the loop has ended")?;
    }
}

/// Sends `message` to the socket in `NOTIFY_SOCKET`, if it is set.
fn notify(message: &str) {
    let name = env::var("NOTIFY_SOCKET").unwrap_or_default();
    if !name.is_empty()
        && let Err(error) = send_to(&name, message)
    {
        tracing::debug!(%error, message, "notifying systemd failed");
    }
}

fn send_to(name: &str, message: &str) -> io::Result<()> {
    let address = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(listener: &UnixDatagram) -> String {
        let mut buffer = [0; 64];
        let length = listener.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn a_named_socket_gets_the_message() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let listener = UnixDatagram::bind(&path).unwrap();
        send_to(path.to_str().unwrap(), "READY=1").unwrap();
        assert_eq!(received(&listener), "READY=1");
    }

    #[test]
    fn an_abstract_socket_gets_the_message() {
        let address = SocketAddr::from_abstract_name("tweed-notify-test").unwrap();
        let listener = UnixDatagram::bind_addr(&address).unwrap();
        send_to("@tweed-notify-test", "READY=1").unwrap();
        assert_eq!(received(&listener), "READY=1");
    }

    #[test]
    fn a_missing_socket_is_an_error() {
        assert!(send_to("/nowhere/notify", "READY=1").is_err());
    }
}
