//! [`Credentials`]: the user name and the password of a request (RFC 7617).

use http::base64;
use http::fields::{HeaderId, Method};

use crate::request::Request;

/// Whether the request's credentials are for this server as a forward proxy (RFC 9110 section 11.7). `error_page` changes
/// [`Request::method`] to GET, but not the header section, so that `$remote_user` is the same in an error page.
pub fn are_for_proxy(request: &Request) -> bool {
    request.head.method() == Method::Connect
}

/// Returns the status of a response to a request without valid credentials.
pub fn status_without(request: &Request) -> u16 {
    if are_for_proxy(request) { 407 } else { 401 }
}

fn field(request: &Request) -> HeaderId {
    if are_for_proxy(request) { HeaderId::ProxyAuthorization } else { HeaderId::Authorization }
}

/// The credentials of the request.
pub struct Credentials {
    /// Decoded user name and password.
    decoded: Vec<u8>,
    /// Offset of the colon that ends the name.
    colon: usize,
}

impl Credentials {
    /// Parses the credentials (RFC 7617 section 2): those for this server as a forward proxy, if the method is CONNECT. As in nginx
    /// the name must not be empty.
    pub fn of(request: &Request) -> Option<Credentials> {
        let (scheme, encoded) = request.header(field(request))?.split_at_checked(6)?;
        if !scheme.eq_ignore_ascii_case(b"basic ") {
            return None;
        }
        let decoded = base64::decode(encoded.trim_ascii(), base64::Alphabet::Standard)?;
        let colon = memchr::memchr(b':', &decoded).filter(|&colon| colon > 0)?;
        Some(Credentials { decoded, colon })
    }

    /// Returns the user name.
    pub fn user(&self) -> &[u8] {
        debug_assert!(self.decoded.get(self.colon) == Some(&b':'), "the user name ends before a colon");
        &self.decoded[..self.colon]
    }

    /// Returns the text after the first colon; it may contain colons.
    pub fn password(&self) -> &[u8] {
        &self.decoded[self.colon + 1..]
    }
}
