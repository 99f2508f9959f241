//! Sends status notifications to systemd.

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends `message` (`READY=1`, `STATUS=…`) to the socket in `NOTIFY_SOCKET`, if it is set.
///
/// # Errors
/// The socket cannot be written to.
pub fn send(message: &str) -> io::Result<()> {
    match env::var("NOTIFY_SOCKET") {
        Ok(name) if !name.is_empty() => send_to(&name, message),
        _ => Ok(()),
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
