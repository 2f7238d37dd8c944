//! One end of a connection: a client, or the address it connected to.

use std::fmt;
use std::io::Write as _;
use std::net::SocketAddr;

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// An address of IPv4 or IPv6.
    Inet(SocketAddr),
    /// A unix socket with the path it is bound to; empty for a client's.
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
    /// Appends it as `$remote_addr` has it.
    pub fn show_address(&self, out: &mut Vec<u8>) -> bool {
        // A vector takes every write.
        let _ = match self {
            Address::Inet(address) => write!(out, "{}", address.ip()),
            Address::Unix(path) => write!(out, "unix:").and_then(|()| out.write_all(path)),
        };
        true
    }

    /// Appends its port, which a unix socket does not have, nor an address that a proxy names without one.
    pub fn show_port(&self, out: &mut Vec<u8>) -> bool {
        if let Address::Inet(address) = self
            && address.port() != 0
        {
            http::push_decimal(out, address.port().into());
        }
        true
    }
}
