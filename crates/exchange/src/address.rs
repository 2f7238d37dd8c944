//! One end of a connection: the client's address, or the local address that it connected to.

use std::fmt;
use std::io::Write as _;
use std::net::SocketAddr;

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// An IPv4 or IPv6 address with its port.
    Inet(SocketAddr),
    /// A UNIX-domain socket with the path it is bound to. The path is empty for a client.
    Unix(Vec<u8>),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Inet(address) => address.ip().fmt(f),
            Address::Unix(_) => f.write_str("unix:"),
        }
    }
}

impl Address {
    /// Appends the address in the form of `$remote_addr`.
    pub fn show_address(&self, out: &mut Vec<u8>) -> bool {
        // Writing to a `Vec` cannot fail.
        let _ = match self {
            Address::Inet(address) => write!(out, "{}", address.ip()),
            Address::Unix(path) => write!(out, "unix:").and_then(|()| out.write_all(path)),
        };
        true
    }

    /// Appends the port. Appends nothing for a UNIX-domain socket, and for an address that a proxy reported without a
    /// port; the value is empty then.
    pub fn show_port(&self, out: &mut Vec<u8>) -> bool {
        if let Address::Inet(address) = self
            && address.port() != 0
        {
            http::push_decimal(out, address.port().into());
        }
        true
    }
}
