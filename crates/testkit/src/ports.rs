//! Ports of this machine that no other program gets while a test uses them.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::gate::lock;

/// Returns a port of 127.0.0.1 for a server that sets SO_REUSEADDR. It is reserved until the test program ends.
#[track_caller]
pub fn free_port() -> u16 {
    free_port_of(Ipv4Addr::LOCALHOST)
}

/// Returns a port of an address of this machine, like [`free_port`].
#[track_caller]
pub fn free_port_of(ip: Ipv4Addr) -> u16 {
    static KEEPERS: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());
    let (keeper, address) = reserved((ip, 0).into());
    lock(&KEEPERS).push(keeper);
    address.port()
}

/// Returns a socket that reserves a port as long as it is open, and its address with that port.
#[track_caller]
pub(crate) fn reserved(address: SocketAddr) -> (OwnedFd, SocketAddr) {
    let keeper = bound(address).unwrap_or_else(|error| panic!("bind {address}: {error}"));
    let name = rustix::net::getsockname(&keeper).map(SocketAddr::try_from);
    let Ok(Ok(address)) = name else { panic!("a bound socket has an address, not {name:?}") };
    (keeper, address)
}

/// Returns a TCP socket that is bound and does not listen. socket(7): with SO_REUSEADDR another socket may be bound to
/// the same port while neither listens, and then listen.
pub(crate) fn bound(address: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}
