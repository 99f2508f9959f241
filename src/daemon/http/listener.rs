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

/// What happens to a new connection when the maximum number is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// It waits until another one ends.
    Wait,
    /// It replaces the one that has been silent longest.
    Drop,
}

pub trait Listener {
    type Connection: AsyncRead + AsyncWrite + Unpin + 'static;
    const WHEN_FULL: WhenFull;

    /// The next connection, and its source address, if it has one.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Connection, Option<IpAddr>)>>;
}

/// Any host may connect.
impl Listener for TcpListener {
    type Connection = TcpStream;
    const WHEN_FULL: WhenFull = WhenFull::Drop;

    async fn accept(&self) -> io::Result<(Self::Connection, Option<IpAddr>)> {
        let (connection, source) = Self::accept(self).await?;
        Ok((connection, Some(source.ip().to_canonical())))
    }
}

/// Only root may connect.
impl Listener for UnixListener {
    type Connection = UnixStream;
    const WHEN_FULL: WhenFull = WhenFull::Wait;

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
    if !address.ip().is_unspecified() {
        return listen(own_family(address)?, address);
    }
    // A host without IPv6 has no such sockets.
    match dual_stack() {
        Ok(socket) => listen(socket, SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port())),
        Err(_) => listen(own_family(address)?, address),
    }
}

fn own_family(address: SocketAddr) -> io::Result<TcpSocket> {
    if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }
}

fn dual_stack() -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v6()?;
    setsockopt(&socket, sockopt::Ipv6V6Only, &false)?;
    Ok(socket)
}

fn listen(socket: TcpSocket, address: SocketAddr) -> io::Result<TcpListener> {
    // A connection of the previous daemon may still be closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
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
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "the file exists and is not a socket",
            ));
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
