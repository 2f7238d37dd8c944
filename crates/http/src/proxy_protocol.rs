//! The header of the PROXY protocol, versions 1 and 2, which a proxy sends before the first byte of its client.
//!
//! [`parse`] parses the bytes received so far and returns the length of the header. It keeps no state between calls, because a
//! header is short. It accepts the same input as nginx: addresses of version 1 are not validated strictly, and commands and
//! families without meaning for HTTP are skipped. Source: "The PROXY protocol, versions 1 & 2" (haproxy.org,
//! `doc/proxy-protocol.txt`).

mod encode;

use std::net::{Ipv4Addr, Ipv6Addr};

pub use self::encode::{Addresses, Family, encode_v1, encode_v2};
use self::encode::{V2_FIXED_LEN, V2_SIGNATURE};

/// Maximum length in bytes of a version 1 header including its line end, by the specification.
pub const V1_LEN_MAX: usize = 107;

/// Maximum length in bytes of a version 2 header: nginx's limit. The length field allows 64 KiB, which no proxy sends; without the
/// limit, an attacker could make the server wait for that many bytes.
pub const V2_LEN_MAX: usize = 4096;

const V1_PREFIX: &[u8; 6] = b"PROXY ";

/// The content of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The client's address as text.
    pub src_addr: Vec<u8>,
    /// The destination address of the client's connection, as text.
    pub dst_addr: Vec<u8>,
    /// The client's port.
    pub src_port: u16,
    /// The destination port of the client's connection.
    pub dst_port: u16,
    /// Type-length-value records after the addresses (version 2).
    tlvs: Vec<u8>,
}

/// Result of parsing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The bytes so far may be the start of a header.
    Incomplete,
    /// The header is complete.
    Complete {
        /// Length of the header in bytes.
        len: usize,
        /// The addresses; `None` for connections of the proxy itself, and for families without addresses.
        header: Option<Header>,
    },
}

/// Reason why the bytes are not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyError {
    /// Neither version, or an invalid version 1 header.
    Broken,
    /// A version 2 signature with another version number.
    Version(u8),
    /// Version 2, longer than [`V2_LEN_MAX`].
    TooLarge,
    /// Version 2, too short for the addresses of its family.
    TooSmall,
}

/// Reason why a TLV value is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlvError {
    /// The name is unknown.
    Name,
    /// The lengths are inconsistent.
    Broken,
}

/// Parses a header at the start of `input`.
pub fn parse(input: &[u8]) -> Result<Progress, ProxyError> {
    if begins_like(input, V2_SIGNATURE) {
        return parse_v2(input);
    }
    if !begins_like(input, V1_PREFIX) {
        return Err(ProxyError::Broken);
    }
    let Some(end) = memchr::memchr(b'\n', &input[..input.len().min(V1_LEN_MAX)]) else {
        return if input.len() < V1_LEN_MAX { Ok(Progress::Incomplete) } else { Err(ProxyError::Broken) };
    };
    let line = input[..end].strip_suffix(b"\r").ok_or(ProxyError::Broken)?;
    let header = parse_v1(&line[V1_PREFIX.len()..]).ok_or(ProxyError::Broken)?;
    Ok(Progress::Complete { len: end + 1, header })
}

/// Returns the first line of an invalid header, for the log.
#[must_use]
pub fn first_line(input: &[u8]) -> &[u8] {
    let end = input.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
    &input[..end.unwrap_or(input.len()).min(V1_LEN_MAX)]
}

/// Whether `input` is a prefix of `wanted`, or starts with it.
fn begins_like(input: &[u8], wanted: &[u8]) -> bool {
    let both = input.len().min(wanted.len());
    input[..both] == wanted[..both]
}

/// Parses the text after `PROXY `. Returns `None` for an error, `Some(None)` for `UNKNOWN`.
fn parse_v1(line: &[u8]) -> Option<Option<Header>> {
    if line.starts_with(b"UNKNOWN") {
        return Some(None);
    }
    let rest = line.strip_prefix(b"TCP4 ").or_else(|| line.strip_prefix(b"TCP6 "))?;
    let mut parts = rest.splitn(4, |&byte| byte == b' ');
    let is_address = |text: &&[u8]| {
        !text.is_empty() && text.iter().all(|byte| byte.is_ascii_hexdigit() || b":.".contains(byte))
    };
    let mut address = || parts.next().filter(is_address).map(<[u8]>::to_vec);
    let (src_addr, dst_addr) = (address()?, address()?);
    let mut port = || parts.next().and_then(crate::parse_decimal).and_then(|port| u16::try_from(port).ok());
    let (src_port, dst_port) = (port()?, port()?);
    Some(Some(Header { src_addr, dst_addr, src_port, dst_port, tlvs: Vec::new() }))
}

fn parse_v2(input: &[u8]) -> Result<Progress, ProxyError> {
    let Some((fixed, rest)) = input.split_first_chunk::<V2_FIXED_LEN>() else {
        return Ok(Progress::Incomplete);
    };
    let version = fixed[12] >> 4;
    if version != 2 {
        return Err(ProxyError::Version(version));
    }
    let len = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    if V2_FIXED_LEN + len > V2_LEN_MAX {
        return Err(ProxyError::TooLarge);
    }
    let Some(body) = rest.get(..len) else { return Ok(Progress::Incomplete) };
    let (command, family, transport) = (fixed[12] & 15, fixed[13] >> 4, fixed[13] & 15);
    const PROXY: u8 = 1;
    const STREAM: u8 = 1;
    let header = match family {
        // The proxy's own connections (`LOCAL`), and transports other than streams, have no client.
        _ if command != PROXY || transport != STREAM => None,
        1 => Some(v2_header(body, 4, |bytes| Ipv4Addr::from(array::<4>(bytes)).to_string())?),
        2 => Some(v2_header(body, 16, |bytes| Ipv6Addr::from(array::<16>(bytes)).to_string())?),
        _ => None,
    };
    Ok(Progress::Complete { len: V2_FIXED_LEN + len, header })
}

/// Parses two addresses of `width` bytes, two ports, and the TLV records.
fn v2_header(body: &[u8], width: usize, text: fn(&[u8]) -> String) -> Result<Header, ProxyError> {
    let (addresses, rest) = body.split_at_checked(2 * width).ok_or(ProxyError::TooSmall)?;
    let (ports, tlvs) = rest.split_first_chunk::<4>().ok_or(ProxyError::TooSmall)?;
    Ok(Header {
        src_addr: text(&addresses[..width]).into_bytes(),
        dst_addr: text(&addresses[width..]).into_bytes(),
        src_port: u16::from_be_bytes([ports[0], ports[1]]),
        dst_port: u16::from_be_bytes([ports[2], ports[3]]),
        tlvs: tlvs.to_vec(),
    })
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("it was cut to this length")
}

/// TLV type for the client's TLS connection; its value contains nested TLV records.
const SSL: u8 = 0x20;

/// Length of the client flags and the certificate verification result, before the nested records.
const SSL_FIXED_LEN: usize = 5;

impl Header {
    /// Returns the TLV value of a name of nginx, such as `alpn`, `ssl_cn`, `ssl_verify` or `0xea`; `None` if the proxy did not send
    /// it.
    pub fn tlv(&self, name: &[u8]) -> Result<Option<Vec<u8>>, TlvError> {
        let own = |value: Option<&[u8]>| value.map(<[u8]>::to_vec);
        if let Some(name) = name.strip_prefix(b"ssl_") {
            return own_ssl(lookup(&self.tlvs, SSL)?, name);
        }
        let kind = match name {
            b"alpn" => 0x01,
            b"authority" => 0x02,
            b"unique_id" => 0x05,
            b"ssl" => SSL,
            b"netns" => 0x30,
            _ => return lookup_number(&self.tlvs, name).map(own),
        };
        lookup(&self.tlvs, kind).map(own)
    }
}

/// Returns a value about the client's TLS connection.
fn own_ssl(ssl: Option<&[u8]>, name: &[u8]) -> Result<Option<Vec<u8>>, TlvError> {
    let Some((fixed, inner)) = ssl.and_then(|ssl| ssl.split_first_chunk::<SSL_FIXED_LEN>()) else {
        return Ok(None);
    };
    let kind = match name {
        b"verify" => {
            let result = u32::from_be_bytes([fixed[1], fixed[2], fixed[3], fixed[4]]);
            return Ok(Some(result.to_string().into_bytes()));
        }
        b"version" => 0x21,
        b"cn" => 0x22,
        b"cipher" => 0x23,
        b"sig_alg" => 0x24,
        b"key_alg" => 0x25,
        _ => return Ok(lookup_number(inner, name)?.map(<[u8]>::to_vec)),
    };
    Ok(lookup(inner, kind)?.map(<[u8]>::to_vec))
}

/// Returns the first value whose type is given as a number.
fn lookup_number<'t>(tlvs: &'t [u8], name: &[u8]) -> Result<Option<&'t [u8]>, TlvError> {
    match hexadecimal(name).ok_or(TlvError::Name)? {
        Some(kind) => lookup(tlvs, kind),
        // The number exceeds the range of types.
        None => Ok(None),
    }
}

/// Returns the first value of a type. A truncated list is an error only if the type was not found before its end.
fn lookup(mut tlvs: &[u8], wanted: u8) -> Result<Option<&[u8]>, TlvError> {
    while !tlvs.is_empty() {
        let (fixed, rest) = tlvs.split_first_chunk::<3>().ok_or(TlvError::Broken)?;
        let len = usize::from(u16::from_be_bytes([fixed[1], fixed[2]]));
        let (value, rest) = rest.split_at_checked(len).ok_or(TlvError::Broken)?;
        if fixed[0] == wanted {
            return Ok(Some(value));
        }
        tlvs = rest;
    }
    Ok(None)
}

/// Parses `0x2f`; `Some(None)` for a number above 255.
fn hexadecimal(name: &[u8]) -> Option<Option<u8>> {
    let digits = name.strip_prefix(b"0x").filter(|digits| !digits.is_empty())?;
    let digits =
        std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()))?;
    Some(u32::from_str_radix(digits, 16).ok().and_then(|number| u8::try_from(number).ok()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(src: &str, dst: &str, ports: (u16, u16), tlvs: &[u8]) -> Header {
        let (src_addr, dst_addr) = (src.as_bytes().to_vec(), dst.as_bytes().to_vec());
        Header { src_addr, dst_addr, src_port: ports.0, dst_port: ports.1, tlvs: tlvs.to_vec() }
    }

    fn v2(version_command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = V2_SIGNATURE.to_vec();
        bytes.extend([version_command, family]);
        bytes.extend((body.len() as u16).to_be_bytes());
        bytes.extend_from_slice(body);
        bytes
    }

    fn complete(input: &[u8]) -> (usize, Option<Header>) {
        match parse(input) {
            Ok(Progress::Complete { len, header }) => (len, header),
            other => panic!("{}: {other:?}", input.escape_ascii()),
        }
    }

    #[test]
    fn version_1_headers_are_parsed() {
        let known = header("192.0.2.1", "198.51.100.2", (1234, 80), b"");
        assert_eq!(complete(b"PROXY TCP4 192.0.2.1 198.51.100.2 1234 80\r\nGET /"), (43, Some(known)));
        let known = header("2001:db8::1", "::1", (65535, 0), b"");
        assert_eq!(complete(b"PROXY TCP6 2001:db8::1 ::1 65535 0\r\n").1, Some(known));
        assert_eq!(complete(b"PROXY UNKNOWN\r\n"), (15, None));
        assert_eq!(complete(b"PROXY UNKNOWN ff:: who knows\r\nx").1, None);
    }

    #[test]
    fn malformed_version_1_headers_are_refused() {
        for text in [
            "GET / HTTP/1.1\r\n",
            "PROXY\r\n",
            "PROXY UDP4 1.2.3.4 1.2.3.4 1 1\r\n",
            "PROXY TCP5 1.2.3.4 1.2.3.4 1 1\r\n",
            "PROXY TCP4 1.2.3.4 1.2.3.4 1 1\n",
            "PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
            "PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n",
            "PROXY TCP4 1.2.3.4 1.2.3.4 1 -1\r\n",
            "PROXY TCP4 1.2.3.4 1.2.3.4 1 1 \r\n",
            "PROXY TCP4 here 1.2.3.4 1 1\r\n",
            "PROXY TCP4  1.2.3.4 1 1\r\n",
            "proxy TCP4 1.2.3.4 1.2.3.4 1 1\r\n",
        ] {
            assert_eq!(parse(text.as_bytes()), Err(ProxyError::Broken), "{text}");
        }
        let long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(V1_LEN_MAX));
        assert_eq!(parse(long.as_bytes()), Err(ProxyError::Broken));
        assert_eq!(first_line(b"GET / HTTP/1.1\r\nHost: a"), b"GET / HTTP/1.1");
    }

    #[test]
    fn version_2_headers_are_parsed() {
        let body = [192, 0, 2, 1, 198, 51, 100, 2, 4, 210, 0, 80];
        let known = header("192.0.2.1", "198.51.100.2", (1234, 80), b"");
        assert_eq!(complete(&v2(0x21, 0x11, &body)), (28, Some(known)));
        let mut body = [0; 36];
        (body[15], body[31], body[33], body[35]) = (1, 2, 7, 8);
        assert_eq!(complete(&v2(0x21, 0x21, &body)).1, Some(header("::1", "::2", (7, 8), b"")));
        // The proxy's own connections, datagrams, other families.
        for (command, family) in [(0x20, 0x11), (0x21, 0x12), (0x21, 0x31), (0x21, 0x00)] {
            assert_eq!(complete(&v2(command, family, b"what ever")), (25, None));
        }
        assert_eq!(parse(&v2(0x31, 0x11, &body)), Err(ProxyError::Version(3)));
        assert_eq!(parse(&v2(0x21, 0x11, &body[..11])), Err(ProxyError::TooSmall));
        assert_eq!(parse(&v2(0x21, 0x21, &body[..35])), Err(ProxyError::TooSmall));
        assert_eq!(parse(&v2(0x21, 0x11, &[0; V2_LEN_MAX])[..16]), Err(ProxyError::TooLarge));
    }

    #[test]
    fn tlv_values_after_the_addresses_are_parsed() {
        let tlv = |kind: u8, value: &[u8]| [&[kind, 0, value.len() as u8], value].concat();
        let ssl =
            [&[7, 0, 0, 1, 2][..], &tlv(0x21, b"TLSv1.3"), &tlv(0x22, b"name"), &tlv(0xea, b"own")].concat();
        let tlvs =
            [tlv(1, b"h2"), tlv(2, b"a.example"), tlv(0x20, &ssl), tlv(0xea, b"vpce"), tlv(5, b"")].concat();
        let full = header("1.1.1.1", "1.1.1.1", (1, 1), &tlvs);
        for (name, expected) in [
            ("alpn", Some("h2")),
            ("authority", Some("a.example")),
            ("0x02", Some("a.example")),
            ("unique_id", Some("")),
            ("netns", None),
            ("ssl_verify", Some("258")),
            ("ssl_version", Some("TLSv1.3")),
            ("ssl_cn", Some("name")),
            ("ssl_cipher", None),
            ("ssl_0x21", Some("TLSv1.3")),
            ("ssl_0xEA", Some("own")),
            ("ssl_0x23", None),
            ("ssl_0x1ea", None),
            ("0xEA", Some("vpce")),
            ("0x1ea", None),
        ] {
            let expected = expected.map(|text| text.as_bytes().to_vec());
            assert_eq!(full.tlv(name.as_bytes()), Ok(expected), "{name}");
        }
        for name in ["x", "0x", "0xg", "ea", "0x+1", "ssl_other", "ssl_0x"] {
            assert_eq!(full.tlv(name.as_bytes()), Err(TlvError::Name), "{name}");
        }
        let cut = header("1.1.1.1", "1.1.1.1", (1, 1), &tlvs[..tlvs.len() - 1]);
        assert_eq!(cut.tlv(b"alpn"), Ok(Some(b"h2".to_vec())));
        assert_eq!(cut.tlv(b"netns"), Err(TlvError::Broken));
    }

    proptest! {
        /// Any proper prefix of a header is incomplete, and the complete header parses to the original.
        #[test]
        fn proper_prefixes_of_a_header_are_incomplete(tlvs in proptest::collection::vec(any::<u8>(), 0..40), addresses: [u8; 12], rest: [u8; 4]) {
            let body = [&addresses[..], &tlvs].concat();
            let text = format!("PROXY TCP4 {0} {0} 1 2\r\n", Ipv4Addr::from(array::<4>(&addresses[..4])));
            for whole in [v2(0x21, 0x11, &body), text.into_bytes()] {
                for end in 0..whole.len() {
                    prop_assert_eq!(parse(&whole[..end]), Ok(Progress::Incomplete));
                }
                let (len, header) = complete(&[&whole[..], &rest].concat());
                prop_assert_eq!((len, header.clone()), (whole.len(), complete(&whole).1));
                prop_assert!(header.is_some());
            }
        }

        /// No client input causes a panic or a result beyond the input.
        #[test]
        fn no_input_panics(start in 0_usize..3, tail in proptest::collection::vec(any::<u8>(), 0..200), name: Vec<u8>) {
            let input = [[&b""[..], b"PROXY TCP4 ", b"\r\n\r\n\0\r\nQUIT\n\x21\x11"][start], &tail].concat();
            if let Ok(Progress::Complete { len, header }) = parse(&input) {
                prop_assert!(len <= input.len());
                let _ = header.map(|header| (header.tlv(&name), header.tlv(b"ssl_cn"), header.tlv(b"alpn")));
            }
        }
    }

    fn addresses(client: &str, local: &str) -> Addresses {
        Some((client.parse().expect("an address"), local.parse().expect("an address")))
    }

    #[test]
    fn both_versions_are_parsed_to_the_same_addresses() {
        for (client, local) in [("10.0.0.1:5", "10.0.0.2:80"), ("[2001:db8::1]:5", "[2001:db8::2]:80")] {
            let pair = addresses(client, local);
            for header in [encode_v1(pair), encode_v2(pair, Family::Stream)] {
                let Ok(Progress::Complete { len, header: Some(parsed) }) = parse(&header) else {
                    panic!("{client}: {header:?}");
                };
                assert_eq!(len, header.len());
                let (client, local) = pair.expect("it has addresses");
                assert_eq!(parsed.src_addr, client.ip().to_string().as_bytes());
                assert_eq!(parsed.dst_addr, local.ip().to_string().as_bytes());
                assert_eq!((parsed.src_port, parsed.dst_port), (5, 80));
            }
        }
    }

    #[test]
    fn a_header_without_addresses_names_no_client() {
        for header in [encode_v1(None), encode_v2(None, Family::Stream)] {
            assert_eq!(parse(&header), Ok(Progress::Complete { len: header.len(), header: None }));
        }
    }
}
