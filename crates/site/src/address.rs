//! One end of a connection: the client's address, or the local address that it connected to.

use io::op::PeerAddr;
use std::fmt;
use std::io::Write as _;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// An IPv4 or IPv6 address with its port.
    Inet(SocketAddr),
    /// A UNIX-domain socket with the path it is bound to. The path is empty for a client.
    Unix(Vec<u8>),
}

/// The network of a client: its IPv4 address, or the first 64 bits of its IPv6 address. `None` for UNIX-domain sockets.
pub type ClientNetwork = Option<IpAddr>;

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Inet(address) => address.ip().fmt(f),
            Address::Unix(_) => f.write_str("unix:"),
        }
    }
}

/// An address that is formatted with its port: `127.0.0.1:80`, `[::1]:80`, `unix:`.
pub struct WithPort<'a>(pub &'a Address);

impl fmt::Display for WithPort<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Address::Inet(address) => address.fmt(f),
            unix @ Address::Unix(_) => unix.fmt(f),
        }
    }
}

impl Address {
    /// Returns the network of a client, for limits that clients share: an IPv6 client can use any address of its network.
    #[must_use]
    pub fn client_network(&self) -> ClientNetwork {
        match self {
            Address::Unix(_) => None,
            Address::Inet(address) => Some(match address.ip().to_canonical() {
                IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
                ip => ip,
            }),
        }
    }

    /// Appends the address in the form of `$remote_addr`.
    pub fn show_address(&self, out: &mut Vec<u8>) -> bool {
        match self {
            Address::Inet(SocketAddr::V4(address)) => {
                for (index, octet) in address.ip().octets().into_iter().enumerate() {
                    if index > 0 {
                        out.push(b'.');
                    }
                    http::push_decimal(out, octet.into());
                }
            }
            Address::Inet(SocketAddr::V6(address)) => {
                // Writing to a `Vec` cannot fail.
                let _ = write!(out, "{}", address.ip());
            }
            Address::Unix(path) => {
                out.extend_from_slice(b"unix:");
                out.extend_from_slice(path);
            }
        }
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

impl From<PeerAddr> for Address {
    fn from(address: PeerAddr) -> Address {
        use std::os::unix::ffi::OsStringExt;
        match address {
            PeerAddr::Inet(address) => Address::Inet(address),
            PeerAddr::Unix(path) => Address::Unix(path.into_os_string().into_vec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_networks_of_ipv6_clients_have_64_bits() {
        let of = |text: &str| Address::Inet(text.parse().unwrap()).client_network();
        assert_eq!(of("[2001:db8::1]:1"), of("[2001:db8::ffff:1]:2"));
        assert_ne!(of("[2001:db8::1]:1"), of("[2001:db8:0:1::1]:1"));
        assert_eq!(of("[::ffff:192.0.2.1]:1"), of("192.0.2.1:2"));
        assert_ne!(of("192.0.2.1:1"), of("192.0.2.2:1"));
    }
}
