//! The charset of a response, which results from the settings and from the response. Modules that generate text use it, and so
//! does the filter that converts charsets.

use std::borrow::Cow;

use crate::request::Request;
use crate::response::ContentType;
use site::settings::charset::{Charset, Charsets, Conf};
use site::settings::media_types::split_charset;
use telemetry::{ForLog, Level};

/// Returns the charset that the upstream requests (`X-Accel-Charset`) if a directive names it; otherwise logs an error, and
/// returns an empty name: as in nginx, the charset of the response is not changed.
pub fn of_upstream(request: &Request, name: &[u8]) -> Option<Box<[u8]>> {
    if name.is_empty() {
        return None;
    }
    let is_known = request.config().http.of::<Charsets>().has(name);
    if !is_known {
        request.log(Level::Error, format_args!("unknown charset \"{}\" to override", name.for_log()));
    }
    Some(if is_known { Box::from(name) } else { Box::default() })
}

/// Whether the response, whose type is known, will be sent as UTF-8.
pub fn is_utf8(request: &Request) -> bool {
    let conf = request.scope().of::<Conf>();
    let named = named(request);
    let charset = target_charset(request, conf, named.is_some()).or(named);
    charset.is_some_and(|charset| charset.eq_ignore_ascii_case(Charset::UTF8.as_bytes()))
}

/// Returns the charset of the response as received or created: set by the module that made the response, or appended to
/// the content type by an upstream.
pub fn named(request: &Request) -> Option<Cow<'static, [u8]>> {
    let response = &request.response;
    let behind_type = || match &response.content_type {
        ContentType::Text(text) => split_charset(text).1.map(|name| Cow::Owned(name.as_bytes().to_vec())),
        ContentType::None | ContentType::OfUri => None,
    };
    response.charset.clone().or_else(behind_type)
}

/// Returns the charset to which the response is to be converted.
pub fn target_charset(request: &Request, conf: &Conf, is_named: bool) -> Option<Cow<'static, [u8]>> {
    request.response.content_type.of(request)?;
    if let Some(name) = &request.response.charset_override {
        return (!name.is_empty()).then(|| Cow::Owned(name.to_vec()));
    }
    // A charset that the response already has is retained, whatever the type, unless `override_charset` is on.
    let concerned = if is_named { conf.overrides } else { request.has_type(&conf.types) };
    conf.charset.as_ref().filter(|_| concerned).and_then(|charset| charset.name(request))
}
