//! [`Credentials`]: the name and the password that a request has (RFC 7617).

use http::base64;
use http::request::HeaderId;

use crate::request::Request;

/// The credentials of the request.
pub struct Credentials {
    /// Name and password, out of their Base64.
    decoded: Vec<u8>,
    /// Where the name ends and its colon is.
    colon: usize,
}

impl Credentials {
    /// RFC 7617 section 2. A name must not be empty; that is nginx's rule.
    pub fn of(request: &Request) -> Option<Credentials> {
        let (scheme, encoded) = request.header(HeaderId::Authorization)?.split_at_checked(6)?;
        if !scheme.eq_ignore_ascii_case(b"basic ") {
            return None;
        }
        let decoded = base64::decode(encoded.trim_ascii(), base64::Alphabet::Standard)?;
        let colon = memchr::memchr(b':', &decoded).filter(|&colon| colon > 0)?;
        Some(Credentials { decoded, colon })
    }

    /// The name.
    pub fn user(&self) -> &[u8] {
        &self.decoded[..self.colon]
    }

    /// All behind the first colon; it may contain colons.
    pub fn password(&self) -> &[u8] {
        &self.decoded[self.colon + 1..]
    }
}
