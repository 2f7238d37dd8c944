//! Request heads that were never HTTP/1 text: the fields of HTTP/2 and later, which arrive one by one, and requests that the server
//! generates.
//!
//! Main type: [`Composer`]. It produces the same [`Head`] as [`parse`](super::parse); only the version differs for its users.

use super::parse::{add_field, check_count, finish, name_classes};
use super::{Head, ParseError, Phase, Policy};
use crate::Span;
use crate::bytes::{find_control, find_target_end, trim_ows};
use crate::fields::{BodyLength, Field, HeaderId, Method, Version};

/// Fills a head part by part. The bytes are appended to a buffer, which the spans of the head refer to.
pub struct Composer<'a> {
    head: &'a mut Head,
    buf: &'a mut Vec<u8>,
    policy: Policy,
    choose: Option<ChoosePolicy<'a>>,
}

/// Function that returns the policy for a value of `Host`; `None` for the default policy. The policies may differ only in the
/// names of fields that they drop.
pub type ChoosePolicy<'a> = &'a dyn Fn(&[u8]) -> Option<Policy>;

impl<'a> Composer<'a> {
    /// Begins with the parts of an HTTP/1 request line, which later versions send as pseudo-header fields. `head` must be new or
    /// cleared, `buf` empty.
    ///
    /// # Errors
    /// The errors of [`parse`](super::parse) for a request line.
    pub fn begin(
        head: &'a mut Head,
        buf: &'a mut Vec<u8>,
        policy: &Policy,
        version: Version,
        (method, target): (&[u8], &[u8]),
    ) -> Result<Self, ParseError> {
        let is_method = |byte: &u8| byte.is_ascii_uppercase() || matches!(byte, b'_' | b'-');
        if method.is_empty() || !method.iter().all(is_method) {
            return Err(ParseError::InvalidMethod);
        }
        if find_target_end(target, 0) != target.len() {
            return Err(ParseError::InvalidTarget);
        }
        if method.len() + target.len() > policy.request_line_max as usize {
            return Err(ParseError::RequestLineTooLong);
        }
        (head.version, head.minor) = (version, u16::from(version == Version::Http11));
        head.method = Method::of(method);
        head.method_span = append(buf, method);
        head.target_span = append(buf, target);
        let base = head.target_span.start as usize;
        (head.target, head.path) = super::target::classify(head.method, target, base)?;
        head.phase = Phase::Fields;
        Ok(Self { head, buf, policy: *policy, choose: None })
    }

    /// Sets the function that replaces the policy. It is called at the first name that a policy may drop, after `Host`.
    pub(crate) fn choosing(self, choose: Option<ChoosePolicy<'a>>) -> Self {
        Self { choose, ..self }
    }

    /// Adds a field; a separate authority is added as the field `Host`.
    ///
    /// # Errors
    /// The errors of [`parse`](super::parse) for a field line.
    pub fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), ParseError> {
        if name.is_empty() {
            return Err(ParseError::EmptyName);
        }
        let seen = name_classes(name).ok_or(ParseError::InvalidByteInName)?;
        if seen != 0
            && let Some(host) = self.head.get(self.buf, HeaderId::Host)
            && let Some(choose) = self.choose.take()
        {
            self.policy = choose(host).unwrap_or(self.policy);
        }
        let value = trim_ows(value);
        if find_control(value, 0) != value.len() {
            return Err(ParseError::InvalidByteInValue);
        }
        if name.len() + value.len() > self.policy.field_line_max as usize {
            return Err(ParseError::FieldLineTooLong);
        }
        if self.buf.len() + name.len() + value.len() > self.policy.head_max as usize {
            return Err(ParseError::HeadTooLong);
        }
        let id = HeaderId::of(name);
        let (name, value) = (append(self.buf, name), append(self.buf, value));
        add_field(self.head, Field { name, value, id }, seen, &self.policy)?;
        check_count(self.head, &self.policy)
    }

    /// Ends the head. `has_body` is whether a body follows; its length is unknown without `Content-Length`.
    ///
    /// # Errors
    /// The errors of [`parse`](super::parse) for a complete head. Later versions have no transfer codings (RFC 9113 section 8.2.2).
    pub fn finish(self, has_body: bool) -> Result<(), ParseError> {
        let Self { head, buf, policy, .. } = self;
        if head.field(HeaderId::TransferEncoding).is_some() {
            return Err(ParseError::UnknownTransferEncoding);
        }
        finish(head, buf, &policy)?;
        if has_body && head.body == BodyLength::None {
            head.body = BodyLength::Unknown;
        }
        head.phase = Phase::Done;
        Ok(())
    }
}

/// Appends bytes; returns their span.
fn append(buf: &mut Vec<u8>, bytes: &[u8]) -> Span {
    let start = buf.len();
    buf.extend_from_slice(bytes);
    Span::new(start, buf.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Target;

    type Fields<'t> = &'t [(&'t str, &'t str)];

    fn composed(
        version: Version,
        line: (&str, &str),
        fields: Fields<'_>,
    ) -> Result<(Head, Vec<u8>), ParseError> {
        let (mut head, mut buf, policy) = (Head::new(), Vec::new(), Policy::default());
        let line = (line.0.as_bytes(), line.1.as_bytes());
        let mut composer = Composer::begin(&mut head, &mut buf, &policy, version, line)?;
        for (name, value) in fields {
            composer.field(name.as_bytes(), value.as_bytes())?;
        }
        composer.finish(false)?;
        Ok((head, buf))
    }

    /// Returns the parts of a request that users of its head see.
    fn shown(head: &Head, buf: &[u8]) -> Vec<Vec<u8>> {
        let mut all = vec![head.method_span().of(buf).to_vec(), head.request_uri(buf).to_vec()];
        all.push(head.host_text().of(buf).to_vec());
        let field = |field: &Field| [field.name.of(buf), b": ", field.value.of(buf)].concat();
        all.extend(head.fields().iter().map(field));
        all
    }

    #[test]
    fn a_composed_head_equals_a_parsed_one() {
        let fields = [("Host", "a:81"), ("x-one", " 1 "), ("Cookie", "b"), ("Content-Length", "7")];
        let (head, buf) = composed(Version::Http11, ("POST", "/x?y"), &fields).expect("a good head");
        let text = "POST /x?y HTTP/1.1\r\nHost: a:81\r\nx-one: 1\r\nCookie: b\r\nContent-Length: 7\r\n\r\n";
        let mut parsed = Head::new();
        crate::request::parse(&mut parsed, text.as_bytes(), &Policy::default()).expect("a good head");
        assert_eq!(shown(&head, &buf), shown(&parsed, text.as_bytes()));
        assert_eq!(head.get(&buf, HeaderId::Cookie), Some(&b"b"[..]));
        assert_eq!(
            (head.method(), head.target(), head.body()),
            (parsed.method(), Target::Origin, parsed.body())
        );
        assert!(head.is_started() && !head.in_request_line());
    }

    #[test]
    fn versions_without_text_have_a_protocol_and_no_request_line() {
        for (version, protocol) in [(Version::Http2, "HTTP/2.0"), (Version::Http3, "HTTP/3.0")] {
            let (head, _) = composed(version, ("GET", "/"), &[("host", "a")]).expect("a good head");
            let mut shown = Vec::new();
            head.push_protocol(&mut shown);
            assert_eq!((shown, head.version()), (protocol.into(), version));
            assert!(head.request_line().is_empty() && head.is_started());
        }
    }

    #[test]
    fn a_composed_body_without_a_length_is_self_delimited() {
        for (has_body, fields, wanted) in [
            (false, &[("host", "a")][..], BodyLength::None),
            (true, &[("host", "a")], BodyLength::Unknown),
            (true, &[("host", "a"), ("content-length", "3")], BodyLength::Exactly(3)),
        ] {
            let (mut head, mut buf, policy) = (Head::new(), Vec::new(), Policy::default());
            let mut composer = Composer::begin(&mut head, &mut buf, &policy, Version::Http2, (b"PUT", b"/"))
                .expect("a good line");
            for (name, value) in fields {
                composer.field(name.as_bytes(), value.as_bytes()).expect("a good field");
            }
            composer.finish(has_body).expect("a good head");
            assert_eq!(head.body(), wanted, "{has_body} {fields:?}");
        }
    }

    #[test]
    fn requests_that_a_parser_refuses_cannot_be_composed() {
        let long = "x".repeat(9000);
        let host = ("host", "a");
        let rows: [((&str, &str), Fields<'_>, ParseError); 11] = [
            (("G T", "/"), &[], ParseError::InvalidMethod),
            (("", "/"), &[], ParseError::InvalidMethod),
            (("GET", "/ x"), &[], ParseError::InvalidTarget),
            (("GET", "x"), &[], ParseError::InvalidTarget),
            (("GET", &long), &[], ParseError::RequestLineTooLong),
            (("GET", "/"), &[("a b", "")], ParseError::InvalidByteInName),
            (("GET", "/"), &[("a", "b\r\nc: d")], ParseError::InvalidByteInValue),
            (("GET", "/"), &[("a", &long)], ParseError::FieldLineTooLong),
            (("GET", "/"), &[], ParseError::MissingHost),
            (("GET", "/"), &[host, host], ParseError::Duplicate(HeaderId::Host)),
            (("GET", "/"), &[host, ("transfer-encoding", "chunked")], ParseError::UnknownTransferEncoding),
        ];
        for (line, fields, wanted) in rows {
            let refused = composed(Version::Http2, line, fields).map(drop);
            assert_eq!(refused, Err(wanted), "{line:?} {fields:?}");
        }
    }
}
