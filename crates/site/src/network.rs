//! Networks of addresses, as several modules of nginx name them: `10.0.0.0/8`, `::1`, `unix:`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::address::Address;

/// Addresses that share their first bits. The host bits are stored cleared, so that one comparison suffices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Connections through a UNIX-domain socket.
    Unix,
    /// Network address and prefix length.
    V4(Ipv4Addr, u32),
    /// Network address and prefix length.
    V6(Ipv6Addr, u32),
}

impl Network {
    /// Parses texts such as `10.0.0.0/8` and `::1`; also returns whether host bits are set.
    pub fn parse(text: &str) -> Option<(Network, bool)> {
        let (ip, bits) = text.split_once('/').map_or((text, None), |(ip, bits)| (ip, Some(bits)));
        let ip: IpAddr = ip.parse().ok()?;
        let width = if ip.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => width,
            // `parse` would accept a plus sign.
            Some(bits) if bits.starts_with('+') => return None,
            Some(bits) => bits.parse().ok().filter(|&bits: &u32| bits <= width)?,
        };
        let network = Network::within(ip, bits);
        let has_low_bits = match (network, ip) {
            (Network::V4(network, _), IpAddr::V4(ip)) => network != ip,
            (Network::V6(network, _), IpAddr::V6(ip)) => network != ip,
            _ => false,
        };
        Some((network, has_low_bits))
    }

    /// Returns the network with this prefix length, at most the width of the address, that contains an address.
    pub fn within(ip: IpAddr, bits: u32) -> Network {
        match ip {
            IpAddr::V4(ip) => Network::V4(Ipv4Addr::from(u32::from(ip) & mask_v4(bits)), bits),
            IpAddr::V6(ip) => Network::V6(Ipv6Addr::from(u128::from(ip) & mask_v6(bits)), bits),
        }
    }

    /// Whether the network contains an address. An IPv4-mapped address on an IPv6 socket is matched as IPv4.
    pub fn includes(self, address: &Address) -> bool {
        match address {
            Address::Unix(_) => self == Network::Unix,
            Address::Inet(address) => self.includes_ip(address.ip().to_canonical()),
        }
    }

    /// Whether the network contains an IP address; an IPv4-mapped address is matched as IPv6.
    pub fn includes_ip(self, ip: IpAddr) -> bool {
        match (self, ip) {
            (Network::V4(network, bits), IpAddr::V4(ip)) => {
                u32::from(ip) & mask_v4(bits) == u32::from(network)
            }
            (Network::V6(network, bits), IpAddr::V6(ip)) => {
                u128::from(ip) & mask_v6(bits) == u128::from(network)
            }
            _ => false,
        }
    }
}

/// A single address.
impl From<IpAddr> for Network {
    fn from(ip: IpAddr) -> Network {
        match ip {
            IpAddr::V4(ip) => Network::V4(ip, 32),
            IpAddr::V6(ip) => Network::V6(ip, 128),
        }
    }
}

/// Returns the mask of a prefix length. A shift by the full width is undefined, so zero is a separate case.
fn mask_v4(bits: u32) -> u32 {
    u32::MAX.checked_shl(32 - bits).unwrap_or(0)
}

/// Returns the mask for IPv6, as `mask_v4` does for IPv4.
fn mask_v6(bits: u32) -> u128 {
    u128::MAX.checked_shl(128 - bits).unwrap_or(0)
}
