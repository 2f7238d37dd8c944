//! `http_ssl`: TLS to clients. [`conf`] has the settings and prepares handshakes, [`stapling`] has the settings of OCSP,
//! [`borrowed`] prepares blocks without certificate, [`variables`] shows the results of handshakes.
//!
//! Directives for features that the TLS library lacks are accepted with a warning, because the traffic is encrypted
//! without them.

mod borrowed;
mod conf;
mod expiry;
mod stapling;
mod variables;

use std::collections::HashSet;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::SystemTime;

use ::conf::{Args, Error, Level, Spec, Support, value};
use ::tls::sessions::{self, SessionCache};
use exchange::module::SessionHooks;
use exchange::ocsp::client::Depth;
use exchange::request::Request;
use exchange::secured::VerifyClient;
use exchange::session::Session;
use exchange::tls::Tls;
use exchange::tls_arguments::{
    PemSource, named_file, read_certificate_cache, read_command, read_file, read_optional_file,
    read_passwords, read_versions, value_or_cancel,
};
use site::config::{Cx, Http, Scope, Section, Server, SettingsType};
use site::declaration::{BlockHooks, SERVER_LEVELS, STREAM_LEVELS};
use site::settings::session::SessionCore;
use site::shared_zone::ZoneKind;

pub use self::expiry::{certificate_warnings, expiries};

use self::conf::Conf;
use crate::{Declaration, Directive, Module};

/// The module.
pub(crate) static MODULE: Module = Module {
    variables: variables::Rows::<Request>::VARIABLES,
    ..Module::of(Declaration {
        directives: &[CERTIFICATES, HANDSHAKES, CLIENTS, AUTHORITIES, SESSIONS, WITHOUT_EFFECT],
        settings: &[SettingsType::of::<Conf>(), SettingsType::of::<Tls>()],
        blocks: BlockHooks { end: conf::end, requires: stapling::add_ports, ..BlockHooks::NONE },
        addresses: borrowed::prepare,
        check,
        ..Declaration::named("http_ssl")
    })
};

/// The same directives in `stream`, with those of its handshakes.
pub(crate) static STREAM: Module = Module {
    session: SessionHooks { variables: variables::Rows::<Session>::VARIABLES, ..SessionHooks::NONE },
    ..Module::of(Declaration {
        directives: &[
            CERTIFICATES,
            HANDSHAKES,
            CLIENTS,
            AUTHORITIES,
            SESSIONS,
            WITHOUT_EFFECT,
            STREAM_DIRECTIVES,
        ],
        twin: Some(&["ssl_buffer_size", "ssl_early_data"]),
        section: Section::Stream,
        blocks: BlockHooks { end: conf::end, requires: stapling::add_ports, ..BlockHooks::NONE },
        addresses: borrowed::prepare,
        check,
        ..Declaration::named("stream_ssl")
    })
};

/// The directives that only `stream` has.
const STREAM_DIRECTIVES: &[Directive] = &[
    Directive::scope(
        Spec::new(
            "stream_ssl",
            "ssl_handshake_timeout",
            STREAM_LEVELS,
            ONE,
            "How long the TLS handshake of a client may take.",
        )
        .default("60s"),
        |scope, cx| cx.milliseconds(&mut scope.make_mut::<SessionCore>().handshake_timeout),
    ),
    Directive::scope(
        Spec::new(
            "stream_ssl",
            "ssl_alpn",
            STREAM_LEVELS,
            Args::AtLeast(1),
            "Protocols for ALPN, the best first; a client that offers only others is refused.",
        ),
        |scope, cx| {
            let mut protocols = Vec::new();
            for text in cx.statement.texts() {
                if text.is_empty() || text.len() > ALPN_LEN_MAX {
                    return Err(cx.error(format_args!("invalid protocol name \"{text}\"")));
                }
                protocols.push(text.as_bytes().to_vec());
            }
            scope.make_mut::<Conf>().alpn = Some(protocols);
            Ok(())
        },
    ),
];

/// Maximum length of the name of a protocol (RFC 7301 section 3.1).
const ALPN_LEN_MAX: usize = 255;

/// One argument.
const ONE: Args = Args::Exactly(1);

/// Returns a row for `http` and `server`.
const fn spec(name: &'static str, args: Args, help: &'static str) -> Spec {
    Spec::new("http_ssl", name, SERVER_LEVELS, args, help)
}

/// Certificates and keys that the server presents, and their sources.
const CERTIFICATES: &[Directive] = &[
    Directive::scope(
        spec(
            "ssl_certificate",
            ONE,
            "The file with the server's certificate and the intermediate certificates, in PEM.",
        )
        .many(),
        |scope, cx| {
            let certificate = match cx.arg(0) {
                "$acme_certificate" => PemSource::Acme,
                _ => read_origin(scope, cx, "certificate")?,
            };
            scope.make_mut::<Conf>().certificates.make_mut(cx.block).push(certificate);
            Ok(())
        },
    ),
    Directive::scope(
        spec("ssl_certificate_key", ONE, "The file with the key of the certificate, in PEM.").many(),
        |scope, cx| {
            let key = match cx.arg(0) {
                "$acme_certificate_key" => PemSource::Acme,
                _ => read_origin(scope, cx, "certificate key")?,
            };
            scope.make_mut::<Conf>().keys.make_mut(cx.block).push(key);
            Ok(())
        },
    ),
    Directive::scope(
        spec(
            "ssl_certificate_cache",
            Args::Between(1, 3),
            "How many certificates with variables in their names are cached, and how long: max=N, inactive=TIME, valid=TIME, off.",
        )
        .default("off"),
        set_certificate_cache,
    ),
    Directive::scope(
        spec("ssl_password_file", ONE, "The file with passwords of keys, one in each line."),
        |scope, cx| {
            scope.make_mut::<Conf>().passwords = Arc::new(read_passwords(cx)?);
            Ok(())
        },
    ),
    Directive::scope(
        spec("ssl_stapling", Args::Flag, "Sends an OCSP response with the certificate (stapling).")
            .default("off"),
        |scope, cx| {
            let conf = scope.make_mut::<Conf>();
            cx.flag(&mut conf.stapling)?;
            conf.stapling_span = conf.stapling.then(|| cx.statement.name.span.clone());
            Ok(())
        },
    ),
    Directive::scope(
        spec(
            "ssl_stapling_responder",
            ONE,
            "The URL of the OCSP responder for stapling, instead of the URL in the certificate.",
        ),
        |scope, cx| {
            scope.make_mut::<Conf>().stapling_responder = value_or_cancel(cx).map(str::to_owned);
            Ok(())
        },
    ),
    Directive::scope(
        spec("ssl_stapling_verify", Args::Flag, "Verifies that the issuer's key, or one that it certified, signed the OCSP response.")
            .default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().verifies_stapling),
    ),
    Directive::scope(
        spec("ssl_stapling_file", ONE, "The file with the OCSP response, in DER; no responder is queried."),
        |scope, cx| {
            let file = value_or_cancel(cx).map(|_| read_file(cx, "OCSP response")).transpose()?;
            scope.make_mut::<Conf>().stapling_file = file;
            Ok(())
        },
    ),
];

/// Settings of handshakes.
const HANDSHAKES: &[Directive] = &[
    Directive::scope(
        spec("ssl_protocols", Args::AtLeast(1), "Enabled versions of the TLS protocol.")
            .many()
            .default("TLSv1.2 TLSv1.3"),
        |scope, cx| {
            let conf = scope.make_mut::<Conf>();
            read_versions(&mut conf.versions, &mut conf.versions_block, cx)
        },
    ),
    Directive::scope(
        spec("ssl_ciphers", ONE, "Cipher suites of TLS 1.2, in the language of OpenSSL.")
            .default("HIGH:!aNULL:!MD5"),
        |scope, cx| {
            let text = cx.arg(0);
            if ::tls::ciphers::parse(text).is_empty() {
                cx.warn(format_args!("no cipher of \"{text}\" is supported, so TLS 1.2 is not offered"));
            }
            scope.make_mut::<Conf>().ciphers = text.to_owned();
            Ok(())
        },
    ),
    Directive::scope(
        spec("ssl_prefer_server_ciphers", Args::Flag, "Whether the server's order of cipher suites is used.")
            .default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().prefers_own_ciphers),
    ),
    Directive::scope(
        spec("ssl_ecdh_curve", ONE, "Groups of the key exchange, the best first.").default("auto"),
        |scope, cx| {
            let text = cx.arg(0);
            let groups = ::tls::groups::parse(text);
            let groups = groups.map_err(|name| cx.error(format_args!("unknown curve name \"{name}\"")))?;
            if !groups.unsupported.is_empty() {
                let names = groups.unsupported.join(", ");
                cx.warn(format_args!("groups that are not supported are left out: {names}"));
            }
            scope.make_mut::<Conf>().groups = text.to_owned();
            Ok(())
        },
    ),
    Directive::scope(
        spec("ssl_conf_command", Args::Exactly(2), "A command of OpenSSL's configuration.").many(),
        |scope, cx| {
            let command = read_command(cx)?;
            scope.make_mut::<Conf>().commands.make_mut(cx.block).push(command);
            Ok(())
        },
    ),
    // A client can decrypt a record only after receiving it completely.
    Directive::scope(
        spec("ssl_buffer_size", ONE, "Maximum bytes of a TLS record.").default("16k"),
        |scope, cx| cx.size(&mut scope.make_mut::<Conf>().buffer_size),
    ),
    Directive::scope(
        spec(
            "ssl_early_data",
            Args::Flag,
            "Whether requests in early data (0-RTT) of a resumed session are accepted.",
        )
        .default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().early_data),
    ),
    Directive::scope(
        spec(
            "ssl_certificate_compression",
            Args::Flag,
            "Whether certificates are sent compressed to clients of TLS 1.3 that offer it.",
        )
        .default("on"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().compresses_certificates),
    ),
    Directive::scope(
        spec("ssl_reject_handshake", Args::Flag, "Whether handshakes with this server are rejected.")
            .default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().rejects),
    ),
];

/// Client certificates, and the CAs that may sign them.
const CLIENTS: &[Directive] = &[
    Directive::scope(
        spec(
            "ssl_verify_client",
            ONE,
            "Whether client certificates are requested: off, on, optional, optional_no_ca.",
        )
        .default("off"),
        |scope, cx| {
            const NAMES: &[(&str, VerifyClient)] = &[
                ("off", VerifyClient::Off),
                ("on", VerifyClient::On),
                ("optional", VerifyClient::Optional),
                ("optional_no_ca", VerifyClient::OptionalNoCa),
            ];
            cx.choice(&mut scope.make_mut::<Conf>().verify, NAMES)
        },
    ),
    Directive::scope(
        spec("ssl_verify_depth", ONE, "Maximum intermediate certificates of a client's chain.").default("1"),
        |scope, cx| cx.number(&mut scope.make_mut::<Conf>().verify_depth),
    ),
    Directive::scope(
        spec(
            "ssl_client_certificate",
            ONE,
            "The file with CA certificates to verify clients; the CA names are sent to clients.",
        ),
        |scope, cx| {
            scope.make_mut::<Conf>().client_certificate = read_optional_file(cx, "certificate")?;
            Ok(())
        },
    ),
    Directive::scope(
        spec(
            "ssl_trusted_certificate",
            ONE,
            "The file with CA certificates to verify clients; the CA names are not sent to clients.",
        ),
        |scope, cx| {
            scope.make_mut::<Conf>().trusted_certificate = read_optional_file(cx, "certificate")?;
            Ok(())
        },
    ),
    Directive::scope(
        spec("ssl_crl", ONE, "The file with certificate revocation lists (CRLs), in PEM."),
        |scope, cx| {
            scope.make_mut::<Conf>().crl = read_optional_file(cx, "certificate revocation list")?;
            Ok(())
        },
    ),
];

/// Directives for OCSP checks of client certificates.
const AUTHORITIES: &[Directive] = &[
    Directive::scope(
        spec(
            "ssl_ocsp",
            ONE,
            "Checks client certificates by OCSP: off, on for all certificates of the chain, leaf for the client's own.",
        )
        .default("off"),
        |scope, cx| {
            const NAMES: &[(&str, Option<Depth>)] =
                &[("off", None), ("on", Some(Depth::Chain)), ("leaf", Some(Depth::Leaf))];
            cx.choice(&mut scope.make_mut::<Conf>().ocsp, NAMES)
        },
    ),
    Directive::scope(
        spec(
            "ssl_ocsp_cache",
            ONE,
            "The cache of OCSP responses for client certificates: off, or shared:NAME:SIZE.",
        )
        .default("off"),
        stapling::set_cache,
    ),
    Directive::scope(
        spec(
            "ssl_ocsp_responder",
            ONE,
            "The URL of the OCSP responder for client certificates, instead of the URLs in the certificates.",
        ),
        stapling::set_responder,
    ),
];

/// Directives for the resumption of sessions.
const SESSIONS: &[Directive] = &[
    Directive::scope(
        spec(
            "ssl_session_cache",
            Args::Between(1, 2),
            "The session cache: off, none, builtin, shared:NAME:SIZE. The last directive of a block counts.",
        )
        .many()
        .default("none"),
        set_session_cache,
    ),
    Directive::scope(
        spec("ssl_session_tickets", Args::Flag, "Resumes sessions by session tickets.").default("on"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().tickets),
    ),
    Directive::scope(
        spec(
            "ssl_session_ticket_key",
            ONE,
            "A file with a session ticket key, 48 or 80 bytes; the first one encrypts.",
        )
        .many(),
        |scope, cx| {
            let file = read_file(cx, "session ticket key")?;
            scope.make_mut::<Conf>().ticket_keys.make_mut(cx.block).push(file);
            Ok(())
        },
    ),
    Directive::scope(
        spec("ssl_session_timeout", ONE, "How long a session may be resumed.").default("5m"),
        |scope, cx| cx.seconds(&mut scope.make_mut::<Conf>().session_timeout),
    ),
];

/// Settings that the TLS library does not support. They cause a warning, because a configuration may rely on them.
const WITHOUT_EFFECT: &[Directive] = &[
    without_effect(
        "ssl_dhparam",
        ONE,
        false,
        "The file with parameters of DHE cipher suites.",
        "rustls has no DHE suites, only those with elliptic curves",
    ),
    without_effect(
        "ssl_ech_file",
        ONE,
        true,
        "The file with a key of Encrypted Client Hello.",
        "rustls supports Encrypted Client Hello only in clients",
    ),
];

/// Returns the row of a directive that is accepted with a warning.
const fn without_effect(
    name: &'static str,
    args: Args,
    many: bool,
    help: &'static str,
    reason: &'static str,
) -> Directive {
    let row = spec(name, args, help).state(Support::Accepted(reason));
    Directive::http(if many { row.many() } else { row }, |cx| {
        let name = &cx.statement.name.text;
        let row = WITHOUT_EFFECT.iter().find(|row| row.spec.name == name);
        let reason = match row.map(|row| row.spec.state) {
            Some(Support::Accepted(reason)) => reason,
            _ => "it is not supported",
        };
        cx.warn(format_args!("\"{name}\" directive has no effect: {reason}"));
        Ok(())
    })
}

/// Reads the file of a certificate or a key; names with variables are evaluated during handshakes.
fn read_origin(scope: &mut Scope, cx: &mut Cx<'_>, what: &str) -> Result<PemSource, Error> {
    let text = cx.arg(0);
    // Of the keys nginx opens only as many as there are certificates.
    if text.is_empty() && what == "certificate key" {
        return Ok(PemSource::Empty);
    }
    if !text.contains('$') {
        return Ok(PemSource::File(read_file(cx, what)?));
    }
    scope.make_mut::<Conf>().prefix = cx.conf_prefix.to_owned();
    Ok(PemSource::Named(named_file(cx, text)?, text.to_owned()))
}

/// See [`read_certificate_cache`].
fn set_certificate_cache(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    scope.make_mut::<Conf>().certificate_cache = read_certificate_cache(cx)?;
    Ok(())
}

/// Minimum size in bytes, as in nginx: eight pages.
const CACHE_BYTES_MIN: u64 = 8 * 4096;

/// Assumed bytes per session of nginx's builtin cache, whose size is given in sessions.
const SESSION_BYTES: usize = 512;

/// nginx's default number of sessions.
const BUILTIN_SESSIONS: usize = 20 * 1024;

/// Name and size of a cache with content `C`, so that another size or use of the name is an error. The cache itself is not part of the
/// zone, because several configurations use it.
struct CacheZone<C>(PhantomData<fn() -> C>);

impl<C> std::fmt::Debug for CacheZone<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CacheZone")
    }
}

impl<C: 'static> ZoneKind for CacheZone<C> {
    type Content = ();

    fn empty(&self, _: u64) {}

    fn continues(&self, _: &Self) -> bool {
        true
    }
}

/// Declares the zone of a cache with content `C`.
fn declare_cache<C: 'static>(name: &str, bytes: u64, cx: &mut Cx<'_>) -> Result<(), Error> {
    cx.http.zones.share(name, Some(bytes), CacheZone::<C>(PhantomData), cx.statement).map(drop)
}

/// Parses `off`, `none`, or caches: `builtin[:SESSIONS]` of one worker, `shared:NAME:SIZE` of all workers.
fn set_session_cache(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let mut cache = None;
    for text in cx.statement.texts() {
        let invalid = || cx.error(format_args!("invalid session cache \"{text}\""));
        match text.split_once(':') {
            None if matches!(text, "off" | "none") => {}
            None if text == "builtin" => {
                cache = cache.or(Some(sessions::named("builtin", BUILTIN_SESSIONS * SESSION_BYTES)));
            }
            Some(("builtin", count)) => {
                let count = value::number(count).ok().and_then(|count| usize::try_from(count).ok());
                let bytes = count.ok_or_else(invalid)?.saturating_mul(SESSION_BYTES);
                cache = cache.or(Some(sessions::named("builtin", bytes)));
            }
            Some(("shared", rest)) => {
                let (name, size) =
                    rest.split_once(':').filter(|(name, _)| !name.is_empty()).ok_or_else(invalid)?;
                let bytes = value::size(size).map_err(|_| invalid())?;
                if bytes < CACHE_BYTES_MIN {
                    return Err(cx.error(format_args!("session cache \"{text}\" is too small")));
                }
                let bytes_max = usize::try_from(bytes).map_err(|_| invalid())?;
                declare_cache::<SessionCache>(name, bytes, cx)?;
                cache = Some(sessions::named(name, bytes_max));
            }
            _ => return Err(invalid()),
        }
    }
    scope.make_mut::<Conf>().cache = cache;
    Ok(())
}

/// Checks that addresses with TLS have a certificate, and warns if it expires soon.
fn check(http: &Http, warnings: &mut Vec<Error>) -> Result<(), Error> {
    for listen in &http.listens {
        for server in listen.tls_defaults() {
            let server = &http.servers[server.0 as usize];
            let tls = http.locations[server.root.0 as usize].scope.of::<Tls>();
            let is_quic = listen.spec.addr.is_quic();
            if tls.server.is_none() && !tls.rejects {
                return Err(no_certificate(server, &listen.spec.text, is_quic));
            }
            if is_quic && tls.server.as_ref().is_some_and(|server| !server.has_tls13()) {
                let message = "\"ssl_protocols\" must enable TLSv1.3 for the \"listen ... quic\" directive";
                return Err(Error::at_known(server.position.as_ref(), message));
            }
        }
    }
    warnings.extend(stapling::warnings(http));
    warnings.extend(unused_certificates(http));
    let (found, _) = certificate_warnings(http, SystemTime::now());
    warnings
        .extend(found.into_iter().map(|message| Error::without_location(message).with_level(Level::Warn)));
    Ok(())
}

/// Returns a warning for each certificate that is not used because a later one has the same key type.
fn unused_certificates(http: &Http) -> Vec<Error> {
    let mut known = HashSet::new();
    let servers = http.servers.iter();
    let unused = servers.flat_map(|server| {
        let conf = http.locations[server.root.0 as usize].scope.of::<Conf>();
        conf.notes.unused.iter().map(move |message| (server, message))
    });
    let new = unused.filter(|(_, message)| known.insert(*message));
    new.map(|(server, message)| Error::at_known(server.position.as_ref(), message).with_level(Level::Warn))
        .collect()
}

/// Returns the error for an address whose default server has no certificate.
fn no_certificate(server: &Server, address: &str, is_quic: bool) -> Error {
    let option = if is_quic { "quic" } else { "ssl" };
    let message = format_args!("no \"ssl_certificate\" is defined for the \"listen ... {option}\" directive");
    let error = Error::at_known(server.position.as_ref(), message);
    let shown = match server.name.as_str() {
        "" => format!("the default server of {address}"),
        name => format!("server \"{name}\" on {address}"),
    };
    error.advise(format_args!(
        "{shown} needs \"ssl_certificate\" and \"ssl_certificate_key\", or \"acme_certificate\""
    ))
}

#[cfg(test)]
mod tests {
    use super::Conf;
    use crate::testing::{error, loaded, warnings};

    /// Included files with settings, such as files of ACME clients, may set the directive in addition to the server.
    #[test]
    fn the_last_ssl_session_cache_of_a_block_is_used() {
        let has_cache = |text: &str| {
            let config = loaded(&format!("server {{ {text} location / {{ }} }}"));
            let location = config.http.locations.last().expect("there is a server");
            location.scope.of::<Conf>().cache.is_some()
        };
        assert!(has_cache("ssl_session_cache none; ssl_session_cache shared:a:1m;"));
        assert!(!has_cache("ssl_session_cache shared:a:1m; ssl_session_cache none;"));
    }

    #[test]
    fn caches_of_one_name_have_one_size_and_use() {
        let two = |first: &str, second: &str| {
            format!(
                "http {{ server {{ {first} location / {{ }} }}\nserver {{ {second} location / {{ }} }} }}"
            )
        };
        let sessions = |size: &str| format!("ssl_session_cache shared:a:{size};");
        let ocsp = |size: &str| format!("ssl_ocsp_cache shared:a:{size};");
        let conflict =
            "the size 2097152 of shared memory zone \"a\" conflicts with already declared size 1048576";
        let other_use = "the shared memory zone \"a\" is already declared for a different use";
        for (first, second, expected) in [
            (sessions("1m"), sessions("2m"), conflict),
            (ocsp("1m"), ocsp("2m"), conflict),
            (sessions("1m"), ocsp("1m"), other_use),
        ] {
            let found = error(&two(&first, &second));
            assert!(found.starts_with(expected) && found.contains("/conf/nginx.conf:2"), "{found}");
        }
        loaded(&format!("server {{ {} }} server {{ {} }}", sessions("1m"), sessions("1024k")));
    }

    #[test]
    fn a_cipher_string_without_a_supported_suite_is_a_warning() {
        let found = warnings("http { server {\nssl_ciphers HIGHH:!aNULL; } }");
        let expected =
            "no cipher of \"HIGHH:!aNULL\" is supported, so TLS 1.2 is not offered in /conf/nginx.conf:2";
        assert_eq!(found, [expected]);
        assert!(warnings("http { server {\nssl_ciphers HIGH:!aNULL; } }").is_empty());
    }

    #[test]
    fn an_address_without_a_certificate_is_reported_with_the_line_of_its_server() {
        let found = error("http {\nserver { listen 127.0.0.1:8443 ssl; server_name a.example; } }");
        let expected = "no \"ssl_certificate\" is defined for the \"listen ... ssl\" directive in /conf/nginx.conf:2; \
                        server \"a.example\" on 127.0.0.1:8443 needs";
        assert!(found.starts_with(expected), "{found}");
    }

    #[test]
    fn protocol_versions_are_compared_without_case() {
        let versions = |text: &str| {
            let config = loaded(&format!("server {{ {text} location / {{ }} }}"));
            let versions =
                config.http.locations.last().expect("there is a server").scope.of::<Conf>().versions;
            (versions.tls12, versions.tls13)
        };
        assert_eq!(versions("ssl_protocols tlsv1.2;"), (true, false));
        assert_eq!(versions("ssl_protocols TLSV1.3 sslv3;"), (false, true));
        assert_eq!(versions("ssl_protocols TLSv1.2; ssl_protocols tlsv1.3;"), (true, true));
        let found = error("http {\nssl_protocols TLSv1.4; }");
        assert_eq!(found, "invalid value \"TLSv1.4\" in /conf/nginx.conf:2");
    }

    /// nginx reads the files of trusted certificates and CRLs only for servers with TLS, and `ssl_client_certificate` only if
    /// clients are verified.
    #[test]
    fn files_of_unused_features_need_not_exist() {
        let none = "ssl_client_certificate none.pem;";
        loaded("ssl_trusted_certificate data:x; ssl_crl data:x; server { ssl_client_certificate data:x; }");
        loaded(&format!("{none} ssl_trusted_certificate none.pem; ssl_crl none.pem; server {{ }}"));
        for (text, expected) in [
            (none.to_owned(), None),
            (format!("{none} ssl_verify_client on;"), Some("cannot load certificate \"/conf/none.pem\"")),
            (
                "ssl_trusted_certificate none.pem;".to_owned(),
                Some("cannot load certificate \"/conf/none.pem\""),
            ),
            (
                "ssl_crl none.pem;".to_owned(),
                Some("cannot load certificate revocation list \"/conf/none.pem\""),
            ),
            ("ssl_client_certificate data:x;".to_owned(), None),
            ("ssl_trusted_certificate data:x;".to_owned(), Some("cannot load certificate \"data:\"")),
            ("ssl_crl data:x;".to_owned(), Some("cannot load certificate revocation list \"data:\"")),
        ] {
            let conf = format!("server {{ ssl_reject_handshake on; {text} }}");
            match expected {
                None => drop(loaded(&conf)),
                Some(expected) => {
                    let found = error(&format!("http {{ {conf} }}"));
                    assert!(found.starts_with(expected), "{found}");
                }
            }
        }
    }
}
