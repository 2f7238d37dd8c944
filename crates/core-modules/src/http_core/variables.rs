//! The variables of nginx's HTTP core, and this server's own.

use std::io::Write;
use std::net::IpAddr;

use http::StatusCode;
use http::cookie::cookie_in;
use http::fields::{BodyLength, HeaderId};
use http::proxy_protocol::{Header, TlvError};
use io::sys::TcpInfo;

use exchange::credentials::Credentials;
use exchange::effect;
use exchange::files;
use exchange::module::{Prefixed, Variable};
use exchange::request::{Address, Request};
use exchange::response::Response;
use site::slots::nested;
use site::variables::{Assign, HasVariables};
use telemetry::time_zone::since_1970;
use telemetry::{Level, Reason};

/// The version of nginx that this server is compatible with.
pub const NGINX_VERSION: &str = "1.31.5";

type Get = fn(&Request, &mut Vec<u8>) -> bool;

const fn variable(name: &'static str, get: Get, help: &'static str) -> Variable {
    Variable { name, get, set: None, help }
}

pub(super) const VARIABLES: &[Variable] = &[
    // The variable can be set, which affects later handlers and `$arg_…`.
    Variable {
        name: "args",
        get: |request, out| full(&request.args, out),
        set: Some(Assign::With(|request, value| {
            (request.args, request.uri_replaced) = (value.to_vec(), true);
        })),
        help: "The query, without the question mark.",
    },
    // For keys: shorter than text, and of the same length for all clients of an address family.
    variable("binary_remote_addr", binary_remote_addr, "The client's address as 4 or 16 bytes."),
    // Known after the response was sent; 0 before that, as in nginx.
    variable(
        "body_bytes_sent",
        |request, out| number(request.sent.saturating_sub(request.sent_head), out),
        "Bytes of the response's body that were sent.",
    ),
    // Ringroad's own: names the row of the table in docs/engines.md for a request.
    variable("body_engine", body_engine, "How the response's file is sent: method and disk engine."),
    // Header section and body, as written to the socket.
    variable("bytes_sent", |request, out| number(request.sent, out), "Bytes of the response that were sent."),
    // Unique over all threads, so that a connection can be followed in logs.
    variable("connection", |request, out| number(request.conn.number, out), "The number of the connection."),
    variable(
        "connection_requests",
        |request, out| number(request.conn.requests.get(), out),
        "Number of requests of the connection, including this one.",
    ),
    // Measured from the time at which the connection was accepted.
    variable("connection_time", connection_time, "Age of the connection in seconds, with milliseconds."),
    // As sent by the client, not as measured. For a chunked body it is known after the body was read.
    variable(
        "content_length",
        content_length,
        "The request's `Content-Length`, or the length of a chunked body.",
    ),
    variable("content_type", |r, out| header(r, HeaderId::ContentType, out), "The request's `Content-Type`."),
    // The root of the current location; an alias counts as a root here, as in nginx.
    variable("document_root", document_root, "The root directory of the request."),
    variable("document_uri", |request, out| full(&request.uri, out), "The same as `$uri`."),
    // Empty only for a server without a name, so it is safe to build URLs from.
    variable("host", host, "The requested host, else the server's first name."),
    // Looked up once, when the configuration is read.
    variable(
        "hostname",
        |request, out| some(request.config().http.hostname.as_bytes(), out),
        "The machine's name.",
    ),
    variable(
        "https",
        |request, out| request.conn.secured.get().is_none() || some(b"on", out),
        "`on` for connections with TLS, else empty.",
    ),
    // Allows `$uri$is_args$args` without a stray question mark.
    variable("is_args", is_args, "A question mark when there is a query, else empty."),
    variable("is_request_port", is_request_port, "A colon when the client named a port, else empty."),
    // Assigned values that are no sizes are ignored.
    Variable {
        name: "limit_rate",
        get: limit_rate,
        set: Some(Assign::With(set_limit_rate)),
        help: "Maximum rate of the response in bytes per second; can be set.",
    },
    // The time of the current event, not of the evaluation.
    variable("msec", milliseconds_of, "Seconds since 1970, with milliseconds."),
    variable(
        "nginx_version",
        |_, out| some(NGINX_VERSION.as_bytes(), out),
        "The version of nginx that this server follows.",
    ),
    // The process ID identifies worker processes, but not threads.
    variable("pid", |_, out| number(std::process::id().into(), out), "The process ID of the worker process."),
    // Set if the header section had arrived before the previous response was sent.
    variable(
        "pipe",
        |request, out| some(if request.pipelined { b"p" } else { b"." }, out),
        "`p` for a pipelined request, else a dot.",
    ),
    // A value of the connection: all its requests have the same.
    variable(
        "proxy_protocol_addr",
        |request, out| proxy(request, |header, out| some(&header.src_addr, out), out),
        "The client's address from a PROXY protocol header; empty without one.",
    ),
    variable(
        "proxy_protocol_port",
        |request, out| proxy(request, |header, out| push_proxy_port(header.src_port, out), out),
        "The client's port from a PROXY protocol header; empty without one.",
    ),
    variable(
        "proxy_protocol_server_addr",
        |request, out| proxy(request, |header, out| some(&header.dst_addr, out), out),
        "The server's address from a PROXY protocol header; empty without one.",
    ),
    variable(
        "proxy_protocol_server_port",
        |request, out| proxy(request, |header, out| push_proxy_port(header.dst_port, out), out),
        "The server's port from a PROXY protocol header; empty without one.",
    ),
    // nginx has two names for some values, and configurations use both.
    variable("query_string", |request, out| full(&request.args, out), "The same as `$args`."),
    variable(
        "realpath_root",
        realpath_root,
        "The root directory with its symbolic links resolved, at most a second ago.",
    ),
    // The peer of the socket, or the address that `realip` determined.
    variable("remote_addr", |request, out| request.client().show_address(out), "The client's address."),
    variable("remote_port", |request, out| request.client().show_port(out), "The client's port."),
    // For logs only, because the password may be wrong.
    variable("remote_user", remote_user, "The name that was given with Basic authentication."),
    // For logs, which escape it.
    variable("request", request_line, "The request line as received."),
    // Only modules that need the body read it.
    variable("request_body", request_body, "The request's body, if a module has read it into memory."),
    variable("request_body_file", request_body_file, "The file with the request's body, if there is one."),
    // Distinguishes aborted downloads from complete ones.
    variable(
        "request_completion",
        |request, out| some(if request.completed { b"OK" } else { b"" }, out),
        "`OK` if the complete response was sent, else empty.",
    ),
    // Evaluated at each use, because the URI may have changed.
    variable("request_filename", request_filename, "The file that the URI stands for."),
    // Random, so that logs of several machines can be merged.
    variable("request_id", request_id, "A random identifier of the request: 32 hexadecimal digits."),
    // Includes the header section, as received.
    variable(
        "request_length",
        |request, out| number(request.received, out),
        "Bytes of the request, header section and body.",
    ),
    variable(
        "request_method",
        |request, out| has_line(request) && some(request.method_text(), out),
        "The method, such as `GET`.",
    ),
    variable("request_port", request_port, "The port that the client named; empty without one."),
    // From the first byte of the request to the evaluation; in logs, to the last byte sent.
    variable("request_time", request_time, "Seconds since the request's first byte, with milliseconds."),
    variable("request_uri", request_uri, "The URI with its query as received."),
    // For redirects that retain the scheme.
    variable("scheme", |request, out| some(request.conn.scheme().as_bytes(), out), "`http` or `https`."),
    // With a wildcard address, the local address of the connection.
    variable(
        "server_addr",
        |request, out| request.conn.local.show_address(out),
        "The address that the client reached.",
    ),
    // As configured; `$host` is the host of the request.
    variable(
        "server_name",
        |request, out| some(request.server().name.as_bytes(), out),
        "The first name of the selected server.",
    ),
    variable(
        "server_port",
        |request, out| request.conn.local.show_port(out),
        "The port that the client reached.",
    ),
    variable("server_protocol", server_protocol, "The protocol, such as `HTTP/1.1`."),
    // After error pages: the status that the client receives.
    variable("status", status, "The response's status."),
    // Formatted once a second per thread.
    variable(
        "time_iso8601",
        |request, out| some(request.conn.thread.dates().iso_8601(), out),
        "Local time as in ISO 8601.",
    ),
    variable(
        "time_local",
        |request, out| some(request.conn.thread.dates().common_log(), out),
        "Local time as in the common log format.",
    ),
    // The path that locations are compared with.
    variable(
        "uri",
        |request, out| full(&request.uri, out),
        "The decoded, normalised path; changed by internal redirects.",
    ),
    variable(
        "tcpinfo_rcv_space",
        |r, out| tcp(r, |info| info.rcv_space, out),
        "TCP's receive window, bytes.",
    ),
    variable("tcpinfo_rtt", |r, out| tcp(r, |info| info.rtt_us, out), "TCP's round-trip time, microseconds."),
    variable(
        "tcpinfo_rttvar",
        |r, out| tcp(r, |info| info.rttvar_us, out),
        "Variation of TCP's round-trip time, microseconds.",
    ),
    variable(
        "tcpinfo_snd_cwnd",
        |r, out| tcp(r, |info| info.snd_cwnd, out),
        "TCP's congestion window, segments.",
    ),
];

pub(super) const PREFIXED: &[Prefixed] = &[
    Prefixed { prefix: "arg_", get: argument, help: "An argument of the query." },
    Prefixed { prefix: "cookie_", get: cookie, help: "A cookie." },
    Prefixed {
        prefix: "http_",
        get: request_header,
        help: "A field of the request: lower case, dashes as underscores.",
    },
    Prefixed {
        prefix: "proxy_protocol_tlv_",
        get: proxy_tlv,
        help: "A value from a PROXY protocol header; empty without one.",
    },
    Prefixed { prefix: "sent_http_", get: response_header, help: "A field of the response." },
    Prefixed { prefix: "sent_trailer_", get: response_trailer, help: "A trailer field of the response." },
];

/// Appends a value. An empty value counts as missing, so logs show a dash, as in nginx.
fn full(value: &[u8], out: &mut Vec<u8>) -> bool {
    !value.is_empty() && some(value, out)
}

/// Whether the request line was valid; otherwise a request has no method, no URI and no protocol.
fn has_line(request: &Request) -> bool {
    request.head.is_started()
}

/// Appends a value that exists even if it is empty.
pub(crate) fn some(value: &[u8], out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(value);
    true
}

/// Appends a number in decimal.
pub(crate) fn number(value: u64, out: &mut Vec<u8>) -> bool {
    http::push_decimal(out, value);
    true
}

/// Appends a field of the connection's `TCP_INFO`; nothing for UNIX-domain sockets.
fn tcp(request: &Request, field: fn(&TcpInfo) -> u32, out: &mut Vec<u8>) -> bool {
    let client = request.conn.client.borrow();
    let info = client.as_ref().and_then(|client| client.tcp_info());
    info.is_some_and(|info| number(field(&info).into(), out))
}

/// Appends a duration such as `12.345`.
pub(crate) fn push_seconds(duration: std::time::Duration, out: &mut Vec<u8>) -> bool {
    // Writing to a `Vec` cannot fail.
    let _ = write!(out, "{}.{:03}", duration.as_secs(), duration.subsec_millis());
    true
}

/// Appends a value from the PROXY protocol; nothing if the connection does not use it.
fn proxy(request: &Request, show: fn(&Header, &mut Vec<u8>) -> bool, out: &mut Vec<u8>) -> bool {
    request.conn.proxy.get().is_some_and(|header| show(header, out))
}

/// Appends a port, or nothing for port 0, which means that the header has no port.
pub(crate) fn push_proxy_port(port: u16, out: &mut Vec<u8>) -> bool {
    port == 0 || number(port.into(), out)
}

/// Appends a value that follows the addresses in version 2 of the PROXY protocol.
fn proxy_tlv(request: &Request, name: &str, out: &mut Vec<u8>) -> bool {
    push_tlv(request, request.conn.proxy.get().map(|header| &**header), name, out)
}

/// Appends a value of a header of the PROXY protocol; nothing without a header.
pub(crate) fn push_tlv<R: HasVariables>(
    request: &R,
    header: Option<&Header>,
    name: &str,
    out: &mut Vec<u8>,
) -> bool {
    let Some(header) = header else { return false };
    match header.tlv(name.as_bytes()) {
        Ok(value) => value.is_some_and(|value| some(&value, out)),
        Err(TlvError::Name) => {
            request.log(Level::Error, format_args!("invalid PROXY protocol TLV \"{name}\""));
            false
        }
        Err(TlvError::Broken) => {
            request.log(Level::Error, format_args!("broken PROXY protocol TLV"));
            false
        }
    }
}

/// Appends all fields of this name as one list, for the variables with fixed names.
fn header(request: &Request, id: HeaderId, out: &mut Vec<u8>) -> bool {
    join(request.head.all(request.bytes(), id), b", ", out)
}

fn content_length(request: &Request, out: &mut Vec<u8>) -> bool {
    let is_read = request.head.body() == BodyLength::Unknown && !request.body_was_streamed;
    match request.body.as_ref().filter(|_| is_read) {
        Some(body) => number(body.byte_count(), out),
        None => header(request, HeaderId::ContentLength, out),
    }
}

/// Appends a short key for tables of clients.
fn binary_remote_addr(request: &Request, out: &mut Vec<u8>) -> bool {
    push_binary(request.client(), out)
}

/// Appends an address as 4 or 16 bytes.
pub(crate) fn push_binary(client: &Address, out: &mut Vec<u8>) -> bool {
    match client {
        Address::Inet(peer) => match peer.ip() {
            IpAddr::V4(ip) => some(&ip.octets(), out),
            IpAddr::V6(ip) => some(&ip.octets(), out),
        },
        Address::Unix(_) => some(b"unix:", out),
    }
}

/// Appends the method and the disk engine; only responses from a file have them.
fn body_engine(request: &Request, out: &mut Vec<u8>) -> bool {
    let Some(mover) = &request.mover else { return false };
    let _ = write!(out, "{mover}");
    true
}

fn connection_time(request: &Request, out: &mut Vec<u8>) -> bool {
    push_seconds(rt::now().saturating_duration_since(request.conn.opened), out)
}

fn document_root(request: &Request, out: &mut Vec<u8>) -> bool {
    // The variables of a root may refer to this variable again.
    nested(request, "document_root", || {
        files::root_of(request, out);
        true
    })
}

/// Appends the root without symbolic links, resolved at most a second ago, so that a switched link takes effect.
fn realpath_root(request: &Request, out: &mut Vec<u8>) -> bool {
    nested(request, "realpath_root", || {
        let mut root = Vec::new();
        files::root_of(request, &mut root);
        if root.is_empty() {
            root.push(b'/');
        }
        match request.thread_config.roots.push_real(&root, rt::now(), out) {
            Ok(found) => found,
            Err(errno) => {
                let (root, reason) = (files::display(&root), Reason(errno));
                request.log(Level::Crit, format_args!("realpath() \"{root}\" failed ({reason})"));
                false
            }
        }
    })
}

/// Appends the path, which changes with `$uri`.
fn request_filename(request: &Request, out: &mut Vec<u8>) -> bool {
    nested(request, "request_filename", || {
        files::path_of(request, &request.uri, out);
        true
    })
}

/// Appends the host in lower case and without port, as it is compared with server names.
fn host(request: &Request, out: &mut Vec<u8>) -> bool {
    some(request.host_or_name(), out)
}

fn is_args(request: &Request, out: &mut Vec<u8>) -> bool {
    some(if request.args.is_empty() { b"" } else { b"?" }, out)
}

fn is_request_port(request: &Request, out: &mut Vec<u8>) -> bool {
    some(if request.named_port().is_some() { b":" } else { b"" }, out)
}

fn request_port(request: &Request, out: &mut Vec<u8>) -> bool {
    request.named_port().is_none_or(|port| number(port.into(), out))
}

/// Appends the value of `set`, else the configured one; 0 means no limit.
fn limit_rate(request: &Request, out: &mut Vec<u8>) -> bool {
    let configured = || {
        let rate = request.scope().core.limit_rate.as_ref()?.rendered(request);
        conf::value::size(std::str::from_utf8(&rate).ok()?).ok()
    };
    nested(request, "limit_rate", || number(request.limit_rate.or_else(configured).unwrap_or(0), out))
}

/// Sets the rate; an invalid size leaves it unchanged.
fn set_limit_rate(request: &mut Request, value: &[u8]) {
    let rate = std::str::from_utf8(value).ok().and_then(|text| conf::value::size(text).ok());
    request.limit_rate = rate.or(request.limit_rate);
}

fn milliseconds_of(_: &Request, out: &mut Vec<u8>) -> bool {
    milliseconds(out)
}

/// Appends the seconds since 1970, with milliseconds.
pub(crate) fn milliseconds(out: &mut Vec<u8>) -> bool {
    let (seconds, milliseconds) = since_1970(rt::wall());
    let _ = write!(out, "{seconds}.{milliseconds:03}");
    true
}

/// Appends the values of `WWW-Authenticate` or `Proxy-Authenticate`.
fn challenges(response: &Response, out: &mut Vec<u8>) -> bool {
    join(response.challenges.values.iter().map(Vec::as_slice), b", ", out)
}

/// Appends the text before the first colon. The password is not checked.
fn remote_user(request: &Request, out: &mut Vec<u8>) -> bool {
    Credentials::of(request).is_some_and(|credentials| some(credentials.user(), out))
}

/// Appends the body if it is in memory; a body in a file is not read again for this.
fn request_body(request: &Request, out: &mut Vec<u8>) -> bool {
    request.body.as_ref().is_some_and(|body| body.push_to(out))
}

/// Appends the path; only `client_body_in_file_only` retains the file under its name.
fn request_body_file(request: &Request, out: &mut Vec<u8>) -> bool {
    let path = request.body.as_ref().and_then(|body| body.path());
    path.is_some_and(|path| some(path.as_os_str().as_encoded_bytes(), out))
}

/// Appends the request line without its line end.
fn request_line(request: &Request, out: &mut Vec<u8>) -> bool {
    full(&request.line(), out)
}

/// Appends the URI as the client sent it, even if redirects changed `$uri`.
fn request_uri(request: &Request, out: &mut Vec<u8>) -> bool {
    has_line(request) && some(request.head.request_uri(request.bytes()), out)
}

fn request_time(request: &Request, out: &mut Vec<u8>) -> bool {
    push_seconds(request.elapsed(), out)
}

/// Appends the identifier, which is generated at its first use in a request.
fn request_id(request: &Request, out: &mut Vec<u8>) -> bool {
    let id = request.shared.id.get().unwrap_or_else(|| {
        let mut id = [0; 16];
        // The kernel's generator is initialised long before a server runs, and returns small requests completely.
        let _ = rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::NONBLOCK);
        request.shared.id.set(Some(id));
        id
    });
    for byte in id {
        let _ = write!(out, "{byte:02x}");
    }
    true
}

fn server_protocol(request: &Request, out: &mut Vec<u8>) -> bool {
    if !has_line(request) {
        return false;
    }
    request.head.push_protocol(out);
    true
}

/// Appends three digits, as in nginx; 000 while the status is undecided.
fn status(request: &Request, out: &mut Vec<u8>) -> bool {
    // While an error page is produced, the status of the error.
    let status = request.error_status.filter(|&status| status != 0).unwrap_or(request.response.status);
    match StatusCode::new(status) {
        // nginx's own codes from 494 on are not sent: the client gets another status.
        Some(status) => some(&status.on_wire().digits(), out),
        None => number(status.into(), out),
    }
}

/// Appends the argument as sent, without decoding.
fn argument(request: &Request, name: &str, out: &mut Vec<u8>) -> bool {
    http::uri::arg(&request.args, name.as_bytes()).is_some_and(|value| some(value, out))
}

/// Appends a cookie (RFC 6265 section 4.2.1); names are case-insensitive, as in nginx.
fn cookie(request: &Request, name: &str, out: &mut Vec<u8>) -> bool {
    let mut lines = request.head.all(request.bytes(), HeaderId::Cookie);
    let found = lines.find_map(|line| cookie_in(line, name.as_bytes()));
    found.is_some_and(|value| some(value, out))
}

/// Appends a request header field; several fields of one name are joined to a list, as in nginx since 1.23.
fn request_header(request: &Request, name: &str, out: &mut Vec<u8>) -> bool {
    let separator: &[u8] = if name == "cookie" { b"; " } else { b", " };
    join(request.head.variable(request.bytes(), name.as_bytes()), separator, out)
}

fn join<'a>(values: impl Iterator<Item = &'a [u8]>, separator: &[u8], out: &mut Vec<u8>) -> bool {
    let mut found = false;
    for value in values {
        if found {
            out.extend_from_slice(separator);
        }
        out.extend_from_slice(value);
        found = true;
    }
    found
}

/// Appends a response header field. Fields that the connection writes are computed; others are searched by name. As in
/// nginx some are complete only after the header section was written: `Location` as a URL, the content type with its
/// charset.
fn response_header(request: &Request, name: &str, out: &mut Vec<u8>) -> bool {
    let (response, core) = (&request.response, &request.scope().core);
    let text = |value: Option<&[u8]>, out: &mut Vec<u8>| value.is_some_and(|value| some(value, out));
    let is_written = request.sent_head > 0;
    // Without content neither field is sent, except for the content type of an upstream.
    let has_content = response.status != 204;
    match name {
        "content_type" if !has_content && response.reason.is_none() => false,
        "content_length" if !has_content => false,
        "content_type" => {
            let Some(media_type) = response.content_type.of(request) else { return false };
            out.extend_from_slice(media_type.as_bytes());
            if let Some(charset) = response.charset.as_ref().filter(|_| is_written) {
                out.extend_from_slice(b"; charset=");
                out.extend_from_slice(charset);
            }
            true
        }
        "content_length" => response.content_length.is_some_and(|length| number(length, out)),
        "content_range" => text(response.content_range.as_deref(), out),
        // `Accept-Ranges` and `Location` are fields of the response struct.
        "accept_ranges" => response.allow_ranges && is_written && some(b"bytes", out),
        "location" if response.location.is_some() => {
            let location = response.location.as_deref().unwrap_or_default();
            match is_written {
                true => some(&effect::location(core, request, location), out),
                false => some(location, out),
            }
        }
        "www_authenticate" if !response.challenges.is_for_proxy => challenges(response, out),
        "proxy_authenticate" if response.challenges.is_for_proxy => challenges(response, out),
        "etag" => text(response.etag.as_ref().map(|etag| etag.as_bytes()), out),
        "last_modified" if response.last_modified.is_some() => {
            response.last_modified.is_some_and(|time| some(&http::date::http(time), out))
        }
        "connection" if response.status == 101 => some(b"upgrade", out),
        "connection" => some(if request.keepalive { b"keep-alive" } else { b"close" }, out),
        // Only `Server` and `Date` of an upstream: as in nginx, this server's own are no fields of the response.
        "server" if response.server.as_ref().is_some_and(|server| !server.is_empty()) => {
            text(response.server.as_deref(), out)
        }
        "date" if response.date.is_some() => response.date.is_some_and(|date| some(&date, out)),
        "keep_alive" => {
            let seconds = core.keepalive.keepalive_header.filter(|_| request.keepalive);
            seconds.is_some_and(|seconds| some(b"timeout=", out) && number(seconds, out))
        }
        // The value depends on the body and the client's HTTP version.
        "transfer_encoding" => response.chunked && some(b"chunked", out),
        _ => named(response.fields.iter(), name, out),
    }
}

/// Appends a trailer field, which is known after the body was sent.
fn response_trailer(request: &Request, name: &str, out: &mut Vec<u8>) -> bool {
    let trailers = request.response.sent_trailers.iter();
    named(trailers.map(|(name, value)| (&**name, &**value)), name, out)
}

/// Appends the fields of this name, in which underscores stand for dashes.
fn named<'f>(fields: impl Iterator<Item = (&'f [u8], &'f [u8])>, name: &str, out: &mut Vec<u8>) -> bool {
    let same = |field: &[u8]| {
        let mut pairs = field.iter().zip(name.as_bytes());
        field.len() == name.len()
            && pairs
                .all(|(byte, wanted)| byte.eq_ignore_ascii_case(wanted) || (*byte == b'-' && *wanted == b'_'))
    };
    let fields = fields.filter(|(field, _)| same(field));
    join(fields.map(|(_, value)| value), b", ", out)
}
