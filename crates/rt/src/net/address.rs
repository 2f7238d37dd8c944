//! Local and peer addresses of a socket.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use io::Errno;
use io::op::PeerAddr;
use rustix::net::{SocketAddrAny, SocketAddrUnix};

/// Returns the peer's address. A unix peer usually has no name; then the path is empty.
pub fn peer(socket: impl AsFd) -> Result<PeerAddr, Errno> {
    let address = match rustix::net::getpeername(&socket) {
        // The peer has reset the connection, perhaps before it was accepted.
        Err(Errno::NOTCONN) => return io::sys::lost_peer(socket.as_fd()).map(PeerAddr::Inet),
        address => address?,
    };
    address.map_or(Ok(PeerAddr::Unix(PathBuf::new())), from_any)
}

/// Returns the local address.
pub fn local(socket: impl AsFd) -> Result<PeerAddr, Errno> {
    from_any(rustix::net::getsockname(socket)?)
}

fn from_any(address: SocketAddrAny) -> Result<PeerAddr, Errno> {
    if let Ok(address) = SocketAddr::try_from(address.clone()) {
        return Ok(PeerAddr::Inet(address));
    }
    let address = SocketAddrUnix::try_from(address)?;
    let path = address.path_bytes().unwrap_or_default();
    Ok(PeerAddr::Unix(PathBuf::from(OsStr::from_bytes(path))))
}
