//! Charsets of responses: the settings of nginx's charset module.

use std::borrow::Cow;
use std::sync::Arc;

use conf::{Error, Span};

use crate::config::{Cx, Settings};
use crate::settings::media_types::MediaTypes;
use crate::var_ref::VarRef;
use crate::variables::HasVariables;

/// The charsets that the directives of a configuration name.
#[derive(Debug, Default)]
pub struct Charsets {
    /// The names in their first spelling. They are case-insensitive, and sent in one spelling.
    names: Vec<Arc<str>>,
}

impl Charsets {
    /// Returns the common spelling of a charset for all directives.
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
    /// `charset_types`; they do not apply to responses that already have a charset.
    pub types: MediaTypes,
    /// The position of the last directive, for the error about a missing `charset_map`.
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
    /// UTF-8, the most common charset, which needs no memory per response.
    Utf8,
    /// Another charset, in its first spelling.
    Name(Arc<str>),
    /// A variable, evaluated for each request; only then is it known whether a map exists.
    Variable(VarRef),
}

impl Conf {
    /// Whether the location has charset settings; otherwise it does not convert responses of its subrequests.
    pub fn is_active(&self) -> bool {
        self.charset.is_some() || self.source.is_some()
    }
}

impl Charset {
    /// The usual spelling; any other spelling is sent as written.
    pub const UTF8: &str = "utf-8";

    /// Parses a charset name, or a variable.
    pub fn parse(cx: &mut Cx<'_>) -> Result<Charset, Error> {
        let text = cx.arg(0);
        if let Some(name) = text.strip_prefix('$') {
            if name.is_empty() {
                return Err(cx.error(format_args!("invalid variable name \"{text}\"")));
            }
            return Ok(Charset::Variable(cx.http.registry.reference(name, cx.statement)));
        }
        let name = cx.http.make_mut::<Charsets>().intern(text);
        Ok(if *name == *Charset::UTF8 { Charset::Utf8 } else { Charset::Name(name) })
    }

    /// Returns the charset's name for a request; a variable may be empty.
    pub fn name<R: HasVariables>(&self, request: &R) -> Option<Cow<'static, [u8]>> {
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

    /// Returns the charset's name if it is known without a request.
    pub fn constant(&self) -> Option<&str> {
        match self {
            Charset::Utf8 => Some(Charset::UTF8),
            Charset::Name(name) => Some(name),
            Charset::Variable(_) => None,
        }
    }
}
