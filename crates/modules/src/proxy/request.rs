//! The request as an upstream gets it: method, target, fields, and which body follows. `http::gateway` makes bytes of it.
//!
//! | field | what an upstream gets |
//! |---|---|
//! | `Host` | `$proxy_host` |
//! | `Content-Length`, `Transfer-Encoding` | what frames the body that is sent |
//! | `Connection`, `Proxy-Connection`, `Keep-Alive`, `TE`, `Upgrade`, `Expect` | nothing |
//! | what `Connection` names | nothing (RFC 9110 section 7.6.1) |
//! | conditions and ranges | the client's; those of the cache where the answer is to be stored |
//! | all others | the client's |
//!
//! `proxy_set_header` goes before all rows but that of the framing, also with an empty value.
//!
//! Nothing that a client or a variable says can end a line of it: the URI is escaped and control bytes in values
//! become spaces. The fields that frame the body are made from the body that is sent, and from nothing else.

use http::gateway::Encoder;
use http::hop_by_hop::ConnectionOptions;
use http::request::{BodyLength, HeaderId, Method, Version};
use io::Frozen;

use crate::proxy::conf::Conf;
use crate::proxy::early_hints;
use crate::proxy::pass::Destination;
use exchange::request::Request;
use exchange::template::Template;
use telemetry::Level;
use upstream::{Outgoing, OutgoingBody, Secure};

/// One `proxy_set_header`.
#[derive(Clone, Debug)]
pub(super) struct SetField {
    /// As written, a token.
    pub(super) name: Box<str>,
    /// An empty value takes the field away.
    pub(super) value: Template,
}

/// What a cache asks for in the place of what the client does.
#[derive(Debug, Default)]
pub(crate) struct Fill {
    /// GET, whatever the client's method is.
    pub(crate) as_get: bool,
    /// Conditions and ranges of the cache. The client's own are not passed on.
    pub(crate) fields: Vec<(HeaderId, Vec<u8>)>,
}

/// Whether a field of this name says where the body ends.
pub(super) fn is_framing(name: &[u8]) -> bool {
    matches!(HeaderId::of(name), HeaderId::ContentLength | HeaderId::TransferEncoding)
}

/// Fields of clients that upstreams get only where `proxy_set_header` says so. `Host` and those that frame the body
/// are made anew, the others are between the client and this server.
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

/// Fields of clients that a cache does not pass on: what is stored is for others too.
fn is_conditional(id: HeaderId) -> bool {
    matches!(
        id,
        HeaderId::IfModifiedSince
            | HeaderId::IfUnmodifiedSince
            | HeaderId::IfNoneMatch
            | HeaderId::IfMatch
            | HeaderId::Range
            | HeaderId::IfRange
    )
}

/// Whether the body is passed on while it comes, so that it must not be read before: as configured, or because no temporary
/// file takes it.
pub(super) fn streams_body(request: &Request, conf: &Conf) -> bool {
    (!conf.upstream.request_buffering || request.incoming.is_some()) && can_stream_body(request, conf)
}

/// Whether the body can be passed on while it comes.
pub(super) fn can_stream_body(request: &Request, conf: &Conf) -> bool {
    let framing = request.head.body();
    // Without chunks an upstream could not tell where a body of unknown length ends.
    let can_be_framed = framing != BodyLength::Unknown || conf.version == Version::Http11;
    // What a cache asks it may ask again, and for others, when the client has gone.
    let is_cached = conf.cache.zone.is_on() && conf.cache.has_method(request.method);
    !is_cached
        && conf.body.is_none()
        && conf.pass_body
        && request.depth == 0
        && request.body.is_none()
        && framing.has_body()
        && can_be_framed
}

/// Makes the request. `fill` is given where the answer is for a cache.
///
/// # Errors
/// The status that answers; the log has the reason.
pub(crate) fn build(
    request: &mut Request,
    conf: &Conf,
    destination: &Destination,
    fill: Option<&Fill>,
) -> Result<Outgoing, u16> {
    let method = method_text(request, conf, fill);
    // A variable may have brought anything; a line end in it would start a request of its own.
    if method.is_empty() || !method.iter().all(|&byte| is_token(byte)) {
        let method = method.escape_ascii();
        request.log(Level::Error, format_args!("invalid method \"{method}\" for an upstream"));
        return Err(500);
    }
    if let Some(name) = conf.cdn_loop.as_deref().filter(|name| has_passed(request, name)) {
        let name = name.escape_ascii();
        request.log(Level::Error, format_args!("loop detected: \"CDN-Loop\" of the request has \"{name}\""));
        return Err(502);
    }
    let mut encoder = Encoder::http1(conf.version);
    // nginx's words for a location without a path in front of a rewritten URI that is empty.
    if !encoder.begin(&method, |out| push_uri(request, conf, destination, out)) {
        request.log(Level::Error, format_args!("zero length URI to proxy"));
        return Err(500);
    }
    if lacks_body(request, conf) {
        let what = "request body was passed on already, it cannot be sent to another upstream";
        request.log(Level::Error, format_args!("{what}"));
        return Err(502);
    }
    let body = body_of(request, conf);
    let length = length_of(request, conf, &body);
    request.extensions.insert(Context { length, passes_conditions: fill.is_none() });
    // The context is complete before values are made: they may show the length of the body.
    let mut writer = Writer { request, conf, encoder, closes: false, upgrades: false };
    writer.fields(destination, length, fill);
    let Writer { mut encoder, closes, upgrades, .. } = writer;
    encoder.end();
    // What a client did not ask for it would not understand.
    let upgrade = upgrades && request.depth == 0 && request.header(HeaderId::Upgrade).is_some();
    let method = Method::of(&method);
    let secure = match (&conf.upstream.secure, destination.place.is_secure) {
        (Some(settings), true) => Some(Secure::of(settings, &destination.place.host, request)),
        (None, true) => return Err(500),
        (_, false) => None,
    };
    Ok(Outgoing {
        encoder,
        secure,
        body,
        method,
        is_idempotent: is_idempotent(method),
        keepalive: !closes,
        upgrade,
        interim: early_hints::interim_of(request),
    })
}

/// Whether the request came through this server before: `CDN-Loop` is a list of names with parameters (RFC 8586
/// section 2).
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

/// What variables show of a request that was passed on.
#[derive(Clone, Debug)]
pub(super) struct Context {
    /// How long the body is that the upstream gets.
    pub(super) length: BodyLength,
    /// Whether the client's conditions went along.
    pub(super) passes_conditions: bool,
}

/// How long the body is that the upstream gets.
fn length_of(request: &Request, conf: &Conf, body: &OutgoingBody) -> BodyLength {
    let length = request.head.body();
    match body {
        OutgoingBody::Bytes(bytes) => BodyLength::Exactly(bytes.len() as u64),
        OutgoingBody::Received(body) => BodyLength::Exactly(body.byte_count()),
        OutgoingBody::Streamed => match length {
            BodyLength::Exactly(_) => length,
            BodyLength::Unknown | BodyLength::None => BodyLength::Unknown,
        },
        // An empty body that the client announced is announced again.
        OutgoingBody::None if conf.pass_body && request.depth == 0 && length != BodyLength::None => {
            BodyLength::Exactly(0)
        }
        OutgoingBody::None => BodyLength::None,
    }
}

/// Whether the body would go along, but another location has passed it on while it came. The rest of it would look
/// like all of it to an upstream, or leave one that keeps the connection waiting for bytes of the next request.
fn lacks_body(request: &Request, conf: &Conf) -> bool {
    let is_begun = request.incoming.as_ref().is_some_and(|incoming| incoming.is_begun());
    let is_wanted = conf.body.is_none() && conf.pass_body && request.depth == 0;
    // An error page is fetched by GET, which nobody expects a body with.
    let is_same = request.method == request.head.method();
    is_wanted && is_same && (is_begun || request.body_was_streamed)
}

/// The body that is sent.
fn body_of(request: &Request, conf: &Conf) -> OutgoingBody {
    if let Some(template) = &conf.body {
        return OutgoingBody::Bytes(Frozen::from_vec(template.rendered(request)));
    }
    if !conf.pass_body {
        return OutgoingBody::None;
    }
    if request.method != request.head.method() && request.incoming.is_some() {
        return OutgoingBody::None;
    }
    if streams_body(request, conf) {
        return OutgoingBody::Streamed;
    }
    match &request.body {
        Some(body) if body.byte_count() > 0 => OutgoingBody::Received(std::rc::Rc::clone(body)),
        _ => OutgoingBody::None,
    }
}

/// The usual key of a cache: scheme and host of the target and the URI that goes there.
pub(super) fn default_key(request: &Request, conf: &Conf, destination: &Destination) -> Vec<u8> {
    let mut key = destination.place.key_start.clone();
    push_uri(request, conf, destination, &mut key);
    key
}

/// The method that the upstream is asked with.
fn method_text(request: &Request, conf: &Conf, fill: Option<&Fill>) -> Vec<u8> {
    if fill.is_some_and(|fill| fill.as_get) {
        return b"GET".to_vec();
    }
    if let Some(template) = conf.method.as_ref() {
        return template.rendered(request);
    }
    match request.method {
        method if method == request.head.method() => request.method_text().to_vec(),
        // Of a subrequest or an error page, which are fetched.
        Method::Head => b"HEAD".to_vec(),
        _ => b"GET".to_vec(),
    }
}

/// RFC 9110 section 9.2.2, and what WebDAV (RFC 4918) says of its methods. Others may do anything twice.
fn is_idempotent(method: Method) -> bool {
    matches!(
        method,
        Method::Get
            | Method::Head
            | Method::Put
            | Method::Delete
            | Method::Options
            | Method::Trace
            | Method::Mkcol
            | Method::Copy
            | Method::Move
            | Method::Propfind
            | Method::Proppatch
            | Method::Unlock
    )
}

/// `tchar` of RFC 9110 section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Appends the request target by nginx's rules: what came out of variables as it is; without a URI in `proxy_pass`
/// what the client sent, as long as nothing has changed it; else the decoded path, encoded anew.
fn push_uri(request: &Request, conf: &Conf, destination: &Destination, out: &mut Vec<u8>) {
    let uri = &destination.place.uri;
    // Whoever puts variables into an address says all of it: nothing is added, not even the query.
    if destination.is_evaluated && !uri.is_empty() {
        return push_safe(uri, out);
    }
    // An upstream that sees the client's own spelling can tell what an encoded slash was.
    if uri.is_empty() && !request.uri_replaced && request.depth == 0 {
        return push_safe(request.head.request_uri(request.bytes()), out);
    }
    let mut path = request.uri.as_slice();
    if !request.left_location && !uri.is_empty() {
        let location = conf.pass.as_ref().map_or("", |pass| pass.location());
        // A handler may have put another URI in the place of the one that led here.
        path = path.get(location.len()..).unwrap_or_default();
        push_safe(uri, out);
    }
    // nginx's rule: a path that came without escapes holds nothing that would need some.
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

/// Appends a part of a URI; bytes that would end it are encoded.
fn push_safe(text: &[u8], out: &mut Vec<u8>) {
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
    encoder: Encoder,
    /// Whether the upstream is told to close the connection.
    closes: bool,
    /// Whether it is asked for another protocol.
    upgrades: bool,
}

impl Writer<'_> {
    /// In nginx's order: those of the configuration, those of this server, those of the client.
    fn fields(&mut self, destination: &Destination, length: BodyLength, fill: Option<&Fill>) {
        let (request, conf) = (self.request, self.conf);
        for field in conf.set_fields.items().iter().filter(|field| !is_framing(field.name.as_bytes())) {
            self.push(field.name.as_bytes(), &field.value.rendered(request));
        }
        if !self.is_set(b"Host") {
            self.push(b"Host", &destination.place.host);
        }
        self.encoder.body(length);
        for (id, value) in fill.map_or(&[][..], |fill| &fill.fields) {
            if !self.is_set(id.name().as_bytes()) {
                self.push(id.name().as_bytes(), value);
            }
        }
        // A further line of the same list.
        if let Some(name) = &conf.cdn_loop {
            self.encoder.field(CDN_LOOP, name);
        }
        // Last, as in nginx: upstreams that take the first of two equal fields get the one that was configured.
        if conf.pass_fields {
            self.of_client(fill.is_some());
        }
    }

    /// The client's fields, without those that were for this server alone.
    fn of_client(&mut self, is_fill: bool) {
        let (request, bytes) = (self.request, self.request.bytes());
        let options = ConnectionOptions::new(request.head.all(bytes, HeaderId::Connection));
        for field in request.head.fields() {
            let (name, value) = (field.name.of(bytes), field.value.of(bytes));
            // A field that `proxy_set_header` names is the configuration's alone, also where its value is empty.
            let is_dropped = is_replaced(field.id)
                || (is_fill && is_conditional(field.id))
                || options.names(field.id, name)
                || self.is_set(name);
            if !is_dropped {
                self.encoder.field(name, value);
            }
        }
    }

    /// Whether `proxy_set_header` speaks of the field.
    fn is_set(&self, name: &[u8]) -> bool {
        self.conf.set_fields.items().iter().any(|field| field.name.as_bytes().eq_ignore_ascii_case(name))
    }

    /// Appends a field, unless it is empty. A control byte would end it, so it becomes a space.
    fn push(&mut self, name: &[u8], value: &[u8]) {
        if value.is_empty() {
            return;
        }
        match HeaderId::of(name) {
            HeaderId::Connection => self.closes |= http::connection::has_token(value, b"close"),
            HeaderId::Upgrade => self.upgrades = true,
            _ => {}
        }
        let clean = |byte: &u8| if byte.is_ascii_control() && *byte != b'\t' { b' ' } else { *byte };
        let value: Vec<u8> = value.iter().map(clean).collect();
        self.encoder.field(name, &value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_would_end_a_uri_are_encoded() {
        let mut out = Vec::new();
        push_safe(b"/a b\r\nc\x7f%20\xe4", &mut out);
        assert_eq!(out, b"/a%20b%0D%0Ac%7F%20\xe4");
    }

    #[test]
    fn what_may_be_sent_twice() {
        for (method, expected) in [
            ("GET", true),
            ("PUT", true),
            ("DELETE", true),
            ("POST", false),
            ("PATCH", false),
            ("LOCK", false),
            ("X", false),
        ] {
            assert_eq!(is_idempotent(Method::of(method.as_bytes())), expected, "{method}");
        }
    }
}
