//! The answer before it is sent: head fields as values, the body as a source that is never copied here.

use std::borrow::Cow;

use http::conditional::Etag;
use io::op::Source;

use crate::body::FileBody;
use crate::request::Request;

/// An answer.
#[derive(Debug, Default)]
pub struct Response {
    /// Status; 0 while nobody has decided.
    pub(crate) status: u16,
    pub(crate) content_type: ContentType,
    /// Body bytes, when known.
    pub(crate) content_length: Option<u64>,
    /// Seconds since 1970.
    pub(crate) last_modified: Option<i64>,
    pub(crate) etag: Option<Etag>,
    pub(crate) location: Option<Vec<u8>>,
    pub(crate) content_range: Option<Vec<u8>>,
    /// Values of `WWW-Authenticate`: what the client is asked for. An error page keeps them.
    pub(crate) www_authenticate: Vec<Vec<u8>>,
    /// Whether ranges of the body may be asked for.
    pub(crate) allow_ranges: bool,
    /// Further fields in order.
    pub(crate) fields: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) body: Body,
}

/// The media type of an answer.
#[derive(Debug, Default)]
pub(crate) enum ContentType {
    /// It has none.
    #[default]
    None,
    /// That of the URI's extension, else the default of the location.
    OfUri,
    /// This text.
    Text(Cow<'static, str>),
}

impl ContentType {
    /// The text for `request`, whose answer has this type.
    pub(crate) fn of<'r>(&'r self, request: &'r Request) -> Option<&'r str> {
        let text = match self {
            ContentType::None => return None,
            ContentType::OfUri => {
                let core = &request.scope().core;
                core.types.find(&request.uri).unwrap_or(&core.default_type)
            }
            ContentType::Text(text) => text,
        };
        (!text.is_empty()).then_some(text)
    }
}

/// Where the bytes of a body come from.
#[derive(Debug, Default)]
pub(crate) enum Body {
    /// There are none.
    #[default]
    None,
    /// Bytes at hand.
    Bytes(Source),
    /// A file, or ranges of one.
    File(FileBody),
}

impl Response {
    /// Forgets everything but the memory.
    pub(crate) fn clear(&mut self) {
        let mut fields = std::mem::take(&mut self.fields);
        fields.clear();
        *self = Response { fields, ..Response::default() };
    }

    /// Answers with bytes.
    pub(crate) fn set_bytes(&mut self, source: Source) {
        self.content_length = Some(source.bytes().len() as u64);
        self.body = Body::Bytes(source);
    }
}
