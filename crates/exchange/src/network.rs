//! Networks of addresses, as several modules of nginx name them: `10.0.0.0/8`, `::1`, `unix:`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::address::Address;
use crate::config::Cx;

/// Addresses that share their first bits. The bits that do not count are stored cleared, so that one comparison
/// does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Connections through a unix socket.
    Unix,
    /// Network and bits that count.
    V4(Ipv4Addr, u32),
    /// Network and bits that count.
    V6(Ipv6Addr, u32),
}

impl Network {
    /// Reads an argument of a directive; `None` for other texts.
    pub fn read(text: &str, cx: &mut Cx<'_>) -> Option<Network> {
        if text == "unix:" {
            return Some(Network::Unix);
        }
        let (network, low_bits) = Network::parse(text)?;
        if low_bits {
            // Allowed, because nginx allows it; with a warning, because it is often a slip in the network or in its
            // width.
            cx.warn(format_args!("low address bits of {text} are meaningless"));
        }
        Some(network)
    }

    /// `10.0.0.0/8`, `::1`; and whether bits were written that do not count.
    pub fn parse(text: &str) -> Option<(Network, bool)> {
        let (ip, bits) = text.split_once('/').map_or((text, None), |(ip, bits)| (ip, Some(bits)));
        let ip: IpAddr = ip.parse().ok()?;
        let width = if ip.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => width,
            // Not even a sign may precede the digits.
            Some(bits) if bits.starts_with('+') => return None,
            Some(bits) => bits.parse().ok().filter(|&bits: &u32| bits <= width)?,
        };
        Some(match ip {
            IpAddr::V4(ip) => {
                let network = Ipv4Addr::from(u32::from(ip) & mask_v4(bits));
                (Network::V4(network, bits), network != ip)
            }
            IpAddr::V6(ip) => {
                let network = Ipv6Addr::from(u128::from(ip) & mask_v6(bits));
                (Network::V6(network, bits), network != ip)
            }
        })
    }

    /// Whether an address belongs to it.
    pub fn includes(self, address: &Address) -> bool {
        match (self, address) {
            (Network::Unix, Address::Unix(_)) => true,
            // An address of IPv4 on an IPv6 socket is judged by itself.
            (_, Address::Inet(address)) => match (self, address.ip().to_canonical()) {
                (Network::V4(network, bits), IpAddr::V4(ip)) => {
                    u32::from(ip) & mask_v4(bits) == u32::from(network)
                }
                (Network::V6(network, bits), IpAddr::V6(ip)) => {
                    u128::from(ip) & mask_v6(bits) == u128::from(network)
                }
                _ => false,
            },
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

/// A shift by all bits is not defined, so zero bits are a separate case.
fn mask_v4(bits: u32) -> u32 {
    u32::MAX.checked_shl(32 - bits).unwrap_or(0)
}

/// As for IPv4.
fn mask_v6(bits: u32) -> u128 {
    u128::MAX.checked_shl(128 - bits).unwrap_or(0)
}
