//! Converts decoded fields to response heads of upstreams, by the rules of RFC 9113 sections 8.2 and 8.3.2, which are those of RFC
//! 9114 sections 4.2 and 4.3.2.
//!
//! Main type: [`ResponseReader`]. It receives the decoded fields one by one and writes the header section in the form of HTTP/1, so
//! that callers handle one kind of [`ParsedResponse`]. An error is stored until the end, because the remaining fields must still be
//! decoded.

use super::head::{is_connection_field, is_field};
use crate::StatusCode;
use crate::fields::FieldLine;
use crate::response::parse::{HeadWriter, Limits, ParsedResponse, ResponseError};

/// Initial capacity of a head in bytes.
const CAPACITY: usize = 512;

/// Reason why a response of an upstream is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFault {
    /// The head has no `:status`.
    NoStatus,
    /// `:status` is repeated.
    DuplicateStatus,
    /// `:status` is not a number of three digits.
    InvalidStatus,
    /// `:status` is 101, which HTTP/2 and HTTP/3 do not have (RFC 9113 section 8.6, RFC 9114 section 4.5).
    UnexpectedStatus,
    /// An unknown pseudo-header field, or one after other fields.
    Pseudo,
    /// A name or value has an invalid byte.
    Field,
    /// A connection-specific field (RFC 9113 section 8.2.2).
    Connection,
    /// The stream ends after a header section that announces a body.
    NoBody,
    /// A fault that also occurs in HTTP/1.
    Head(ResponseError),
}

impl ResponseFault {
    /// Returns the message for the error log; it is nginx's if nginx refuses such a response too.
    #[must_use]
    pub fn message(self) -> &'static str {
        match self {
            Self::NoStatus => "upstream sent no :status header",
            Self::DuplicateStatus => "upstream sent duplicate :status header",
            Self::InvalidStatus => "upstream sent invalid :status",
            Self::UnexpectedStatus => "upstream sent unexpected :status",
            Self::Pseudo => "upstream sent invalid pseudo-header",
            Self::Field => "upstream sent invalid header",
            Self::Connection => "upstream sent connection-specific header",
            Self::NoBody => "upstream sent no body although it announced one",
            Self::Head(error) => error.message(),
        }
    }
}

/// Converter of the fields of one response to a head.
#[derive(Debug)]
pub struct ResponseReader {
    limits: Limits,
    /// `None` before `:status`; or the first error.
    state: Result<Option<HeadWriter>, ResponseFault>,
    /// Number of bytes, and number of fields.
    size: usize,
    fields: usize,
}

impl ResponseReader {
    /// Begins a head within `limits`.
    #[must_use]
    pub fn new(limits: Limits) -> ResponseReader {
        ResponseReader { limits, state: Ok(None), size: 0, fields: 0 }
    }

    /// Adds a field.
    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        self.size = self.size.saturating_add(name.len()).saturating_add(value.len());
        let is_pseudo = name.first() == Some(&b':');
        self.fields += usize::from(!is_pseudo);
        let taken = match &mut self.state {
            Err(_) => return,
            _ if self.size > self.limits.head_max as usize => {
                Err(ResponseFault::Head(ResponseError::HeadTooLong))
            }
            _ if self.fields > usize::from(self.limits.fields_max) => {
                Err(ResponseFault::Head(ResponseError::TooManyFields))
            }
            Ok(None) if name == b":status" => begin(value).map(|writer| self.state = Ok(Some(writer))),
            Ok(None) if is_pseudo => Err(ResponseFault::Pseudo),
            Ok(None) => Err(ResponseFault::NoStatus),
            Ok(Some(_)) if name == b":status" => Err(ResponseFault::DuplicateStatus),
            Ok(Some(_)) if is_pseudo => Err(ResponseFault::Pseudo),
            Ok(Some(writer)) => regular(writer, name, value),
        };
        if let Err(fault) = taken {
            self.state = Err(fault);
        }
    }

    /// Ends the head; returns its bytes in the form of HTTP/1, and their parsed form.
    ///
    /// # Errors
    /// The first error in its fields.
    pub fn finish(self) -> Result<(Vec<u8>, ParsedResponse), ResponseFault> {
        self.state?.ok_or(ResponseFault::NoStatus)?.finish().map_err(ResponseFault::Head)
    }
}

/// Parses `:status` (RFC 9113 section 8.3.2).
fn begin(value: &[u8]) -> Result<HeadWriter, ResponseFault> {
    let &[hundreds @ b'1'..=b'9', tens @ b'0'..=b'9', ones @ b'0'..=b'9'] = value else {
        return Err(ResponseFault::InvalidStatus);
    };
    let digit = |byte: u8| u16::from(byte - b'0');
    let code = digit(hundreds) * 100 + digit(tens) * 10 + digit(ones);
    if code == 101 {
        return Err(ResponseFault::UnexpectedStatus);
    }
    let status = StatusCode::new(code).ok_or(ResponseFault::InvalidStatus)?;
    // HTTP/2 has no reason phrase; HTTP/1 clients get the usual one.
    let text = [value, b" ", status.reason().as_bytes()].concat();
    HeadWriter::new(status, text.trim_ascii_end(), CAPACITY).map_err(ResponseFault::Head)
}

/// Adds another field (RFC 9113 sections 8.2.1 and 8.2.2).
fn regular(writer: &mut HeadWriter, name: &[u8], value: &[u8]) -> Result<(), ResponseFault> {
    if !is_field(name, value) {
        return Err(ResponseFault::Field);
    }
    // `te` is allowed only in requests.
    if is_connection_field(name) || name == b"te" {
        return Err(ResponseFault::Connection);
    }
    writer.push(&FieldLine::new(name, value)).map_err(ResponseFault::Head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::HeaderId;

    fn read(fields: &[(&str, &str)]) -> Result<(Vec<u8>, ParsedResponse), ResponseFault> {
        let mut reader = ResponseReader::new(Limits { head_max: 64, fields_max: 3 });
        fields.iter().for_each(|(name, value)| reader.field(name.as_bytes(), value.as_bytes()));
        reader.finish()
    }

    fn fault(fields: &[(&str, &str)]) -> ResponseFault {
        read(fields).expect_err("the head is refused")
    }

    #[test]
    fn a_header_block_becomes_an_http_1_head() {
        let (bytes, head) = read(&[(":status", "200"), ("content-length", "12"), ("a", "")]).unwrap();
        assert_eq!(bytes, b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\na: \r\n\r\n");
        assert_eq!((head.status().code(), head.content_length()), (200, Some(12)));
        assert_eq!(head.get(&bytes, HeaderId::ContentLength), Some(&b"12"[..]));
        assert!(read(&[(":status", "103")]).unwrap().1.is_interim());
    }

    #[test]
    fn the_status_must_be_first_and_unique() {
        for status in ["", "20", "2000", "099", "2x0", " 200"] {
            assert_eq!(fault(&[(":status", status)]), ResponseFault::InvalidStatus, "{status:?}");
        }
        assert_eq!(fault(&[(":status", "101")]), ResponseFault::UnexpectedStatus);
        assert_eq!(fault(&[]), ResponseFault::NoStatus);
        assert_eq!(fault(&[("a", "b"), (":status", "200")]), ResponseFault::NoStatus);
        assert_eq!(fault(&[(":status", "200"), (":status", "200")]), ResponseFault::DuplicateStatus);
        assert_eq!(fault(&[(":path", "/"), (":status", "200")]), ResponseFault::Pseudo);
        assert_eq!(fault(&[(":status", "200"), ("a", "b"), (":path", "/")]), ResponseFault::Pseudo);
    }

    #[test]
    fn fields_that_are_ambiguous_in_http_1_are_refused() {
        let with = |name, value| fault(&[(":status", "200"), (name, value)]);
        for name in ["", "A", "a b", "a:", "a\r\n", "\u{e9}"] {
            assert_eq!(with(name, "v"), ResponseFault::Field, "{name:?}");
        }
        for value in ["a\r\nb: c", "a\nb", "a\0", " a", "a\t"] {
            assert_eq!(with("a", value), ResponseFault::Field, "{value:?}");
        }
        for name in ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "te"] {
            assert_eq!(with(name, "close"), ResponseFault::Connection, "{name}");
        }
        assert_eq!(with("content-length", "1x"), ResponseFault::Head(ResponseError::InvalidContentLength));
    }

    #[test]
    fn the_first_error_is_retained() {
        let fields = [(":status", "200"), ("upgrade", "x"), ("A", "b"), (":status", "200")];
        assert_eq!(fault(&fields), ResponseFault::Connection);
    }

    #[test]
    fn size_and_number_of_fields_are_limited() {
        let value = "v".repeat(53);
        assert!(read(&[(":status", "200"), ("a", &value)]).is_ok());
        let longer = "v".repeat(54);
        let too_long = ResponseFault::Head(ResponseError::HeadTooLong);
        assert_eq!(fault(&[(":status", "200"), ("a", &longer)]), too_long);
        let three = [(":status", "200"), ("a", "1"), ("b", "2"), ("c", "3")];
        assert!(read(&three).is_ok());
        let four = [&three[..], &[("d", "4")]].concat();
        assert_eq!(fault(&four), ResponseFault::Head(ResponseError::TooManyFields));
    }
}
