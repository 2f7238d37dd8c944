//! Writes the header of the PROXY protocol, for an upstream that needs the addresses of the client.

use std::net::{IpAddr, SocketAddr};

/// Signature of version 2; no request and no version 1 header starts with it.
pub(super) const V2_SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// Length of signature, version and command, family and transport, and the length field.
pub(super) const V2_FIXED_LEN: usize = 16;

/// The transport of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// TCP.
    Stream,
    /// UDP.
    Datagram,
}

/// Addresses of the client, and of this server.
pub type Addresses = Option<(SocketAddr, SocketAddr)>;

/// Returns a header of version 1. Without addresses, as for UNIX-domain sockets, the family is unknown.
pub fn encode_v1(addresses: Addresses) -> Vec<u8> {
    let Some((client, local)) = addresses else { return b"PROXY UNKNOWN\r\n".to_vec() };
    let (from, to) = of_one_family(client.ip(), local.ip());
    let family = if from.is_ipv4() { 4 } else { 6 };
    format!("PROXY TCP{family} {from} {to} {} {}\r\n", client.port(), local.port()).into_bytes()
}

/// Returns both addresses as those of IPv4, or else as those of IPv6: a header has one family. They may differ if the address of the
/// client is that of a header which this server has received.
fn of_one_family(from: IpAddr, to: IpAddr) -> (IpAddr, IpAddr) {
    match (from.to_canonical(), to.to_canonical()) {
        (IpAddr::V4(from), IpAddr::V6(to)) => (from.to_ipv6_mapped().into(), to.into()),
        (IpAddr::V6(from), IpAddr::V4(to)) => (from.into(), to.to_ipv6_mapped().into()),
        same => same,
    }
}

/// Type of the record with the checksum.
const CRC32C: u8 = 0x03;

/// Length of the record with the checksum.
const CRC32C_LEN: usize = 3 + 4;

/// Returns a header of version 2, with a checksum as in nginx. Without addresses the command is `LOCAL`.
pub fn encode_v2(addresses: Addresses, family: Family) -> Vec<u8> {
    let transport = match family {
        Family::Stream => 1,
        Family::Datagram => 2,
    };
    let mut body = Vec::new();
    let (command, kind) = match addresses {
        None => (0x20, 0),
        Some((client, local)) => {
            let (from, to) = (client.ip().to_canonical(), local.ip().to_canonical());
            let kind = match (from, to) {
                (IpAddr::V4(from), IpAddr::V4(to)) => {
                    body.extend_from_slice(&from.octets());
                    body.extend_from_slice(&to.octets());
                    1
                }
                (from, to) => {
                    for ip in [from, to] {
                        let ip = match ip {
                            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                            IpAddr::V6(ip) => ip,
                        };
                        body.extend_from_slice(&ip.octets());
                    }
                    2
                }
            };
            body.extend_from_slice(&client.port().to_be_bytes());
            body.extend_from_slice(&local.port().to_be_bytes());
            (0x21, kind << 4 | transport)
        }
    };
    let mut header = Vec::with_capacity(V2_FIXED_LEN + body.len() + CRC32C_LEN);
    header.extend_from_slice(V2_SIGNATURE);
    header.extend_from_slice(&[command, kind]);
    header.extend_from_slice(&((body.len() + CRC32C_LEN) as u16).to_be_bytes());
    header.extend_from_slice(&body);
    header.extend_from_slice(&[CRC32C, 0, 4, 0, 0, 0, 0]);
    let checksum = crc32c(&header);
    let at = header.len() - 4;
    header[at..].copy_from_slice(&checksum.to_be_bytes());
    header
}

/// Returns the CRC-32C of bytes (RFC 9260 appendix A). A header is short, so no table is needed.
fn crc32c(bytes: &[u8]) -> u32 {
    const REVERSED_POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (REVERSED_POLYNOMIAL & 0u32.wrapping_sub(crc & 1));
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_addresses_of_version_1_have_one_family() {
        for (from, to, expected) in [
            ("192.0.2.1:1", "192.0.2.2:2", "TCP4 192.0.2.1 192.0.2.2 1 2"),
            ("[::ffff:192.0.2.1]:1", "[::ffff:192.0.2.2]:2", "TCP4 192.0.2.1 192.0.2.2 1 2"),
            ("192.0.2.1:1", "[2001:db8::2]:2", "TCP6 ::ffff:192.0.2.1 2001:db8::2 1 2"),
            ("[2001:db8::1]:1", "192.0.2.2:2", "TCP6 2001:db8::1 ::ffff:192.0.2.2 1 2"),
        ] {
            let addresses = (from.parse().expect("an address"), to.parse().expect("an address"));
            let header = String::from_utf8(encode_v1(Some(addresses))).expect("it is ASCII");
            assert_eq!(header, format!("PROXY {expected}\r\n"));
        }
    }

    #[test]
    fn the_checksum_is_that_of_the_standard() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
