//! The request for an upstream: method, target, fields, and body. `http::gateway` encodes it.
//!
//! | field | value for the upstream |
//! |---|---|
//! | `Host` | `$proxy_host`, also if the configured value is empty, except with HTTP/1.0 |
//! | `Content-Length`, `Transfer-Encoding` | the framing of the body that is sent |
//! | `Connection`, `Proxy-Connection`, `Keep-Alive`, `Upgrade`, `Expect` | none |
//! | `TE` | none; with gRPC `trailers` if the client sent it |
//! | fields that `Connection` names | none (RFC 9110 section 7.6.1) |
//! | conditions and ranges | the client's; those of the cache if the response may be stored |
//! | all others | the client's |
//!
//! `proxy_set_header` overrides all rows except that of the framing; with an empty value no field is sent, except `Host`.
//!
//! No text from a client or a variable can end a line: the URI is escaped, and control bytes in values become spaces. The framing
//! fields are computed only from the body that is sent.

use http::fields::{BodyLength, HeaderId, Method, Version};
use http::gateway::{Encoder, http1, http2};
use http::h2::hpack::NeverIndexed;
use http::hop_by_hop::ConnectionOptions;
use http::response::encode;

use crate::passing::conf::Conf;
use crate::passing::early_hints;
use crate::passing::pass::Destination;
use crate::passing::request::{Context, Fill, body_of, is_conditional, is_idempotent, length_of, secure_of};
use crate::passing::{Family, Via};
use crate::proxy::conf::Http;
use exchange::request::Request;
use site::template::Template;
use telemetry::{ForLog, Level};
use upstream::Outgoing;

/// One `proxy_set_header`, or `grpc_set_header`.
#[derive(Clone, Debug)]
pub(crate) struct SetField {
    /// The name as written, a token.
    pub(super) name: Box<str>,
    id: HeaderId,
    /// The value; an empty value removes the field.
    value: Template,
}

impl SetField {
    pub(super) fn new(name: &str, value: Template) -> SetField {
        SetField { name: name.into(), id: HeaderId::of(name.as_bytes()), value }
    }

    /// Whether this field has the name `name`, whose ID is `id`.
    pub(super) fn is(&self, id: HeaderId, name: &[u8]) -> bool {
        self.id == id && (id != HeaderId::Other || self.name.as_bytes().eq_ignore_ascii_case(name))
    }
}

/// Whether a field determines the end of the body.
pub(super) fn is_framing(id: HeaderId) -> bool {
    matches!(id, HeaderId::ContentLength | HeaderId::TransferEncoding)
}

/// Whether upstreams get this client field only by `proxy_set_header`. This server writes `Host` and the framing fields itself;
/// hop-by-hop fields are dropped.
fn is_replaced(id: HeaderId) -> bool {
    matches!(
        id,
        HeaderId::Host
            | HeaderId::Connection
            | HeaderId::ProxyConnection
            | HeaderId::ContentLength
            | HeaderId::TransferEncoding
            | HeaderId::Te
            | HeaderId::KeepAlive
            | HeaderId::Expect
            | HeaderId::Upgrade
    )
}

/// Creates the request. `fill` is given if the response is for a cache.
///
/// # Errors
/// The status for the client; the reason is logged.
pub(crate) fn build<F: Family>(
    http: &Http,
    conf: &Conf,
    request: &mut Request,
    destination: &Destination,
    fill: Option<&Fill>,
) -> Result<Outgoing, u16> {
    let method = method_text(request, http, fill);
    // The value may come from a variable; a line end in it would start another request.
    if method.is_empty() || !method.iter().all(|&byte| is_token(byte)) {
        let method = method.for_log();
        request.log(Level::Error, format_args!("invalid method \"{method}\" for an upstream"));
        return Err(500);
    }
    if let Some(name) = http.cdn_loop.as_deref().filter(|name| has_passed(request, name)) {
        let name = name.for_log();
        request.log(Level::Error, format_args!("loop detected: \"CDN-Loop\" of the request has \"{name}\""));
        return Err(502);
    }
    // Only HTTP/2 has the scheme in the request.
    let mut encoder = match http.version {
        Version::Http2 => {
            let encoder =
                http2::Encoder::new(if destination.target_parts.is_secure { "https" } else { "http" });
            // A field that the client has sent as never indexed is passed on as never indexed.
            let names = request.extensions.get::<NeverIndexed>().cloned();
            Encoder::Http2(Box::new(encoder.never_indexing(names)))
        }
        version => Encoder::Http1(http1::Encoder::new(version)),
    };
    // nginx's message if the location has no path and the rewritten URI is empty.
    if !encoder.begin(&method, |out| push_uri(request, conf, destination, out)) {
        request.log(Level::Error, format_args!("zero length URI to proxy"));
        return Err(500);
    }
    let via = Via { conf, protocol: http };
    let body = body_of(request, via)?;
    let length = length_of(request, conf, &body);
    request.extensions.insert(Context { length, passes_conditions: fill.is_none() });
    // The context must be complete before values are rendered: they may contain the length of the body.
    let mut writer = Writer { request, conf, http, encoder, closes: false, upgrades: false };
    writer.fields(destination, length, fill);
    let Writer { encoder, closes, upgrades, .. } = writer;
    // The client cannot handle a protocol that it did not request.
    let upgrade = upgrades && request.depth == 0 && request.header(HeaderId::Upgrade).is_some();
    let method = Method::of(&method);
    let secure = secure_of(request, conf, destination)?;
    Ok(Outgoing {
        encoded: encoder.end(),
        scheme: match (http.is_grpc, secure.is_some()) {
            (false, false) => "http://",
            (false, true) => "https://",
            (true, false) => "grpc://",
            (true, true) => "grpcs://",
        },
        secure,
        body,
        method,
        is_idempotent: is_idempotent(method),
        keepalive: !closes,
        upgrade,
        caught: Vec::new(),
        interim: early_hints::interim_of::<F>(request),
        deadline: None,
    })
}

/// Whether the client accepts trailers (RFC 9110 section 10.1.4).
fn accepts_trailers(request: &Request) -> bool {
    let mut values = request.head.all(request.bytes(), HeaderId::Te);
    values.any(|value| http::connection::has_token(value, b"trailers"))
}

/// Whether the request has passed through this server before: `CDN-Loop` is a list of names with parameters (RFC 8586 section 2).
fn has_passed(request: &Request, name: &[u8]) -> bool {
    let bytes = request.bytes();
    let fields =
        request.head.fields().iter().filter(|field| field.name.of(bytes).eq_ignore_ascii_case(CDN_LOOP));
    fields.flat_map(|field| field.value.of(bytes).split(|&byte| byte == b',')).any(|item| {
        let id = item.split(|&byte| byte == b';').next().unwrap_or_default();
        id.trim_ascii().eq_ignore_ascii_case(name)
    })
}

const CDN_LOOP: &[u8] = b"CDN-Loop";

/// Returns the default cache key: scheme and host of the destination, and the URI that is sent.
pub(super) fn default_key(conf: &Conf, request: &Request, destination: &Destination) -> Vec<u8> {
    let (start, uri) = (&destination.target_parts.key_start, &destination.target_parts.uri);
    let mut key =
        Vec::with_capacity(start.len() + uri.len() + request.uri.len() + "?".len() + request.args.len());
    key.extend_from_slice(start);
    push_uri(request, conf, destination, &mut key);
    key
}

/// Returns the method of the request to the upstream.
fn method_text(request: &Request, http: &Http, fill: Option<&Fill>) -> Vec<u8> {
    if fill.is_some_and(|fill| fill.as_get) {
        return b"GET".to_vec();
    }
    if let Some(template) = http.method.as_ref() {
        return template.rendered(request);
    }
    match request.method {
        method if method == request.head.method() => request.method_text().to_vec(),
        // Subrequests and error pages are fetched with GET or HEAD.
        Method::Head => b"HEAD".to_vec(),
        _ => b"GET".to_vec(),
    }
}

/// Whether a byte is a `tchar` (RFC 9110 section 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Appends the request target by nginx's rules. An address from variables is used unchanged. Without a URI in `proxy_pass`, the
/// client's URI is used if no rewrite changed it. Otherwise the decoded path is encoded again.
fn push_uri(request: &Request, conf: &Conf, destination: &Destination, out: &mut Vec<u8>) {
    let uri = &destination.target_parts.uri;
    // As in nginx, nothing is appended to a URI from variables, not even the query.
    if destination.is_evaluated && !uri.is_empty() {
        return push_safe(uri, out);
    }
    // The URI is sent as received: only so can an upstream distinguish an encoded slash.
    if uri.is_empty() && !request.uri_replaced && request.depth == 0 {
        return push_safe(request.head.request_uri(request.bytes()), out);
    }
    let mut path = request.uri.as_slice();
    if !request.left_location && !uri.is_empty() {
        let location = conf.pass.as_ref().map_or("", |pass| pass.location());
        // A handler may have replaced the URI that selected this location.
        path = path.get(location.len()..).unwrap_or_default();
        push_safe(uri, out);
    }
    // nginx's rule: a path that arrived without escapes needs no escapes.
    if request.internal || request.was_encoded() {
        http::uri::escape_uri(path, out);
    } else {
        push_safe(path, out);
    }
    if !request.args.is_empty() {
        out.push(b'?');
        push_safe(&request.args, out);
    }
}

/// Appends a part of a URI. Bytes that would end the URI are percent-encoded.
fn push_safe(text: &[u8], out: &mut Vec<u8>) {
    if text.iter().fold(true, |is_safe, &byte| is_safe & (byte > b' ') & (byte != 0x7f)) {
        return out.extend_from_slice(text);
    }
    for &byte in text {
        match byte {
            0..=b' ' | 0x7f => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            _ => out.push(byte),
        }
    }
}

/// Writes the fields.
struct Writer<'r> {
    request: &'r Request,
    conf: &'r Conf,
    http: &'r Http,
    encoder: Encoder,
    /// Whether the upstream must close the connection.
    closes: bool,
    /// Whether the request has `Upgrade`.
    upgrades: bool,
}

impl Writer<'_> {
    /// Writes the fields in nginx's order: `Host`, configured fields, this server's fields, the client's fields.
    fn fields(&mut self, destination: &Destination, length: BodyLength, fill: Option<&Fill>) {
        let (request, conf, http) = (self.request, self.conf, self.http);
        self.host(destination);
        let is_other = |field: &&SetField| !is_framing(field.id) && field.id != HeaderId::Host;
        let mut value = Vec::new();
        for field in http.set_fields.items().iter().filter(is_other) {
            value.clear();
            field.value.render(request, &mut value);
            self.push(field.id, field.name.as_bytes(), &value);
        }
        self.encoder.body(length);
        // gRPC servers refuse clients that do not accept trailers.
        if http.is_grpc && accepts_trailers(request) && !self.is_set(HeaderId::Te, b"TE") {
            self.push(HeaderId::Te, b"TE", b"trailers");
        }
        for &(id, ref value) in fill.map_or(&[][..], |fill| &fill.fields) {
            if !self.is_set(id, id.name().as_bytes()) {
                self.push(id, id.name().as_bytes(), value);
            }
        }
        // Further names of the list `CDN-Loop` may be in separate lines.
        if let Some(name) = &http.cdn_loop {
            self.encoder.field(CDN_LOOP, name);
        }
        // Last, as in nginx: an upstream that uses the first of two equal fields gets the configured one.
        if conf.pass_fields {
            self.of_client(fill.is_some());
        }
    }

    /// Writes the last configured `Host`, else `$proxy_host`. Servers refuse HTTP/1.1 without `Host` (RFC 9112 section 3.2).
    fn host(&mut self, destination: &Destination) {
        let configured = self.http.set_fields.items().iter().rfind(|field| field.id == HeaderId::Host);
        let value = configured.map(|field| field.value.rendered(self.request));
        match value {
            Some(value) if !value.is_empty() || self.http.version == Version::Http10 => {
                self.push(HeaderId::Host, b"Host", &value);
            }
            _ => self.push(HeaderId::Host, b"Host", &destination.target_parts.host),
        }
    }

    /// Writes the client's fields, except those for this server only.
    fn of_client(&mut self, is_fill: bool) {
        let (request, bytes) = (self.request, self.request.bytes());
        let options = ConnectionOptions::new(request.head.all(bytes, HeaderId::Connection));
        for field in request.head.fields() {
            let (name, value) = (field.name.of(bytes), field.value.of(bytes));
            // Only the configured value is sent for a field that `proxy_set_header` names, even if it is empty.
            let is_dropped = is_replaced(field.id)
                || (is_fill && is_conditional(field.id))
                || options.names(field.id, name)
                || self.is_set(field.id, name);
            if !is_dropped {
                self.encoder.field(name, value);
            }
        }
    }

    /// Whether `proxy_set_header` names the field.
    fn is_set(&self, id: HeaderId, name: &[u8]) -> bool {
        self.http.set_fields.items().iter().any(|field| field.is(id, name))
    }

    /// Appends a field, unless it is empty. A control byte would end the field, so it becomes a space.
    fn push(&mut self, id: HeaderId, name: &[u8], value: &[u8]) {
        if value.is_empty() {
            return;
        }
        match id {
            HeaderId::Connection => self.closes |= http::connection::has_token(value, b"close"),
            HeaderId::Upgrade => self.upgrades = true,
            _ => {}
        }
        if encode::check_value(value).is_ok() {
            return self.encoder.field(name, value);
        }
        let mut value = value.to_vec();
        encode::blank_controls(&mut value);
        debug_assert!(encode::check_value(&value).is_ok(), "no byte ends the field");
        self.encoder.field(name, &value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_would_terminate_a_uri_are_encoded() {
        let mut out = Vec::new();
        push_safe(b"/a b\r\nc\x7f%20\xe4", &mut out);
        assert_eq!(out, b"/a%20b%0D%0Ac%7F%20\xe4");
    }
}
