//! `stream_core`: the block `stream`, its servers and their addresses. `variables` has the variables.
//!
//! Settings that the connections read are in `site/settings/session.rs`; `frontend/stream.rs` runs the phases of a session.

mod variables;

use std::path::Path;

use conf::{Args, Contexts, Spec, Support};

use crate::core::read_error_log;
use crate::http_core::{add_names, read_stream_listen};
use crate::{Declaration, Directive, Module, Walk};
use exchange::module::SessionHooks;
use site::config::{Section, SettingsType};
use site::declaration::{BlockHooks, NO_HASH, STREAM_LEVELS};
use site::settings::session::SessionCore;

/// The module.
pub(crate) static MODULE: Module = Module {
    session: SessionHooks {
        variables: variables::VARIABLES,
        prefixed: variables::PREFIXED,
        ..SessionHooks::NONE
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<SessionCore>()],
        section: Section::Stream,
        blocks: BlockHooks {
            requires: |_, scope, requirements| {
                requirements.log_files.extend(scope.core.error_log.files().map(Path::to_owned));
            },
            ..BlockHooks::NONE
        },
        ..Declaration::named("stream_core")
    })
};

const fn spec(name: &'static str, contexts: Contexts, args: Args, help: &'static str) -> Spec {
    Spec::new("stream_core", name, contexts, args, help)
}

/// Returns a directive that is parsed and checked as usual, but has nothing to tune.
const fn tuning(name: &'static str, default: &'static str) -> Directive {
    let help = "Sizes one of nginx's hash tables.";
    let spec = spec(name, Contexts::STREAM, Args::Exactly(1), help).default(default);
    Directive::scope(spec.state(Support::Accepted(NO_HASH)), |_, cx| cx.number(&mut 0))
}

const DIRECTIVES: &[Directive] = &[
    // May precede or follow `http`; both share the log targets, zones and thread pools of the process.
    Directive::walk(
        Spec::new(
            "stream",
            "stream",
            Contexts::MAIN,
            Args::None,
            "Servers for connections of other protocols than HTTP, and their settings.",
        )
        .block(Contexts::STREAM),
        Walk::Stream,
    ),
    // The order of servers matters: the first one of an address is its default.
    Directive::walk(
        spec("server", Contexts::STREAM, Args::None, "A server: addresses, names, and what it does.")
            .block(Contexts::STREAM_SERVER)
            .many(),
        Walk::Server,
    ),
    // Unlike in `http` a port is necessary.
    Directive::server(
        spec(
            "listen",
            Contexts::STREAM_SERVER,
            Args::AtLeast(1),
            "An address that the server is reached at.",
        )
        .many(),
        read_stream_listen,
    ),
    // Names are selected by the server name of a TLS handshake, or of `ssl_preread`.
    Directive::server(
        spec(
            "server_name",
            Contexts::STREAM_SERVER,
            Args::AtLeast(1),
            "Names of the server in TLS handshakes: exact, with a wildcard, or patterns.",
        )
        .many()
        .default("\"\""),
        add_names,
    ),
    // The level `info` logs the start and the end of each session, as in nginx.
    Directive::scope(
        spec(
            "error_log",
            STREAM_LEVELS,
            Args::AtLeast(1),
            "The target of messages about sessions, and the lowest level that is written.",
        )
        .many(),
        |scope, cx| read_error_log(&mut scope.core.error_log, cx),
    ),
    // For both sides: a small message of one side must not wait for an acknowledgement of the other.
    Directive::scope(
        spec("tcp_nodelay", STREAM_LEVELS, Args::Flag, "Sends small segments immediately (TCP_NODELAY).")
            .default("on"),
        |scope, cx| cx.flag(&mut scope.make_mut::<SessionCore>().tcp_nodelay),
    ),
    // A client that sends nothing must not occupy a connection for long.
    Directive::scope(
        spec(
            "preread_timeout",
            STREAM_LEVELS,
            Args::Exactly(1),
            "How long the first bytes of a client may take that are examined before the session begins.",
        )
        .default("30s"),
        |scope, cx| cx.milliseconds(&mut scope.make_mut::<SessionCore>().preread_timeout),
    ),
    // Only a handler that examines bytes needs them; otherwise they are passed on as they arrive.
    Directive::scope(
        spec(
            "preread_buffer_size",
            STREAM_LEVELS,
            Args::Exactly(1),
            "Maximum number of bytes that are examined before the session begins.",
        )
        .default("16k"),
        |scope, cx| cx.size(&mut scope.make_mut::<SessionCore>().preread_buffer_size),
    ),
    // A header may arrive in several segments; nginx needs it in one.
    Directive::scope(
        spec(
            "proxy_protocol_timeout",
            STREAM_LEVELS,
            Args::Exactly(1),
            "How long the header of the PROXY protocol may take.",
        )
        .default("30s"),
        |scope, cx| cx.milliseconds(&mut scope.make_mut::<SessionCore>().proxy_protocol_timeout),
    ),
    tuning("server_names_hash_bucket_size", "64"),
    tuning("server_names_hash_max_size", "512"),
    tuning("variables_hash_bucket_size", "64"),
    tuning("variables_hash_max_size", "1024"),
];

#[cfg(test)]
mod tests {
    use crate::testing::{error, load};

    #[test]
    fn addresses_of_stream_need_a_port_and_a_server_needs_an_address() {
        for (text, expected) in [
            ("listen 127.0.0.1;", "no port in \"127.0.0.1\" of the \"listen\" directive"),
            ("listen [::1];", "no port in \"[::1]\" of the \"listen\" directive"),
            ("listen 1 http2;", "invalid parameter \"http2\""),
            ("listen 1 x;", "invalid parameter \"x\""),
            ("listen 1 reuseport=1;", "invalid parameter \"reuseport=1\""),
            ("listen 1; listen 1;", "a duplicate listen 0.0.0.0:1"),
            ("root /x;", "\"root\" directive is not allowed here"),
            ("location / { }", "\"location\" directive is not allowed here"),
        ] {
            let found = error(&format!("stream {{ server {{\n{text} }} }}"));
            assert!(found.starts_with(expected) && found.contains("nginx.conf:2"), "{text}: {found}");
        }
        let found = error("stream {\nserver { } }");
        assert_eq!(found, "no \"listen\" is defined for server in /conf/nginx.conf:2");
    }

    #[test]
    fn an_address_of_http_cannot_be_one_of_stream() {
        let found =
            error("http { server { listen 127.0.0.1:81; } }\nstream { server { listen 127.0.0.1:81; } }");
        let expected = "a duplicate listen 127.0.0.1:81: a server of http has this address";
        assert_eq!(found, format!("{expected} in /conf/nginx.conf:2"));
    }

    #[test]
    fn servers_share_an_address_by_their_names() {
        let loaded =
            load("stream { server { listen 1; server_name a; } server { listen 1 default_server; } }");
        let config = loaded.expect("it is right").config;
        assert_eq!((config.stream.listens.len(), config.stream.servers.len()), (1, 2));
        assert!(config.http.listens.is_empty());
        assert_eq!(config.listens().count(), 1);
    }
}
