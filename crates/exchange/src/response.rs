//! The response before it is sent: header fields as values, and a body source that is never copied here.

use std::borrow::Cow;
use std::ops::Range;

use http::StatusCode;
use http::conditional::Etag;
use http::h2::hpack::NeverIndexed;
use http::response::encode::blank_controls;
use io::segments::Source;

use crate::field_list::FieldList;
use crate::filter::BodyFilter;
use crate::filter::encoder::Encoder;
use crate::request::Request;
use crate::takeover::Takeover;
use site::settings::media_types::{MediaTypes, split_charset};
use transfer::body::FileBody;
use transfer::body::ranged::RangedBody;
use transfer::body::source::BodySource;

/// A response.
#[derive(Default)]
pub struct Response {
    /// Status code; 0 while undecided.
    pub status: u16,
    /// `Content-Type`
    pub content_type: ContentType,
    /// Length of the body in bytes, if known.
    pub content_length: Option<u64>,
    /// `Last-Modified`, in seconds since 1970.
    pub last_modified: Option<i64>,
    /// `ETag`
    pub etag: Option<Etag>,
    /// `Location`
    pub location: Option<Vec<u8>>,
    /// `Content-Range`
    pub content_range: Option<Vec<u8>>,
    /// Values of `WWW-Authenticate` or `Proxy-Authenticate`, which an error page retains.
    pub challenges: AuthChallenges,
    /// Whether ranges of the body may be requested.
    pub allow_ranges: bool,
    /// Further header fields, in order.
    pub fields: FieldList,
    /// The body.
    pub body: Body,
    /// Whether the upstream has evaluated the request's preconditions already, so that none is evaluated here.
    pub is_precondition_evaluated: bool,
    /// Whether this is a stored response of a cache; its dates are compared by RFC 9111 section 4.3.2.
    pub is_stored: bool,
    /// The origin of a 304; `None` for other statuses, and for the 304 of a `return`.
    pub not_modified: Option<NotModified>,
    /// The reason phrase of the upstream.
    pub reason: Option<Reason>,
    /// `Server` of the upstream, which replaces this server's own.
    pub server: Option<Vec<u8>>,
    /// `Date` of the upstream.
    pub date: Option<[u8; http::date::HTTP_LEN]>,
    /// The filters of the body, in order.
    pub filters: Vec<Box<dyn BodyFilter>>,
    /// The encoder after the filters, and after the responses of subrequests were inserted.
    pub encoder: Option<Box<Encoder>>,
    /// The charset that the upstream requests for the text (`X-Accel-Charset`); empty if no directive names it.
    pub charset_override: Option<Box<[u8]>>,
    /// Charset of a text, appended to its media type.
    pub charset: Option<Cow<'static, [u8]>>,
    /// Whether the response depends on `Accept-Encoding`, so that `gzip_vary` adds `Vary`.
    pub vary_accept_encoding: bool,
    /// Functions that create the trailer section.
    pub trailers: Vec<Trailers>,
    /// The trailer fields that were sent, for the log.
    pub sent_trailers: Vec<(Vec<u8>, Vec<u8>)>,
    /// Status of the error by which a filter replaces the response.
    pub refusal: Option<u16>,
    /// Never-indexed fields of an upstream's response (RFC 7541 section 7.1.3).
    pub never_indexed: Option<Box<NeverIndexed>>,
    /// Whether the body is sent in chunked coding. Set when the header section is encoded.
    pub chunked: bool,
}

/// The origin of a 304. Its validators and its `Vary` are those of the 200 that the client would get (RFC 9110 section 15.4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotModified {
    /// The precondition was evaluated here. The filters change the header section as that of the 200, then the content is
    /// removed.
    Here,
    /// An upstream has evaluated it, and the client has a weak tag of the response: this server has changed the body.
    ByUpstream,
}

/// The reason phrase of a status; it is ignored for any other status.
#[derive(Clone, Debug)]
pub struct Reason {
    /// The status.
    pub status: u16,
    /// The reason phrase; `None` if it equals that of this server.
    pub text: Option<Vec<u8>>,
}

impl Reason {
    /// Returns the upstream's reason phrase for this status.
    pub fn new(status: StatusCode, text: &[u8]) -> Reason {
        let is_ours = !text.is_empty() && text == status.reason().as_bytes();
        Reason { status: status.code(), text: (!is_ours).then(|| text.to_vec()) }
    }
}

/// Appends trailer fields to [`Response::sent_trailers`] after the body was sent.
pub type Trailers = fn(&mut Request);

impl std::fmt::Debug for Response {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Response")
            .field("status", &self.status)
            .field("content_type", &self.content_type)
            .field("content_length", &self.content_length)
            .field("fields", &self.fields)
            .field("body", &self.body)
            .finish_non_exhaustive()
    }
}

/// The media type of a response.
#[derive(Clone, Debug, Default)]
pub enum ContentType {
    /// No media type.
    #[default]
    None,
    /// The type of the URI's extension, else the default of the location.
    OfUri,
    /// This media type.
    Text(Cow<'static, str>),
}

impl ContentType {
    /// Returns the media type of `request`'s response.
    pub fn of<'r>(&'r self, request: &'r Request) -> Option<&'r str> {
        let text = match self {
            ContentType::None => return None,
            ContentType::OfUri => {
                let core = &request.scope().core;
                core.files.types.find(&request.uri).unwrap_or(&core.files.default_type)
            }
            ContentType::Text(text) => text,
        };
        (!text.is_empty()).then_some(text)
    }
}

impl Request {
    /// Whether the response has one of these types. A charset in the type from an upstream is ignored, but the types of
    /// `types` and `default_type` are compared as written.
    pub fn has_type(&self, types: &MediaTypes) -> bool {
        let content_type = &self.response.content_type;
        types.has(match (content_type.of(self), content_type) {
            (Some(text), ContentType::Text(_)) => Some(split_charset(text).0),
            (text, _) => text,
        })
    }
}

/// The source of a body.
#[derive(Default)]
pub enum Body {
    /// No body.
    #[default]
    None,
    /// Bytes in memory.
    Bytes(Source),
    /// A range of bytes in memory.
    Slice(Source, Range<usize>),
    /// A file, or ranges of one.
    File(FileBody),
    /// Another body that can be read from any offset, or ranges of it.
    Ranged(RangedBody),
    /// Bytes that arrive while the response is sent.
    Source(Box<dyn BodySource>),
    /// No body: the connection switches protocols, and bytes are passed between both ends.
    Tunnel(Box<dyn Takeover>),
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Body::None => f.write_str("None"),
            Body::Bytes(source) => f.debug_tuple("Bytes").field(source).finish(),
            Body::Slice(source, range) => f.debug_tuple("Slice").field(source).field(range).finish(),
            Body::File(file) => f.debug_tuple("File").field(file).finish(),
            Body::Ranged(_) => f.write_str("Ranged"),
            Body::Source(_) => f.write_str("Source"),
            Body::Tunnel(_) => f.write_str("Tunnel"),
        }
    }
}

/// Challenges to a client for its credentials (RFC 9110 section 11.6).
#[derive(Debug, Default)]
pub struct AuthChallenges {
    /// The values of the field.
    pub values: Vec<Vec<u8>>,
    /// Whether the credentials are for this server as a forward proxy: the field is `Proxy-Authenticate`.
    pub is_for_proxy: bool,
}

impl AuthChallenges {
    /// Removes the challenges.
    pub fn clear(&mut self) {
        self.values.clear();
        self.is_for_proxy = false;
    }

    /// Returns the name of the field.
    pub fn field(&self) -> &'static [u8] {
        if self.is_for_proxy { b"Proxy-Authenticate" } else { b"WWW-Authenticate" }
    }
}

impl Response {
    /// Replaces the bytes that values must not contain by spaces. Values of upstreams and variables are not checked before.
    pub fn blank_controls(&mut self) {
        let reason = self.reason.as_mut().and_then(|reason| reason.text.as_mut());
        let members = [self.location.as_mut(), self.content_range.as_mut(), self.server.as_mut(), reason];
        for value in members.into_iter().flatten().chain(&mut self.challenges.values) {
            blank_controls(value);
        }
        self.fields.edit(|fields| fields.iter_mut().for_each(|(_, value)| blank_controls(value)));
        if let Some(charset) = &mut self.charset {
            blank_controls(charset.to_mut());
        }
        if let Some(tag) = &mut self.etag {
            let mut text = tag.as_bytes().to_vec();
            blank_controls(&mut text);
            *tag = Etag::from_text(&text);
        }
        if let ContentType::Text(text) = &mut self.content_type {
            *text = text.replace(|char: char| char.is_ascii_control() && char != '\t', " ").into();
        }
    }

    /// Resets everything but retains the memory.
    pub fn clear(&mut self) {
        // Each field separately: most fields were never set, and assigning them costs less than creating a new response.
        let Response {
            status,
            content_type,
            content_length,
            last_modified,
            etag,
            location,
            content_range,
            challenges,
            allow_ranges,
            fields,
            body,
            is_precondition_evaluated,
            is_stored,
            not_modified,
            reason,
            server,
            date,
            filters,
            encoder,
            charset,
            charset_override,
            vary_accept_encoding,
            trailers,
            sent_trailers,
            refusal,
            chunked,
            never_indexed,
        } = self;
        (*status, *content_length, *last_modified, *refusal) = (0, None, None, None);
        (*allow_ranges, *is_precondition_evaluated, *is_stored) = (false, false, false);
        (*vary_accept_encoding, *chunked) = (false, false);
        (*etag, *location, *content_range, *not_modified) = (None, None, None, None);
        (*reason, *server, *date, *charset) = (None, None, None, None);
        (*charset_override, *never_indexed) = (None, None);
        (*content_type, *body, *encoder) = (ContentType::None, Body::None, None);
        fields.clear();
        challenges.clear();
        filters.clear();
        trailers.clear();
        sent_trailers.clear();
    }

    /// Removes the fields that describe the file, as nginx does, because the body will differ from it. Ranges are no
    /// longer possible. `keep_date` retains `Last-Modified`, which some modules allow.
    pub fn becomes_another(&mut self, keep_date: bool) {
        self.content_length = None;
        self.allow_ranges = false;
        // `Accept-Ranges` of an upstream applies to the unchanged body.
        self.remove_field(b"Accept-Ranges");
        self.drop_body_fields();
        match keep_date {
            true => self.weaken_etag(),
            false => (self.last_modified, self.etag) = (None, None),
        }
    }

    /// Makes the response a part of its representation: with `Content-Range` for one part, without for several, each of which
    /// has its own. The fields of the complete body are removed.
    pub fn becomes_part(&mut self, content_range: Option<Vec<u8>>, length: u64) {
        self.status = 206;
        self.content_range = content_range;
        self.content_length = Some(length);
        self.allow_ranges = false;
        // These are digests of the complete body. `Repr-Digest` and `Digest` concern the representation, which is the same.
        self.remove_field(b"Content-MD5");
        self.remove_field(b"Content-Digest");
    }

    /// Removes fields that describe the bytes of a body which will be changed: digests (RFC 9530, RFC 3230, RFC 1864) and
    /// `Content-Range`. A 206 without the latter would be invalid.
    pub fn drop_body_fields(&mut self) {
        self.fields.retain(|name| !is_digest(name));
        if self.status != 206 {
            self.content_range = None;
        }
    }

    /// Returns the status of the response whose header section the filters change: 200 for a 304 that was decided here.
    pub fn described_status(&self) -> u16 {
        if self.not_modified == Some(NotModified::Here) { 200 } else { self.status }
    }

    /// Ends the filters of a 304: other fields than the validators would describe a body that is not sent.
    pub(crate) fn drop_content(&mut self) {
        (self.content_length, self.content_range) = (None, None);
        (self.content_type, self.charset) = (ContentType::None, None);
        self.remove_field(b"Content-Encoding");
        self.allow_ranges = false;
        self.filters.clear();
        self.encoder = None;
    }

    /// Weakens the entity tag, because the body is equivalent but not identical byte for byte (RFC 9110 section 8.8.1).
    pub fn weaken_etag(&mut self) {
        self.etag = self.etag.take().and_then(Etag::weakened);
    }

    /// Whether `Cache-Control` of the response forbids to change the body (RFC 9110 section 7.7).
    pub fn forbids_transform(&self) -> bool {
        let is_it = |word: &[u8]| word.trim_ascii().eq_ignore_ascii_case(b"no-transform");
        let mut fields = self.fields.iter();
        fields.any(|(name, value)| {
            name.eq_ignore_ascii_case(b"Cache-Control") && value.split(|&byte| byte == b',').any(is_it)
        })
    }

    /// Returns the first field of this name, which is case-insensitive.
    pub fn field(&self, name: &[u8]) -> Option<&[u8]> {
        let mut same = self.fields.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
        same.next().map(|(_, value)| value)
    }

    /// Removes all fields of this name.
    pub fn remove_field(&mut self, name: &[u8]) {
        self.fields.retain(|known| !known.eq_ignore_ascii_case(name));
    }

    /// Whether the body must pass the filter chain on its way to the socket.
    pub fn is_filtered(&self) -> bool {
        self.is_changed()
            || (self.content_length.is_none() && !matches!(self.body, Body::None | Body::Tunnel(_)))
    }

    /// Whether a filter, the encoder or trailers change the body.
    pub fn is_changed(&self) -> bool {
        !self.filters.is_empty() || self.encoder.is_some() || !self.trailers.is_empty()
    }

    /// Whether the status excludes a body, whatever was produced (RFC 9110 sections 15.3.5 and 15.4.5). The other
    /// reason for no body is a HEAD request.
    pub fn has_no_content(&self) -> bool {
        matches!(self.status, 204 | 304)
    }

    /// Sets a body of these bytes.
    pub fn set_bytes(&mut self, source: Source) {
        self.content_length = Some(source.bytes().len() as u64);
        self.body = Body::Bytes(source);
    }
}

/// Whether a field is a digest of the body or of the representation.
pub(crate) fn is_digest(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 4] = [b"Content-MD5", b"Content-Digest", b"Repr-Digest", b"Digest"];
    NAMES.iter().any(|known| known.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_bytes_of_all_values_become_blanks() {
        let mut response = Response { charset: Some(b"a\x01b".to_vec().into()), ..Response::default() };
        response.location = Some(b"/\x7f".to_vec());
        response.blank_controls();
        assert_eq!(response.charset.as_deref(), Some(&b"a b"[..]));
        assert_eq!(response.location.as_deref(), Some(&b"/ "[..]));
    }
}
