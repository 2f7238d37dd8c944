//! HTTP/3 to clients. `http::h3` and `frontend` implement the protocol; this module has its directives, and those of QUIC.
//!
//! | directives | effect |
//! |---|---|
//! | `http3`, `http3_hq` | protocols that ALPN offers on addresses with `listen … quic` |
//! | `http3_max_concurrent_streams`, `http3_stream_buffer_size` | apply to a connection |
//! | `quic_retry`, `quic_gso`, `quic_congestion_control`, `quic_host_key` | apply to an address, from its default server |
//! | `http3_alt_svc` | `filters::headers` adds `Alt-Svc` to responses over TCP |
//! | `quic_active_connection_id_limit`, `quic_bpf` | are parsed and ignored |

use conf::{Args, Contexts, Error, Spec, value};
use exchange::http3::{CongestionControl, HQ, Http3};
use exchange::module::Variable;
use http::fields::Version;
use site::config::{Cx, Http, Scope, SettingsType};

use crate::{Declaration, Directive, Module};
use site::declaration::{LEVELS, OWN, SERVER_LEVELS};

/// The module.
pub(crate) static MODULE: Module = Module {
    variables: &[Variable {
        name: "http3",
        get: |request, out| {
            let secured = request.conn.secured.get().filter(|_| request.conn.is_quic);
            if let Some(secured) = secured {
                let is_hq = secured.alpn == HQ;
                debug_assert!(
                    is_hq || request.head.version() != Version::Http2,
                    "QUIC has its own protocols"
                );
                out.extend_from_slice(if is_hq { b"hq" } else { b"h3" });
            }
            true
        },
        set: None,
        help: "`h3` over QUIC, `hq` for HTTP/0.9 over QUIC, and empty for other protocols.",
    }],
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Http3>()],
        check,
        ..Declaration::named("http_v3")
    })
};

/// Most directives take one argument.
const ONE: Args = Args::Exactly(1);

/// Returns a row of this module.
const fn spec(name: &'static str, args: Args, help: &'static str) -> Spec {
    Spec::new("http_v3", name, SERVER_LEVELS, args, help)
}

const DIRECTIVES: &[Directive] = &[
    Directive::scope(
        spec("http3", Args::Flag, "Whether addresses with `quic` offer HTTP/3.").default("on"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Http3>().enabled),
    ),
    // Off: HTTP/0.9 has neither a status nor header fields, so clients cannot distinguish errors from content.
    Directive::scope(
        spec(
            "http3_hq",
            Args::Flag,
            "Whether addresses with `quic` offer HTTP/0.9, for interoperability tests.",
        )
        .default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Http3>().hq),
    ),
    // nginx's default. A browser sends about a hundred requests for a page at the same time.
    Directive::scope(
        spec("http3_max_concurrent_streams", ONE, "Maximum concurrent requests of a connection.")
            .default("128"),
        |scope, cx| cx.number_in(&mut scope.make_mut::<Http3>().streams_max, 1, STREAMS_MAX),
    ),
    Directive::scope(
        spec(
            "http3_stream_buffer_size",
            ONE,
            "Bytes of a body that a client may send before the request's handler reads it.",
        )
        .default("64k"),
        read_stream_buffer_size,
    ),
    // Off, because a Retry packet costs each new client a round trip. When many handshakes are unfinished, the server sends Retry
    // packets by itself.
    Directive::scope(
        spec("quic_retry", Args::Flag, "Whether clients have to prove their address before the handshake.")
            .default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Http3>().retry),
    ),
    // Off, as in nginx: not every network device can split packets.
    Directive::scope(
        spec(
            "quic_gso",
            Args::Flag,
            "Whether the kernel splits packets that are sent together (UDP_SEGMENT).",
        )
        .default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Http3>().gso),
    ),
    // CUBIC shares a link fairly with connections of TCP. BBR sends faster over links that lose packets without congestion, at the
    // expense of other connections.
    Directive::scope(
        Spec::new(
            OWN,
            "quic_congestion_control",
            SERVER_LEVELS,
            ONE,
            "Algorithm that limits the packets in flight: `cubic` or `bbr`.",
        )
        .default("cubic"),
        |scope, cx| {
            const NAMES: &[(&str, CongestionControl)] =
                &[("cubic", CongestionControl::Cubic), ("bbr", CongestionControl::Bbr)];
            cx.choice(&mut scope.make_mut::<Http3>().congestion, NAMES)
        },
    ),
    // Off, because a firewall has to permit UDP first: clients that have learned of HTTP/3 try it, and lose time if it does not reach
    // the server.
    Directive::scope(
        Spec::new(
            OWN,
            "http3_alt_svc",
            LEVELS,
            ONE,
            "Adds `Alt-Svc` to responses over TLS and TCP if the server has an address with `quic`: `on` permits HTTP/3 for a day, a time for that time.",
        )
        .default("off"),
        read_alt_svc,
    ),
    Directive::scope(
        spec(
            "quic_host_key",
            ONE,
            "A file with the secret for address validation tokens and stateless resets; random by default.",
        ),
        read_host_key,
    ),
    Directive::nothing(
        spec(
            "quic_active_connection_id_limit",
            ONE,
            "Maximum number of connection IDs of the client that the server stores.",
        ),
        "this server stores five of each client",
    ),
    Directive::nothing(
        Spec::new(
            "event_quic_bpf",
            "quic_bpf",
            Contexts::MAIN,
            Args::Flag,
            "Whether a program in the kernel passes packets to the thread of their connection.",
        ),
        "packets are always steered, without privileges",
    ),
];

/// The maximum of a number of streams (RFC 9000 section 4.6), reduced to 32 bits.
const STREAMS_MAX: u32 = u32::MAX;

/// Minimum of a stream's buffer in bytes: control streams need room for their frames (RFC 9114 section 6.2).
const STREAM_BUFFER_MIN: u64 = 1 << 10;

fn read_stream_buffer_size(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let mut size = 0;
    cx.size(&mut size)?;
    if size < STREAM_BUFFER_MIN {
        let name = &cx.statement.name.text;
        return Err(cx.error(format_args!("\"{name}\" must be at least {STREAM_BUFFER_MIN} bytes")));
    }
    scope.make_mut::<Http3>().stream_buffer = size;
    Ok(())
}

/// Time in seconds of `http3_alt_svc on`: the default of RFC 7838 section 3.1.
const ALT_SVC_SECONDS: u64 = 24 * 60 * 60;

fn read_alt_svc(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    scope.make_mut::<Http3>().alt_svc = match cx.arg(0) {
        "off" => None,
        "on" => Some(ALT_SVC_SECONDS),
        text => Some(value::seconds(text).map_err(|_| cx.invalid(text))?),
    };
    Ok(())
}

/// Reads the file of `quic_host_key`.
fn read_host_key(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let file = exchange::tls_arguments::read_file(cx, "QUIC host key")?;
    if file.bytes.is_empty() {
        return Err(cx.error(format_args!("\"{}\" zero key size", file.path.display())));
    }
    scope.make_mut::<Http3>().host_key = Some(file.bytes);
    Ok(())
}

/// Checks that the default server of each address of QUIC offers a protocol.
fn check(http: &Http, warnings: &mut Vec<Error>) -> Result<(), Error> {
    for listen in http.listens.iter().filter(|listen| listen.spec.addr.is_quic()) {
        for server in listen.tls_defaults() {
            let server = &http.servers[server.0 as usize];
            let http3 = http.locations[server.root.0 as usize].scope.of::<Http3>();
            if http3.alpn().is_empty() {
                let message = format_args!(
                    "{} has no protocol, because \"http3\" and \"http3_hq\" are off",
                    listen.spec.addr
                );
                warnings
                    .push(Error::at_known(server.position.as_ref(), message).with_level(conf::Level::Warn));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::error;

    #[test]
    fn options_of_tcp_are_refused_with_quic() {
        for option in
            ["ssl", "http2", "backlog=9", "so_keepalive=on", "deferred", "proxy_protocol", "fastopen=3"]
        {
            let name = option.split('=').next().unwrap_or_default();
            let found = error(&format!("http {{ server {{\nlisten 1 quic {option}; }} }}"));
            let message = format!("\"{name}\" parameter is incompatible with \"quic\"");
            assert!(found.starts_with(&message), "{found}");
        }
    }

    #[test]
    fn quic_needs_tls_1_3() {
        let found = error("http { server { listen 1 quic; location / { } } }");
        assert!(
            found.starts_with("no \"ssl_certificate\" is defined for the \"listen ... quic\" directive"),
            "{found}"
        );
    }
}
