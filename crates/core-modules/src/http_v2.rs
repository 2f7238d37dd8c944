//! HTTP/2 to clients. `http::h2` and `frontend` implement the protocol; this module has its directives.
//!
//! | directives | effect |
//! |---|---|
//! | `http2`, `http2_max_concurrent_streams`, `http2_body_preread_size`, `http2_recv_buffer_size` | apply to a connection before a server is chosen |
//! | `http2_chunk_size` | applies to a response, from its location |
//! | `http2_pool_size`, `http2_streams_index_size` | are parsed and ignored |
//! | obsolete directives | nginx's warning |
//!
//! With TLS the protocol is chosen by ALPN, which offers HTTP/2 if `http2` is on, or `listen` has the parameter `http2`.

use conf::{Args, Contexts, Error, Spec, Support};
use exchange::http2::Http2;
use exchange::module::Variable;
use http::fields::Version;
use site::config::{Cx, Scope, SettingsType};

use crate::{Declaration, Directive, Module};
use site::declaration::{LEVELS, SERVER_LEVELS};

/// The module.
pub(crate) static MODULE: Module = Module {
    variables: &[Variable {
        name: "http2",
        get: |request, out| {
            if request.head.version() == Version::Http2 {
                let is_secured = request.conn.secured.get().is_some();
                out.extend_from_slice(if is_secured { b"h2" } else { b"h2c" });
            }
            true
        },
        set: None,
        help: "`h2` over TLS, `h2c` in clear text, and empty for other protocols.",
    }],
    ..Module::of(Declaration {
        directives: &[DIRECTIVES, WITHOUT_EFFECT],
        settings: &[SettingsType::of::<Http2>()],
        ..Declaration::named("http_v2")
    })
};

/// Most directives take one argument.
const ONE: Args = Args::Exactly(1);

/// Returns a row of this module.
const fn spec(name: &'static str, contexts: Contexts, args: Args, help: &'static str) -> Spec {
    Spec::new("http_v2", name, contexts, args, help)
}

/// Settings of connections and responses.
const DIRECTIVES: &[Directive] = &[
    // A connection begins before the request's server is known: the server of the TLS handshake counts, or the
    // address's default server.
    Directive::scope(
        spec(
            "http2",
            SERVER_LEVELS,
            Args::Flag,
            "Whether clients may use HTTP/2: with TLS by ALPN, in clear text by prior knowledge.",
        )
        .default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Http2>().enabled),
    ),
    // The work of a cancelled request counts until it has ended, so that a client gains nothing by immediate resets: further requests wait.
    Directive::scope(
        spec(
            "http2_max_concurrent_streams",
            SERVER_LEVELS,
            ONE,
            "Maximum concurrent requests of a connection. Cancelled requests do not count, but as many requests are processed at most.",
        )
        .default("128"),
        |scope, cx| cx.number_in(&mut scope.make_mut::<Http2>().streams_max, 1, u32::MAX),
    ),
    // The window of each stream (RFC 9113 section 6.9.2); a body that is needed completely gets a larger window.
    Directive::scope(
        spec(
            "http2_body_preread_size",
            SERVER_LEVELS,
            ONE,
            "Bytes of a body that a client may send before the request is processed.",
        )
        .default("64k"),
        read_preread_size,
    ),
    // Small frames let other streams send sooner, large frames cost less.
    Directive::scope(
        spec("http2_chunk_size", LEVELS, ONE, "Maximum bytes of a body in one frame.").default("8k"),
        read_chunk_size,
    ),
    // nginx has one such buffer per worker; here it limits a connection's share of the thread's time.
    Directive::scope(
        spec(
            "http2_recv_buffer_size",
            Contexts::HTTP,
            ONE,
            "Bytes that are received from one client before others have their turn.",
        )
        .default("256k"),
        read_recv_buffer_size,
    ),
];

/// The maximum window (RFC 9113 section 6.9.1).
const WINDOW_MAX: u64 = (1 << 31) - 1;

/// The maximum payload that a peer can allow (RFC 9113 section 4.2).
const PAYLOAD_MAX: u64 = (1 << 24) - 1;

/// nginx's minimum buffer size in bytes.
const RECV_BUFFER_MIN: u64 = 16;

/// Sets `http2_body_preread_size`: the window of each stream.
fn read_preread_size(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let mut size = 0;
    cx.size(&mut size)?;
    if size > WINDOW_MAX {
        return Err(cx.error(format_args!("the maximum body preread buffer size is {WINDOW_MAX}")));
    }
    scope.make_mut::<Http2>().preread = size as u32;
    Ok(())
}

/// Sets `http2_chunk_size`. As in nginx, zero is an error, and a larger value is reduced to the maximum payload.
fn read_chunk_size(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let mut size = 0;
    cx.size(&mut size)?;
    if size == 0 {
        return Err(cx.error("the http2 chunk size cannot be zero"));
    }
    scope.make_mut::<Http2>().chunk_size = size.min(PAYLOAD_MAX);
    Ok(())
}

/// Sets `http2_recv_buffer_size`.
fn read_recv_buffer_size(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let mut size = 0;
    cx.size(&mut size)?;
    if size <= RECV_BUFFER_MIN {
        let name = &cx.statement.name.text;
        return Err(cx.error(format_args!("\"{name}\" directive value is too small")));
    }
    scope.make_mut::<Http2>().recv_buffer_size = size;
    Ok(())
}

/// Directives about nginx's pools and tables, and directives that were replaced by newer ones.
const WITHOUT_EFFECT: &[Directive] = &[
    passed_over("http2_pool_size", "Size of a memory pool of nginx."),
    passed_over("http2_streams_index_size", "Number of entries of a table of nginx."),
    obsolete("http2_idle_timeout", SERVER_LEVELS, ONE, "See `keepalive_timeout`."),
    obsolete("http2_max_concurrent_pushes", SERVER_LEVELS, ONE, "Nothing is pushed."),
    obsolete("http2_max_field_size", SERVER_LEVELS, ONE, "See `large_client_header_buffers`."),
    obsolete("http2_max_header_size", SERVER_LEVELS, ONE, "See `large_client_header_buffers`."),
    obsolete("http2_max_requests", SERVER_LEVELS, ONE, "See `keepalive_requests`."),
    obsolete("http2_push", LEVELS, ONE, "Nothing is pushed."),
    obsolete("http2_push_preload", LEVELS, Args::Flag, "Nothing is pushed."),
    obsolete("http2_recv_timeout", SERVER_LEVELS, ONE, "See `client_header_timeout`."),
];

/// Returns a directive that is parsed without effect.
const fn passed_over(name: &'static str, help: &'static str) -> Directive {
    Directive::nothing(spec(name, SERVER_LEVELS, ONE, help), "this server has no such memory")
}

/// Returns a directive that is parsed, with nginx's warning.
const fn obsolete(name: &'static str, contexts: Contexts, args: Args, help: &'static str) -> Directive {
    let row = spec(name, contexts, args, help).many().state(Support::Idle("it is obsolete"));
    Directive::http(row, |cx| {
        let name = cx.statement.name.text.clone();
        // The only flag among these directives.
        if name == "http2_push_preload" {
            cx.flag(&mut false)?;
        }
        match replacement(&name) {
            Some(other) => cx.warn(format_args!(
                "the \"{name}\" directive is obsolete, use the \"{other}\" directive instead"
            )),
            None => cx.warn(format_args!("the \"{name}\" directive is obsolete, ignored")),
        }
        Ok(())
    })
}

/// Returns the replacement of an obsolete directive.
fn replacement(name: &str) -> Option<&'static str> {
    match name {
        "http2_idle_timeout" => Some("keepalive_timeout"),
        "http2_max_field_size" | "http2_max_header_size" => Some("large_client_header_buffers"),
        "http2_max_requests" => Some("keepalive_requests"),
        "http2_recv_timeout" => Some("client_header_timeout"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::error;

    /// nginx accepts 0, and then refuses every request.
    #[test]
    fn a_limit_of_zero_streams_is_refused() {
        let found = error("http {\nhttp2_max_concurrent_streams 0; }");
        assert_eq!(found, "value must be between 1 and 4294967295 in /conf/nginx.conf:2");
    }
}
