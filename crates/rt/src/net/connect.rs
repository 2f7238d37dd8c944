//! Outgoing connections: the options of their sockets, and the step that failed.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use io::op::PeerAddr;
use io::{Errno, NetOp, Op};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::socket::Socket;
use crate::reactor::{self, OpFuture};

/// Options of a socket before it connects. The defaults are those of the system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Local address. With port 0, the system chooses the port.
    pub bind: Option<SocketAddr>,
    /// Whether `bind` may be an address of another machine (`IP_TRANSPARENT`, `IPV6_TRANSPARENT`); needs `CAP_NET_RAW`
    /// or `CAP_NET_ADMIN`.
    pub transparent: bool,
    /// Whether the system chooses the port only when the peer is known, so that one port can serve several peers
    /// (`IP_BIND_ADDRESS_NO_PORT`, Linux 4.2). Without kernel support, the port is chosen immediately.
    pub bind_address_no_port: bool,
    /// `SO_KEEPALIVE`.
    pub keepalive: bool,
    /// `TCP_NODELAY`; ignored on unix sockets.
    pub nodelay: bool,
    /// `SO_RCVBUF`, bytes. It must be set before the connection is established to affect the window scale.
    pub receive_buffer: Option<u32>,
    /// `SO_SNDBUF`, bytes.
    pub send_buffer: Option<u32>,
}

/// The step of a connect that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectStep {
    /// Creating the socket.
    Socket,
    /// Setting the option of this name.
    Option(&'static str),
    /// Binding to the local address.
    Bind,
    /// Connecting to the peer.
    Connect,
}

/// An error of a connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectError {
    /// The step that failed.
    pub step: ConnectStep,
    /// The kernel's error.
    pub errno: Errno,
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errno = std::io::Error::from(self.errno);
        match self.step {
            ConnectStep::Socket => write!(f, "socket() failed ({errno})"),
            ConnectStep::Option(name) => write!(f, "setsockopt({name}) failed ({errno})"),
            ConnectStep::Bind => write!(f, "bind() failed ({errno})"),
            ConnectStep::Connect => write!(f, "connect() failed ({errno})"),
        }
    }
}

impl std::error::Error for ConnectError {}

impl From<ConnectError> for Errno {
    fn from(error: ConnectError) -> Errno {
        error.errno
    }
}

impl ConnectStep {
    fn failed(self) -> impl FnOnce(Errno) -> ConnectError {
        move |errno| ConnectError { step: self, errno }
    }
}

impl Socket {
    /// Connects to a peer with the system's defaults.
    pub async fn connect(peer: PeerAddr) -> Result<Socket, Errno> {
        Ok(Socket::connect_with(peer, &ConnectOptions::default()).await?)
    }

    /// Connects to a peer. The caller limits the time: dropping the future cancels the attempt, and the socket is
    /// closed when the engine has released it.
    pub async fn connect_with(peer: PeerAddr, options: &ConnectOptions) -> Result<Socket, ConnectError> {
        let fd = options.prepare(family_of(&peer), SocketType::STREAM)?;
        let is_tcp = !matches!(peer, PeerAddr::Unix(_));
        if options.nodelay && is_tcp {
            let set = sockopt::set_tcp_nodelay(&fd, true);
            set.map_err(ConnectStep::Option("TCP_NODELAY").failed())?;
        }
        let socket = Socket::new(fd);
        if is_tcp {
            socket.fd().set_tcp();
        }
        let op = Op::Net(NetOp::Connect { socket: socket.fd().clone(), peer });
        let connected = OpFuture::new(&reactor::current(), op).await.result;
        connected.map(|_| socket).map_err(ConnectStep::Connect.failed())
    }
}

pub(super) fn family_of(peer: &PeerAddr) -> AddressFamily {
    match peer {
        PeerAddr::Inet(SocketAddr::V4(_)) => AddressFamily::INET,
        PeerAddr::Inet(SocketAddr::V6(_)) => AddressFamily::INET6,
        PeerAddr::Unix(_) => AddressFamily::UNIX,
    }
}

impl ConnectOptions {
    /// Creates a socket with the options of every kind of socket; binds it if requested.
    pub(super) fn prepare(&self, family: AddressFamily, kind: SocketType) -> Result<OwnedFd, ConnectError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(family, kind, flags, None);
        let fd = fd.map_err(ConnectStep::Socket.failed())?;
        let failed = |name: &'static str| ConnectStep::Option(name).failed();
        if self.keepalive {
            sockopt::set_socket_keepalive(&fd, true).map_err(failed("SO_KEEPALIVE"))?;
        }
        if let Some(bytes) = self.receive_buffer {
            sockopt::set_socket_recv_buffer_size(&fd, bytes as usize).map_err(failed("SO_RCVBUF"))?;
        }
        if let Some(bytes) = self.send_buffer {
            sockopt::set_socket_send_buffer_size(&fd, bytes as usize).map_err(failed("SO_SNDBUF"))?;
        }
        let Some(address) = self.bind.filter(|_| family != AddressFamily::UNIX) else { return Ok(fd) };
        if self.transparent {
            let set = io::sys::set_transparent(fd.as_fd(), family == AddressFamily::INET6);
            set.map_err(failed("IP_TRANSPARENT"))?;
        }
        if self.bind_address_no_port {
            match io::sys::set_bind_address_no_port(fd.as_fd()) {
                // Without this option, the ports of the address are only used up sooner.
                Ok(()) | Err(Errno::NOPROTOOPT | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(failed("IP_BIND_ADDRESS_NO_PORT")(errno)),
            }
        }
        rustix::net::bind(&fd, &address).map_err(ConnectStep::Bind.failed())?;
        Ok(fd)
    }
}
