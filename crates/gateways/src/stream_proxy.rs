//! `stream_proxy`: passes sessions of `stream` to an upstream. `upstream::stream` connects and relays.
//!
//! The directives of connections, addresses and TLS are those of the proxies of `http`.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use conf::{Args, Contexts, Error, Spec, Support};
use http::proxy_protocol::{self, Family as AddressFamily};

use crate::passing::Rows;
use crate::passing::conf::{Conf as PassingConf, HasConf, NEXT_UPSTREAM};
use crate::passing::pass::{self, Pass, Scheme};
use crate::{Declaration, Directive, Module};
use exchange::module::{SessionHooks, SessionVariable};
use exchange::session::{Session, SessionPhase, SessionStep};
use peers::Upstreams;
use site::config::{BlockKind, Cx, Inner, Scope, Section, Settings, SettingsType};
use site::declaration::{BlockHooks, STREAM_LEVELS};
use site::settings::session::SessionCore;
use site::template::Template;
use upstream::datagrams::DatagramLimits;
use upstream::stream::{SessionSettings, SessionTries, SessionTry};
use upstream::{NextUpstream, Secure};

/// The module.
pub(crate) static MODULE: Module = Module {
    session: SessionHooks {
        variables: UPSTREAM_VARIABLES,
        add_to_plan: |_, scope, plan| {
            if scope.of::<Conf>().passing.pass.is_some() {
                plan.later(SessionPhase::Content, scope.shared::<Conf>(), |conf, session| {
                    Box::pin(run(conf, session))
                });
            }
        },
        ..SessionHooks::NONE
    },
    ..Module::of(Declaration {
        prefix: "proxy",
        directives: &[
            DIRECTIVES,
            Rows::<StreamProxy>::CONNECTION,
            Rows::<StreamProxy>::SOCKETS,
            Rows::<StreamProxy>::TLS,
        ],
        twin: Some(&[
            // Other values or defaults than in `http`.
            "proxy_send_timeout",
            "proxy_read_timeout",
            "proxy_next_upstream",
            "proxy_buffer_size",
        ]),
        settings: &[SettingsType::of::<Conf>()],
        section: Section::Stream,
        blocks: BlockHooks {
            end: |_, scope, end| {
                let conf = scope.make_mut::<Conf>();
                if end.kind == BlockKind::Server && conf.is_secure && conf.passing.pass.is_some() {
                    let settings = conf.passing.ssl.settings("proxy", conf.alpn.clone());
                    let settings = settings.map_err(|message| Error::at(end.span.clone(), message))?;
                    conf.passing.upstream.secure = Some(Arc::new(settings));
                }
                Ok(())
            },
            requires: |http, scope, requirements| {
                let conf = &scope.of::<Conf>().passing;
                if conf.pass.is_some() {
                    conf.add_ports(http, scope, &mut requirements.uses);
                }
                requirements.transparent_bind |=
                    conf.upstream.bind.as_ref().is_some_and(|bind| bind.transparent);
            },
            ..BlockHooks::NONE
        },
        ..Declaration::named("stream_proxy")
    })
};

/// The owner of the settings.
struct StreamProxy;

impl HasConf for StreamProxy {
    const DIRECTIVES: &'static str = "proxy";
    const REASONS: &'static [(&'static str, u64)] = NEXT_UPSTREAM;
    const TLS_NAME: Option<&'static str> = None;

    fn conf_mut(scope: &mut Scope) -> &mut PassingConf {
        &mut scope.make_mut::<Conf>().passing
    }
}

/// The settings of a server.
#[derive(Clone, Debug)]
pub(crate) struct Conf {
    /// Settings of connections, TLS, and the destination.
    passing: PassingConf,
    /// `proxy_timeout`
    timeout: Duration,
    /// `proxy_half_close`
    half_close: bool,
    /// `proxy_upload_rate`, `proxy_download_rate`
    rates: [Option<Template>; 2],
    /// `proxy_protocol`
    protocol: ProxyProtocol,
    /// `proxy_ssl`
    is_secure: bool,
    /// `proxy_ssl_alpn`
    alpn: Vec<Vec<u8>>,
    /// `proxy_requests`, `proxy_responses`
    datagrams: DatagramLimits,
}

/// `proxy_protocol`: the header that an upstream gets first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProxyProtocol {
    Off,
    V1,
    V2,
}

impl Default for Conf {
    fn default() -> Conf {
        let mut passing = PassingConf::default();
        passing.prefix = "proxy";
        passing.upstream.next_upstream = NextUpstream::ERROR;
        Conf {
            passing,
            timeout: Duration::from_secs(600),
            half_close: false,
            rates: [None, None],
            protocol: ProxyProtocol::Off,
            is_secure: false,
            alpn: Vec::new(),
            datagrams: DatagramLimits::default(),
        }
    }
}

impl Settings for Conf {
    fn inherit(&self, _: Inner) -> Option<Conf> {
        // Each server has to set its destination itself.
        self.passing.pass.is_some().then(|| {
            let mut conf = self.clone();
            conf.passing.pass = None;
            conf
        })
    }
}

const fn spec(name: &'static str, args: Args, help: &'static str) -> Spec {
    Spec::new("stream_proxy", name, STREAM_LEVELS, args, help)
}

const ONE: Args = Args::Exactly(1);

const DIRECTIVES: &[Directive] = &[
    Directive::scope(
        Spec::new(
            "stream_proxy",
            "proxy_pass",
            Contexts::STREAM_SERVER,
            ONE,
            "Passes sessions to this server or group of servers.",
        ),
        set_pass,
    ),
    // As in nginx the limit of UDP sessions too.
    Directive::scope(
        spec("proxy_timeout", ONE, "How long a session may be without data in both directions.")
            .default("10m"),
        |scope, cx| cx.milliseconds(&mut scope.make_mut::<Conf>().timeout),
    ),
    Directive::scope(
        spec(
            "proxy_half_close",
            Args::Flag,
            "Whether a session continues when one side has ended its direction.",
        )
        .default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().half_close),
    ),
    Directive::scope(
        spec("proxy_next_upstream", Args::Flag, "Whether another server is tried if none is reached.")
            .default("on"),
        |scope, cx| {
            let mut is_on = true;
            cx.flag(&mut is_on)?;
            let upstream = &mut scope.make_mut::<Conf>().passing.upstream;
            upstream.next_upstream = if is_on { NextUpstream::ERROR } else { NextUpstream::OFF };
            Ok(())
        },
    ),
    Directive::scope(
        spec("proxy_upload_rate", ONE, "Maximum rate from a client, in bytes per second; 0 is no limit.")
            .default("0"),
        |scope, cx| {
            scope.make_mut::<Conf>().rates[0] = Some(cx.size_template(cx.arg(0))?);
            Ok(())
        },
    ),
    Directive::scope(
        spec(
            "proxy_download_rate",
            ONE,
            "Maximum rate from an upstream, in bytes per second; 0 is no limit.",
        )
        .default("0"),
        |scope, cx| {
            scope.make_mut::<Conf>().rates[1] = Some(cx.size_template(cx.arg(0))?);
            Ok(())
        },
    ),
    Directive::scope(
        spec("proxy_protocol", ONE, "The PROXY protocol to upstreams: off, on (version 1), v2.")
            .default("off"),
        |scope, cx| {
            const NAMES: &[(&str, ProxyProtocol)] =
                &[("off", ProxyProtocol::Off), ("on", ProxyProtocol::V1), ("v2", ProxyProtocol::V2)];
            cx.choice(&mut scope.make_mut::<Conf>().protocol, NAMES)
        },
    ),
    Directive::scope(
        spec("proxy_ssl", Args::Flag, "Whether connections to upstreams use TLS.").default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().is_secure),
    ),
    Directive::scope(
        spec(
            "proxy_ssl_alpn",
            Args::AtLeast(1),
            "Protocols that upstreams are offered by ALPN, the best first.",
        ),
        |scope, cx| {
            let mut protocols = Vec::new();
            for text in cx.statement.texts() {
                if text.is_empty() || text.len() > ALPN_LEN_MAX {
                    return Err(cx.error(format_args!("invalid protocol name \"{text}\"")));
                }
                protocols.push(text.as_bytes().to_vec());
            }
            scope.make_mut::<Conf>().alpn = protocols;
            Ok(())
        },
    ),
    Directive::scope(
        spec(
            "proxy_requests",
            ONE,
            "Number of datagrams of a client after which its next datagram begins another session; 0 means no limit.",
        )
        .default("0"),
        |scope, cx| {
            let mut count = 0;
            cx.number(&mut count)?;
            scope.make_mut::<Conf>().datagrams.requests = Some(count).filter(|&count| count > 0);
            Ok(())
        },
    ),
    Directive::scope(
        spec(
            "proxy_responses",
            ONE,
            "Expected number of datagrams of the upstream for each datagram of the client; then the session ends. Without the \
             directive it ends by `proxy_timeout`.",
        ),
        |scope, cx| {
            let mut count = 0;
            cx.number(&mut count)?;
            scope.make_mut::<Conf>().datagrams.responses = Some(count);
            Ok(())
        },
    ),
    // Receives use the buffers of the engine, of 4 KiB to 64 KiB, and idle sessions have none.
    Directive::scope(
        spec("proxy_buffer_size", ONE, "Size of nginx's buffers for the bytes of a session.")
            .default("16k")
            .state(Support::Accepted("the engine chooses the buffers")),
        |_, cx| cx.size(&mut 0),
    ),
    Directive::scope(
        spec("proxy_downstream_buffer", ONE, "The former name of `proxy_buffer_size`.")
            .state(Support::Accepted("the engine chooses the buffers")),
        |_, cx| deprecated(cx),
    ),
    Directive::scope(
        spec("proxy_upstream_buffer", ONE, "The former name of `proxy_buffer_size`.")
            .state(Support::Accepted("the engine chooses the buffers")),
        |_, cx| deprecated(cx),
    ),
];

/// Maximum length of the name of a protocol (RFC 7301 section 3.1).
const ALPN_LEN_MAX: usize = 255;

fn deprecated(cx: &mut Cx<'_>) -> Result<(), Error> {
    let name = &cx.statement.name.text;
    cx.warn(format_args!(
        "the \"{name}\" directive is deprecated, use the \"proxy_buffer_size\" directive instead"
    ));
    cx.size(&mut 0)
}

fn set_pass(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let conf = &mut scope.make_mut::<Conf>().passing;
    conf.pass = Some(pass::read(cx.arg(0), None, &[Scheme::NONE], false, cx)?);
    Ok(())
}

/// Passes a session on.
async fn run(conf: &Conf, session: &mut Session) -> SessionStep {
    let Some(pass) = &conf.passing.pass else { return SessionStep::End(500) };
    let upstreams = session.config().stream.of::<Upstreams>();
    let Some((target, destination)) = pass::evaluated("proxy", pass, session, || upstreams) else {
        return SessionStep::End(500);
    };
    let settings = settings(conf, &destination.target_parts.host, session);
    SessionStep::End(match session.datagrams {
        // Boxed, so that sessions of TCP do not have the memory for it.
        Some(_) => Box::pin(upstream::datagrams::pass(session, &target, &settings, conf.datagrams)).await,
        None => upstream::stream::pass(session, &target, &settings).await,
    })
}

/// Returns the settings of a session to an upstream with this host.
fn settings<'c>(conf: &'c Conf, host: &[u8], session: &Session) -> SessionSettings<'c> {
    let secure = conf.passing.upstream.secure.as_ref();
    SessionSettings {
        upstream: &conf.passing.upstream,
        secure: secure.map(|secure| Secure::of(secure, host, session)),
        timeout: conf.timeout,
        half_close: conf.half_close,
        upload_rate: rate(conf.rates[0].as_ref(), session),
        download_rate: rate(conf.rates[1].as_ref(), session),
        header: header(conf.protocol, session),
        nodelay: session.scope().of::<SessionCore>().tcp_nodelay,
    }
}

/// Returns the destination of a server.
pub(crate) fn pass_of(scope: &Scope) -> Option<&Pass> {
    scope.of::<Conf>().passing.pass.as_deref()
}

/// Returns the settings of a health check, which has a session without a client.
pub(crate) fn probe_settings(session: &Session) -> Option<SessionSettings<'_>> {
    let conf = session.scope().of::<Conf>();
    let (_, target_parts) = conf.passing.pass.as_ref()?.written()?;
    Some(settings(conf, &target_parts.host, session))
}

/// Returns a rate in bytes per second; `None` without a limit.
fn rate(template: Option<&Template>, session: &Session) -> Option<u64> {
    let text = String::from_utf8(template?.rendered(session)).ok()?;
    conf::value::size(&text).ok().filter(|&rate| rate > 0)
}

/// Returns the header of the PROXY protocol, with the addresses of the client and of this server.
fn header(protocol: ProxyProtocol, session: &Session) -> Vec<u8> {
    let (client, local) = (session.client(), &session.conn.local);
    let inet = |address: &site::address::Address| match address {
        site::address::Address::Inet(address) => Some(*address),
        site::address::Address::Unix(_) => None,
    };
    let addresses = inet(client).zip(inet(local));
    match protocol {
        ProxyProtocol::Off => Vec::new(),
        ProxyProtocol::V1 => proxy_protocol::encode_v1(addresses),
        ProxyProtocol::V2 if session.datagrams.is_some() => {
            proxy_protocol::encode_v2(addresses, AddressFamily::Datagram)
        }
        ProxyProtocol::V2 => proxy_protocol::encode_v2(addresses, AddressFamily::Stream),
    }
}

const fn variable(
    name: &'static str,
    get: fn(&Session, &mut Vec<u8>) -> bool,
    help: &'static str,
) -> SessionVariable {
    SessionVariable { name, get, set: None, help }
}

/// The variables of module `stream_upstream`: values of all tries, separated by commas.
const UPSTREAM_VARIABLES: &[SessionVariable] = &[
    variable(
        "upstream_addr",
        |session, out| join(session, out, |tried, out| out.extend_from_slice(tried.name.as_bytes())),
        "Addresses of the upstreams.",
    ),
    variable(
        "upstream_bytes_received",
        |session, out| join(session, out, |tried, out| http::push_decimal(out, tried.received.get())),
        "Bytes received from the upstreams.",
    ),
    variable(
        "upstream_bytes_sent",
        |session, out| join(session, out, |tried, out| http::push_decimal(out, tried.sent.get())),
        "Bytes sent to the upstreams.",
    ),
    variable(
        "upstream_connect_time",
        |session, out| join(session, out, |tried, out| push_time(tried.connect_time.get(), out)),
        "Seconds until the upstreams were connected, with milliseconds.",
    ),
    variable(
        "upstream_first_byte_time",
        |session, out| join(session, out, |tried, out| push_time(tried.first_byte_time(), out)),
        "Seconds until the first byte of the upstreams, with milliseconds.",
    ),
    variable(
        "upstream_session_time",
        |session, out| join(session, out, |tried, out| push_time(tried.session_time(), out)),
        "Seconds of the sessions with the upstreams, with milliseconds.",
    ),
];

/// Appends a value of each try; nothing if the session was not passed on.
fn join(session: &Session, out: &mut Vec<u8>, push: fn(&SessionTry, &mut Vec<u8>)) -> bool {
    let extensions = session.extensions.borrow();
    let Some(SessionTries(tries)) = extensions.get::<SessionTries>() else { return false };
    for (index, tried) in tries.iter().enumerate() {
        if index > 0 {
            out.extend_from_slice(b", ");
        }
        push(tried, out);
    }
    !tries.is_empty()
}

fn push_time(time: Option<Duration>, out: &mut Vec<u8>) {
    match time {
        // Writing to a `Vec` cannot fail.
        Some(time) => _ = write!(out, "{}.{:03}", time.as_secs(), time.subsec_millis()),
        None => out.push(b'-'),
    }
}
