//! The response before it is sent: head fields as values, the body as a source that is never copied here.

use std::borrow::Cow;
use std::ops::Range;

use http::StatusCode;
use http::conditional::Etag;
use io::op::Source;

use crate::filter::BodyFilter;
use crate::filter::encoder::Encoder;
use crate::request::Request;
use crate::takeover::Takeover;
use transfer::body::FileBody;
use transfer::body::ranged::RangedBody;
use transfer::body::source::BodySource;

/// A response.
#[derive(Default)]
pub struct Response {
    /// Status; 0 while it is undecided.
    pub status: u16,
    /// `Content-Type`
    pub content_type: ContentType,
    /// Body bytes, when known.
    pub content_length: Option<u64>,
    /// Seconds since 1970.
    pub last_modified: Option<i64>,
    /// `ETag`
    pub etag: Option<Etag>,
    /// `Location`
    pub location: Option<Vec<u8>>,
    /// `Content-Range`
    pub content_range: Option<Vec<u8>>,
    /// Values of `WWW-Authenticate`: the challenge for the client. An error page keeps them.
    pub www_authenticate: Vec<Vec<u8>>,
    /// Whether ranges of the body may be requested.
    pub allow_ranges: bool,
    /// Further fields in order.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
    /// The body.
    pub body: Body,
    /// Whether another server has judged the client's conditions already, so that none is judged here.
    pub is_judged: bool,
    /// Whether it is a response that a cache stores; its dates are compared by RFC 9111 section 4.3.2.
    pub is_stored: bool,
    /// The upstream's text behind the number of its status.
    pub reason: Option<Reason>,
    /// `Server` of another server, in the place of this one's own.
    pub server: Option<Vec<u8>>,
    /// `Date` of another server.
    pub date: Option<Vec<u8>>,
    /// The stages that change the body, in order.
    pub filters: Vec<Box<dyn BodyFilter>>,
    /// The encoder behind those, after the responses of subrequests were inserted.
    pub encoder: Option<Box<Encoder>>,
    /// The charset that another server requests for the text (`X-Accel-Charset`).
    pub charset_override: Option<Box<[u8]>>,
    /// Charset of a text, sent behind its type.
    pub charset: Option<Cow<'static, [u8]>>,
    /// Whether the response depends on `Accept-Encoding`, which `gzip_vary` makes visible.
    pub vary_accept_encoding: bool,
    /// Make the fields that follow the body.
    pub trailers: Vec<Trailers>,
    /// The fields that followed it, for the log.
    pub sent_trailers: Vec<(Vec<u8>, Vec<u8>)>,
    /// Set by a filter that replaces the response by an error, which may have a page.
    pub refusal: Option<u16>,
    /// Whether the body goes out in chunks, known when the head is written.
    pub chunked: bool,
}

/// The words behind the number of a status; they mean nothing behind another number.
#[derive(Clone, Debug)]
pub struct Reason {
    /// The status.
    pub status: u16,
    /// Nothing if they equal those of this server.
    pub text: Option<Vec<u8>>,
}

impl Reason {
    /// The upstream's text of this status.
    pub fn new(status: StatusCode, text: &[u8]) -> Reason {
        let is_ours = !text.is_empty() && text == status.reason().as_bytes();
        Reason { status: status.code(), text: (!is_ours).then(|| text.to_vec()) }
    }
}

/// Appends the fields that follow a body to [`Response::sent_trailers`], when it has been sent.
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
#[derive(Debug, Default)]
pub enum ContentType {
    /// It has none.
    #[default]
    None,
    /// That of the URI's extension, else the default of the location.
    OfUri,
    /// This text.
    Text(Cow<'static, str>),
}

impl ContentType {
    /// The text for `request`, whose response has this type.
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

/// Where the bytes of a body come from.
#[derive(Default)]
pub enum Body {
    /// None.
    #[default]
    None,
    /// Bytes in memory.
    Bytes(Source),
    /// A part of some.
    Slice(Source, Range<usize>),
    /// A file, or ranges of one.
    File(FileBody),
    /// Another body that can be read from any offset, or pieces of it.
    Ranged(RangedBody),
    /// Bytes that arrive while they are sent.
    Source(Box<dyn BodySource>),
    /// None: the connection changes its protocol, and bytes are passed between both ends.
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

impl Response {
    /// Forgets everything but the memory.
    pub fn clear(&mut self) {
        // One by one: most of it was never set, and checking that costs less than resetting all of it.
        let Response {
            status,
            content_type,
            content_length,
            last_modified,
            etag,
            location,
            content_range,
            www_authenticate,
            allow_ranges,
            fields,
            body,
            is_judged,
            is_stored,
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
        } = self;
        (*status, *content_length, *last_modified, *refusal) = (0, None, None, None);
        (*allow_ranges, *is_judged, *is_stored) = (false, false, false);
        (*vary_accept_encoding, *chunked) = (false, false);
        (*etag, *location, *content_range) = (None, None, None);
        (*reason, *server, *date, *charset) = (None, None, None, None);
        *charset_override = None;
        (*content_type, *body, *encoder) = (ContentType::None, Body::None, None);
        fields.clear();
        www_authenticate.clear();
        filters.clear();
        trailers.clear();
        sent_trailers.clear();
    }

    /// The body will differ from the file on the disk: fields that describe the file are removed, as in nginx, and it
    /// has no ranges any more. `keep_date` keeps `Last-Modified`, which some modules allow.
    pub fn becomes_another(&mut self, keep_date: bool) {
        self.content_length = None;
        self.allow_ranges = false;
        // Promised by another server, for its own form of the body.
        self.remove_field(b"Accept-Ranges");
        match keep_date {
            true => self.weaken_etag(),
            false => (self.last_modified, self.etag) = (None, None),
        }
    }

    /// The same content in another form: equal for a reader, not byte for byte (RFC 9110 section 8.8.1).
    pub fn weaken_etag(&mut self) {
        self.etag = self.etag.take().and_then(Etag::weakened);
    }

    /// The first field of this name, which is compared without case.
    pub fn field(&self, name: &[u8]) -> Option<&[u8]> {
        let mut same = self.fields.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
        same.next().map(|(_, value)| value.as_slice())
    }

    /// Takes away all fields of this name.
    pub fn remove_field(&mut self, name: &[u8]) {
        self.fields.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
    }

    /// Whether the body cannot go from its source to the socket as it is.
    pub fn is_filtered(&self) -> bool {
        self.is_changed()
            || (self.content_length.is_none() && !matches!(self.body, Body::None | Body::Tunnel(_)))
    }

    /// Whether something changes the body on its way, or adds to it.
    pub fn is_changed(&self) -> bool {
        !self.filters.is_empty() || self.encoder.is_some() || !self.trailers.is_empty()
    }

    /// Whether nothing follows the head, whatever was made (RFC 9110 sections 15.3.5 and 15.4.5). A HEAD
    /// request is the other reason for that.
    pub fn has_no_content(&self) -> bool {
        matches!(self.status, 204 | 304)
    }

    /// Answers with bytes.
    pub fn set_bytes(&mut self, source: Source) {
        self.content_length = Some(source.bytes().len() as u64);
        self.body = Body::Bytes(source);
    }
}
