//! A connected stream socket of either family, used by the client and the origin.
//!
//! [`Socket`] reads and writes through a shared reference, so that another thread can end it by [`Socket::shutdown`]
//! while a call blocks. Deadlines are in the client.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::server::ListenAddr;

/// A connection of either family.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Connects, blocking, with TCP_NODELAY.
    pub(crate) fn connect(to: &ListenAddr) -> io::Result<Socket> {
        match to {
            ListenAddr::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                Ok(Socket::Tcp(stream))
            }
            ListenAddr::Unix(path) => Ok(Socket::Unix(UnixStream::connect(path)?)),
        }
    }

    /// Connects with a receive buffer of about `bytes`.
    pub(crate) fn connect_narrow(address: SocketAddr, bytes: usize) -> io::Result<Socket> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // Set before the connect, because the window scale is negotiated in the handshake.
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, bytes)?;
        rustix::net::connect(&socket, &address)?;
        Ok(Socket::Tcp(TcpStream::from(socket)))
    }

    pub(crate) fn read(&self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&mut &*stream).read(out),
            Socket::Unix(stream) => (&mut &*stream).read(out),
        }
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&mut &*stream).write(bytes),
            Socket::Unix(stream) => (&mut &*stream).write(bytes),
        }
    }

    pub(crate) fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => (&mut &*stream).write_all(bytes),
            Socket::Unix(stream) => (&mut &*stream).write_all(bytes),
        }
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.shutdown(how),
            Socket::Unix(stream) => stream.shutdown(how),
        }
    }

    pub(crate) fn set_read_timeout(&self, left: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.set_read_timeout(left),
            Socket::Unix(stream) => stream.set_read_timeout(left),
        }
    }

    pub(crate) fn set_write_timeout(&self, left: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.set_write_timeout(left),
            Socket::Unix(stream) => stream.set_write_timeout(left),
        }
    }

    /// Makes the next close a reset. socket(7): SO_LINGER with zero seconds makes close() send RST; on a unix socket it
    /// has no effect.
    pub(crate) fn reset_on_close(&self) {
        let _ = rustix::net::sockopt::set_socket_linger(self, Some(Duration::ZERO));
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
        }
    }
}
