//! Charsets of responses: the settings of the directives of nginx's charset module, and the charset that follows from
//! them. Modules that write texts need it, and so does the filter that recodes.

use std::borrow::Cow;
use std::sync::Arc;

use conf::{Error, Span};

use crate::config::{Cx, Settings};
use crate::request::Request;
use crate::response::ContentType;
use crate::settings::media_types::{MediaTypes, split_charset};
use crate::variables::VarRef;
use telemetry::Level;

/// The charsets that the directives of a configuration name.
#[derive(Debug, Default)]
pub struct Charsets {
    /// As they were written first: names are compared without case, and sent in one spelling.
    names: Vec<Arc<str>>,
}

impl Charsets {
    /// The spelling that all directives with this charset share.
    pub fn intern(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.iter().find(|known| known.eq_ignore_ascii_case(name)) {
            return Arc::clone(known);
        }
        let name: Arc<str> = name.into();
        self.names.push(Arc::clone(&name));
        name
    }

    /// Whether a directive names any charset.
    pub fn is_any(&self) -> bool {
        !self.names.is_empty()
    }

    /// Whether a directive names this charset.
    pub fn has(&self, name: &[u8]) -> bool {
        self.names.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(name))
    }
}

/// The charset settings of a block.
#[derive(Clone, Debug)]
pub struct Conf {
    /// The charset of the response; `None` is `off`.
    pub charset: Option<Charset>,
    /// The charset of the files.
    pub source: Option<Charset>,
    /// `override_charset`
    pub overrides: bool,
    /// `charset_types`; they do not matter for responses that came with a charset.
    pub types: MediaTypes,
    /// The directive that spoke last, for the complaint that there is no map.
    pub span: Option<Span>,
}

impl Settings for Conf {}

impl Default for Conf {
    fn default() -> Conf {
        const TYPES: MediaTypes = MediaTypes::new(&[
            "text/html",
            "text/xml",
            "text/plain",
            "text/vnd.wap.wml",
            "application/javascript",
            "application/rss+xml",
        ]);
        Conf { charset: None, source: None, overrides: false, types: TYPES, span: None }
    }
}

/// A charset of the configuration.
#[derive(Clone, Debug)]
pub enum Charset {
    /// The one that nearly everybody names, which then costs no memory with each response.
    Utf8,
    /// In the spelling that was first.
    Name(Arc<str>),
    /// Named by each request; whether there is a map is known only then.
    Variable(VarRef),
}

impl Conf {
    /// A location without charset settings does not convert its subrequests' responses.
    pub fn is_active(&self) -> bool {
        self.charset.is_some() || self.source.is_some()
    }
}

impl Charset {
    /// The usual spelling; another one is sent as it was written.
    pub const UTF8: &str = "utf-8";

    /// A name, or a variable with one.
    pub fn parse(cx: &mut Cx<'_>) -> Result<Charset, Error> {
        let text = cx.arg(0);
        if let Some(name) = text.strip_prefix('$') {
            if name.is_empty() {
                return Err(cx.error(format_args!("invalid variable name \"{text}\"")));
            }
            return Ok(Charset::Variable(cx.http.registry.reference(name, cx.statement)));
        }
        let name = cx.http.own::<Charsets>().intern(text);
        Ok(if *name == *Charset::UTF8 { Charset::Utf8 } else { Charset::Name(name) })
    }

    /// Its name for a request; a variable may have none.
    pub fn name(&self, request: &Request) -> Option<Cow<'static, [u8]>> {
        Some(match self {
            Charset::Utf8 => Cow::Borrowed(Charset::UTF8.as_bytes()),
            Charset::Name(name) => Cow::Owned(name.as_bytes().to_vec()),
            Charset::Variable(variable) => {
                let mut name = Vec::new();
                variable.value(request, &mut name);
                Cow::Owned(name)
            }
        })
        .filter(|name| !name.is_empty())
    }

    /// Its name if that is known without a request.
    pub fn constant(&self) -> Option<&str> {
        match self {
            Charset::Utf8 => Some(Charset::UTF8),
            Charset::Name(name) => Some(name),
            Charset::Variable(_) => None,
        }
    }
}

/// The charset that another server requests (`X-Accel-Charset`), if a directive names it; otherwise there is a log
/// line.
pub fn of_upstream(request: &Request, name: &[u8]) -> Option<Box<[u8]>> {
    if name.is_empty() {
        return None;
    }
    let is_known = request.config().http.of::<Charsets>().has(name);
    if !is_known {
        request.log(Level::Error, format_args!("unknown charset \"{}\" to override", name.escape_ascii()));
    }
    is_known.then(|| Box::from(name))
}

/// Whether the response, whose type is known, will be sent as UTF-8.
pub fn is_utf8(request: &Request) -> bool {
    let conf = request.scope().of::<Conf>();
    let named = named(request);
    let charset = wanted(request, conf, named.is_some()).or(named);
    charset.is_some_and(|charset| charset.eq_ignore_ascii_case(Charset::UTF8.as_bytes()))
}

/// The charset that the response came with: set by the module that made the response, or appended to the type by
/// another server.
pub fn named(request: &Request) -> Option<Cow<'static, [u8]>> {
    let response = &request.response;
    let behind_type = || match &response.content_type {
        ContentType::Text(text) => split_charset(text).1.map(|name| Cow::Owned(name.as_bytes().to_vec())),
        ContentType::None | ContentType::OfUri => None,
    };
    response.charset.clone().or_else(behind_type)
}

/// The charset that the client is to get.
pub fn wanted(request: &Request, conf: &Conf, is_named: bool) -> Option<Cow<'static, [u8]>> {
    request.response.content_type.of(request)?;
    if let Some(name) = &request.response.charset_override {
        return Some(Cow::Owned(name.to_vec()));
    }
    // A charset that came with the response is left alone, whatever the type, unless the configuration insists.
    let concerned = if is_named { conf.overrides } else { conf.types.matches(request) };
    conf.charset.as_ref().filter(|_| concerned).and_then(|charset| charset.name(request))
}
