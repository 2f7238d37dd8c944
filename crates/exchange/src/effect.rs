//! Effective settings of one request: limits of its header section, the signature, the rate, the address in a redirect.

use std::borrow::Cow;

use http::fields::Version;
use http::request::Policy;

use crate::request::{Address, Request};
use site::settings::core::Core;
use site::settings::responding::ServerTokens;
use telemetry::{ForLog, Level};
use transfer::body::Rate;

/// Returns the parser's limits for a header section under these settings.
pub fn policy(conf: &Core) -> Policy {
    let (count, bytes) = conf.reading.large_client_header_buffers;
    let limit = |bytes: u64| bytes.min(u64::from(u32::MAX / 2)) as u32;
    // One buffer of the pool holds the complete header section.
    let head_max = (conf.reading.client_header_buffer_size + count * bytes).min(1 << 20);
    Policy {
        ignore_invalid_headers: conf.reading.ignore_invalid_headers,
        underscores_in_headers: conf.reading.underscores_in_headers,
        strict: conf.reading.http_strict,
        request_line_max: limit(bytes.max(conf.reading.client_header_buffer_size)),
        field_line_max: limit(bytes.max(conf.reading.client_header_buffer_size)),
        head_max: limit(head_max),
        fields_max: conf.reading.max_headers.min(u64::from(u16::MAX)) as u16,
        // Whether the server accepts CONNECT is checked once the server is known.
        allow_connect: true,
        ..Policy::default()
    }
}

/// Returns the value of `Server` by `server_tokens`; `None` if the configured text is empty.
pub fn signature<'t>(tokens: &ServerTokens, request: &Request) -> Option<Cow<'t, [u8]>> {
    const NAME: &str = http::response::encode::PRODUCT;
    const WITH_VERSION: &str = concat!("ringroad/", env!("CARGO_PKG_VERSION"));
    debug_assert!(WITH_VERSION.starts_with(NAME));
    match tokens {
        ServerTokens::Off => Some(Cow::Borrowed(NAME.as_bytes())),
        // There is no build name to add.
        ServerTokens::On | ServerTokens::Build => Some(Cow::Borrowed(WITH_VERSION.as_bytes())),
        ServerTokens::Text(text) => {
            Some(text.rendered(request)).filter(|text| !text.is_empty()).map(Cow::Owned)
        }
    }
}

/// Returns the rate limit of the response: the rate that a module or `set $limit_rate` has set, else `limit_rate`.
pub fn rate(conf: &Core, request: &Request) -> Option<Rate> {
    let size = |template: &site::template::Template| {
        let text = template.rendered(request);
        let size = str::from_utf8(&text).ok().and_then(|text| conf::value::size(text).ok());
        if size.is_none() {
            request.log(Level::Error, format_args!("invalid size \"{}\"", text.for_log()));
        }
        size
    };
    let bytes_per_second = request.limit_rate.or_else(|| conf.limit_rate.as_ref().and_then(size))?;
    let after =
        request.limit_rate_after.or_else(|| conf.limit_rate_after.as_ref().and_then(size)).unwrap_or(0);
    (bytes_per_second > 0).then(|| Rate { bytes_per_second, after, since: rt::now() })
}

/// Returns the `Location` field. A path is prefixed with scheme, host and port if the settings require it.
pub fn location<'a>(conf: &Core, request: &Request, location: &'a [u8]) -> Cow<'a, [u8]> {
    let location = without_blanks(location);
    if location.first() != Some(&b'/') || !conf.responding.absolute_redirect {
        return location;
    }
    let mut absolute = format!("{}://", request.conn.scheme()).into_bytes();
    let name = &request.server().name;
    if conf.responding.server_name_in_redirect && !name.is_empty() {
        absolute.extend_from_slice(name.as_bytes());
    } else if !request.host.is_empty() {
        absolute.extend_from_slice(&request.host);
    } else if let Address::Inet(address) = &request.conn.local {
        // An HTTP/1.0 client need not send `Host`.
        debug_assert_eq!(request.head.version(), Version::Http10);
        absolute.extend_from_slice(address.ip().to_string().as_bytes());
    }
    let port = port_to_name(&request.conn.local, request.conn.secured.get().is_some());
    if let Some(port) = port.filter(|_| conf.responding.port_in_redirect) {
        absolute.extend_from_slice(format!(":{port}").as_bytes());
    }
    absolute.extend_from_slice(&location);
    Cow::Owned(absolute)
}

/// Encodes blanks, which a decoded `$uri` may have: a URI contains none (RFC 3986 section 2), and clients cut it there.
fn without_blanks(location: &[u8]) -> Cow<'_, [u8]> {
    if !location.contains(&b' ') {
        return Cow::Borrowed(location);
    }
    let mut encoded = Vec::with_capacity(location.len() + 16);
    for &byte in location {
        match byte {
            b' ' => encoded.extend_from_slice(b"%20"),
            byte => encoded.push(byte),
        }
    }
    Cow::Owned(encoded)
}

/// Returns the port of a local address, unless it is the default of the scheme; a UNIX-domain socket has none.
fn port_to_name(local: &Address, is_secured: bool) -> Option<u16> {
    let default = if is_secured { 443 } else { 80 };
    match local {
        Address::Inet(address) => Some(address.port()).filter(|&port| port != default),
        Address::Unix(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_omit_only_the_default_port_of_their_scheme() {
        let named =
            |port: u16, is_secured| port_to_name(&Address::Inet(([127, 0, 0, 1], port).into()), is_secured);
        assert_eq!((named(80, false), named(443, true)), (None, None));
        assert_eq!((named(443, false), named(80, true)), (Some(443), Some(80)));
        assert_eq!((named(8080, false), named(8443, true)), (Some(8080), Some(8443)));
        let unix = Address::Unix(b"/run/socket".to_vec());
        assert_eq!((port_to_name(&unix, false), port_to_name(&unix, true)), (None, None));
    }
}
