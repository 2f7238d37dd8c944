//! Ports of loopback for the servers of a run. No other program of the machine gets them, not even between two starts.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::failure::Failure;

/// The reserved ports: for each a socket that is bound and does not listen. socket(7): with SO_REUSEADDR another socket may be
/// bound to the same port while neither listens, and then listen. All servers of this suite set it.
#[derive(Debug, Default)]
pub(crate) struct Ports(RefCell<Vec<OwnedFd>>);

impl Ports {
    /// Returns a free port, reserved until the end of the run.
    pub(crate) fn reserve(&self) -> Result<u16, Failure> {
        self.reserve_number(0)
    }

    /// Reserves a port until the end of the run; 0 stands for any free one. Fails if another program listens on it.
    pub(crate) fn reserve_number(&self, wanted: u16) -> Result<u16, Failure> {
        let socket =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let bound = socket.and_then(|socket| {
            rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
            rustix::net::bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, wanted)))?;
            Ok((SocketAddr::try_from(rustix::net::getsockname(&socket)?)?.port(), socket))
        });
        let failed = Failure::kernel(format!("listening on 127.0.0.1:{wanted}"));
        let (port, socket) = bound.map_err(|error| failed(std::io::Error::from(error)))?;
        self.0.borrow_mut().push(socket);
        Ok(port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_server_can_listen_on_a_reserved_port_and_nobody_else_gets_it() {
        let ports = Ports::default();
        let port = ports.reserve().unwrap();
        let address = (Ipv4Addr::LOCALHOST, port);
        assert!(TcpStream::connect(address).is_err(), "nobody listens yet");
        for _ in 0..2 {
            // std sets SO_REUSEADDR.
            let listener = TcpListener::bind(address).unwrap();
            assert!(TcpStream::connect(address).is_ok());
            assert!(ports.reserve_number(port).is_err(), "somebody listens");
            drop(listener);
        }
        let others = Ports::default();
        assert!((0..1000).all(|_| others.reserve().unwrap() != port));
        let free = |_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        assert!((0..1000).map(free).all(|other| other != port));
    }
}
