//! The listeners: TCP, for both address families if the address is unspecified, and a Unix socket.

use std::fs::{File, Permissions};
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixSocket, UnixStream};

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: u32 = 1024;

pub trait Listener {
    type Connection: AsyncRead + AsyncWrite + Unpin + 'static;
    /// When the maximum number is open, whether a new connection replaces the one that has been
    /// silent longest. Otherwise it waits until another one ends.
    const REPLACES: bool;

    /// The next connection, and its source address, if it has one.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Connection, Option<IpAddr>)>>;
}

/// Any host may connect.
impl Listener for TcpListener {
    type Connection = TcpStream;
    const REPLACES: bool = true;

    async fn accept(&self) -> io::Result<(Self::Connection, Option<IpAddr>)> {
        let (connection, source) = Self::accept(self).await?;
        Ok((connection, Some(source.ip().to_canonical())))
    }
}

/// Only root may connect.
impl Listener for UnixListener {
    type Connection = UnixStream;
    const REPLACES: bool = false;

    async fn accept(&self) -> io::Result<(Self::Connection, Option<IpAddr>)> {
        Self::accept(self).await.map(|(connection, _)| (connection, None))
    }
}

/// Listens on `address`. The unspecified address of either family means all addresses of both, as
/// in Go.
///
/// # Errors
/// The address is in use, or is not an address of this host.
pub fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    // A host without IPv6 has no sockets of both families.
    let of_both = address.ip().is_unspecified().then(dual_stack).and_then(Result::ok);
    let (socket, address) = match of_both {
        Some(socket) => (socket, SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port())),
        None if address.is_ipv4() => (TcpSocket::new_v4()?, address),
        None => (TcpSocket::new_v6()?, address),
    };
    // A connection of the previous daemon may still be closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn dual_stack() -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v6()?;
    setsockopt(&socket, sockopt::Ipv6V6Only, &false)?;
    Ok(socket)
}

/// Binds `path`, with access for root only. A socket on which no process answers is replaced.
///
/// # Errors
/// Another process answers on it, or the path cannot be used.
pub fn bind_control(path: &Path) -> io::Result<UnixListener> {
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        let message = "another tweedd listens on it: stop it first, or start this one with its own --subnet-file";
        return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    match std::fs::symlink_metadata(path) {
        Ok(file) if !file.file_type().is_socket() => {
            let message = "the file exists and is not a socket";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
        }
        Ok(_) => std::fs::remove_file(path)?,
        Err(_) => {}
    }
    let socket = restricted()?;
    socket.bind(path)?;
    socket.listen(BACKLOG)
}

/// A socket whose file only its owner may use from its creation on: it gets the mode of the socket.
fn restricted() -> io::Result<UnixSocket> {
    let socket = UnixSocket::new_stream()?;
    let file = File::from(socket.as_fd().try_clone_to_owned()?);
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_control_socket_is_never_open_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("test.sock");
        let socket = restricted().unwrap();
        socket.bind(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
