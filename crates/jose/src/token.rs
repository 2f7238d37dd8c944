//! The sections of a token in its compact form (RFC 7515 section 7.1, RFC 7516 section 7.1): three for a signed token, five for an
//! encrypted token, each in base64url.

use super::base64url;
use super::object::Object;

/// Maximum length of a token in bytes. A field of a request is shorter by default (`large_client_header_buffers`).
pub const TOKEN_LEN_MAX: usize = 64 << 10;

/// Why a token is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The token is too long, or has another number of sections, or one that is no base64url or JSON.
    Format,
    /// The header has an unknown algorithm, or one for another type of token.
    Algorithm,
    /// The header has a critical parameter (`crit`), or compressed content (`zip`).
    Header,
    /// No key matches the header.
    NoKey,
    /// No matching key has made the signature, or decrypts the content.
    Signature,
    /// The claims are no object, or a time in them is no number.
    Claims,
    /// `exp` is in the past.
    Expired,
    /// `nbf` is in the future.
    NotYetValid,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Fault::Format => "its format is invalid",
            Fault::Algorithm => "its algorithm is not supported",
            Fault::Header => "its header has an unsupported parameter",
            Fault::NoKey => "no key matches its header",
            Fault::Signature => "its signature or encryption does not match a key",
            Fault::Claims => "its claims are invalid",
            Fault::Expired => "it has expired",
            Fault::NotYetValid => "it is not valid yet",
        })
    }
}

/// A signed token, whose signature is not verified yet.
#[derive(Clone, Debug)]
pub struct Signed<'t> {
    /// The header.
    pub header: Object,
    /// The payload, decoded.
    pub payload: Vec<u8>,
    /// The text that is signed.
    pub(crate) input: &'t [u8],
    pub(crate) signature: Vec<u8>,
}

/// An encrypted token.
#[derive(Clone, Debug)]
pub struct Encrypted<'t> {
    /// The header.
    pub header: Object,
    /// The text of the header, which the encryption authenticates.
    pub(crate) header_text: &'t [u8],
    /// The encrypted content encryption key; empty for a direct key.
    pub(crate) key: Vec<u8>,
    pub(crate) iv: Vec<u8>,
    pub(crate) content: Vec<u8>,
    pub(crate) tag: Vec<u8>,
}

impl<'t> Signed<'t> {
    /// Parses a token.
    pub fn parse(token: &'t [u8]) -> Result<Signed<'t>, Fault> {
        let [header, payload, signature] = sections(token)?;
        let (_, input_len) = (payload, header.len() + 1 + payload.len());
        let (payload, signature) = (decode(payload)?, decode(signature)?);
        Ok(Signed { header: parse_header(header)?, payload, input: &token[..input_len], signature })
    }
}

impl<'t> Encrypted<'t> {
    /// Parses a token.
    pub fn parse(token: &'t [u8]) -> Result<Encrypted<'t>, Fault> {
        let [header_text, key, iv, content, tag] = sections(token)?;
        let header = parse_header(header_text)?;
        // Decompressed content can be a thousand times as long.
        if header.has("zip") {
            return Err(Fault::Header);
        }
        let (key, iv, content, tag) = (decode(key)?, decode(iv)?, decode(content)?, decode(tag)?);
        Ok(Encrypted { header, header_text, key, iv, content, tag })
    }
}

/// Splits a token into its sections.
fn sections<const COUNT: usize>(token: &[u8]) -> Result<[&[u8]; COUNT], Fault> {
    if token.len() > TOKEN_LEN_MAX {
        return Err(Fault::Format);
    }
    let mut sections = [&token[..0]; COUNT];
    let mut rest = token.split(|byte| *byte == b'.');
    for section in &mut sections {
        *section = rest.next().ok_or(Fault::Format)?;
    }
    if rest.next().is_some() { Err(Fault::Format) } else { Ok(sections) }
}

fn decode(section: &[u8]) -> Result<Vec<u8>, Fault> {
    base64url::decode(section).ok_or(Fault::Format)
}

/// Parses a header. Extensions that a token requires (`crit`) are unknown here (RFC 7515 section 4.1.11).
fn parse_header(section: &[u8]) -> Result<Object, Fault> {
    let header = Object::parse(&decode(section)?).ok_or(Fault::Format)?;
    if header.has("crit") { Err(Fault::Header) } else { Ok(header) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(sections: &[&str]) -> String {
        sections.iter().map(|section| base64url::encode(section.as_bytes())).collect::<Vec<_>>().join(".")
    }

    #[test]
    fn sections_are_decoded() {
        let text = token(&["{\"alg\":\"x\"}", "{}", "sig"]);
        let signed = Signed::parse(text.as_bytes()).expect("it is valid");
        assert_eq!(
            (signed.header.text("alg").as_deref(), signed.payload.as_slice()),
            (Some("x"), &b"{}"[..])
        );
        assert_eq!(signed.input, text.rsplit_once('.').expect("three sections").0.as_bytes());
        let text = token(&["{}", "", "iv", "content", "tag"]);
        let encrypted = Encrypted::parse(text.as_bytes()).expect("it is valid");
        assert_eq!((encrypted.key.len(), encrypted.tag.as_slice()), (0, &b"tag"[..]));
    }

    #[test]
    fn other_forms_are_refused() {
        for text in
            ["", "a", "..", "e30.e30", "e30.e30.e30.", "e30.e30.a=", "e30.e30.aZ", "e30 .e30.", "bnVsbA.e30."]
        {
            assert_eq!(Signed::parse(text.as_bytes()).map(|_| ()), Err(Fault::Format), "{text}");
        }
        let crit = token(&["{\"crit\":[\"exp\"]}", "{}", ""]);
        assert_eq!(Signed::parse(crit.as_bytes()).map(|_| ()), Err(Fault::Header));
        let twice = token(&["{\"alg\":\"HS256\",\"alg\":\"none\"}", "{}", ""]);
        assert_eq!(Signed::parse(twice.as_bytes()).map(|_| ()), Err(Fault::Format));
        let zip = token(&["{\"zip\":\"DEF\"}", "", "", "", ""]);
        assert_eq!(Encrypted::parse(zip.as_bytes()).map(|_| ()), Err(Fault::Header));
        let long = format!("e30.{}.", "A".repeat(TOKEN_LEN_MAX));
        assert_eq!(Signed::parse(long.as_bytes()).map(|_| ()), Err(Fault::Format));
    }
}
