//! The directives that say how upstreams are talked to and what of an answer is passed on. Those of redirects and
//! cookies stand in `rewrites`, those of the cache in `cache_conf`.

use std::net::SocketAddr;
use std::sync::Arc;

use conf::value;
use conf::{Args, Contexts, Error, Spec, State};
use http::request::Version;

use crate::Directive;
use crate::http_core::{LEVELS, NO_HASH};
use crate::proxy::Conf;
use crate::proxy::request::{self, SetField};
use crate::proxy::spec::spec;
use crate::proxy::{pass, reply};
use exchange::config::{Cx, Scope};
use upstream::{Bind, BindAddr, NextUpstream};

/// Whom to ask, and how the request looks. What a block does not say is that of the block around it, but for the target.
pub(super) const REQUEST: &[Directive] = &[
    // The only way into this module. Where it may have a URI is looked at by `pass`.
    Directive::scope(
        Spec::new(
            "http_proxy",
            "proxy_pass",
            Contexts::LOCATION.or(Contexts::LOCATION_IF).or(Contexts::LIMIT_EXCEPT),
            Args::Exactly(1),
            "Passes requests on to this server or group of servers, with this URI if there is one.",
        ),
        pass::set,
    ),
    // Version 2 is another protocol, with streams.
    Directive::scope(
        spec("proxy_http_version", Args::Exactly(1), "The version that upstreams are spoken to in.")
            .default("1.1"),
        |scope, cx| {
            if cx.arg(0) == "2" {
                return Err(cx.not_built("2"));
            }
            cx.choice(&mut scope.own::<Conf>().version, &[("1.0", Version::Http10), ("1.1", Version::Http11)])
        },
    ),
    // Off by default: the name has to be one that no other server uses.
    Directive::scope(
        Spec::new(
            "ringroad",
            "proxy_cdn_loop",
            LEVELS,
            Args::Exactly(1),
            "Adds `CDN-Loop` (RFC 8586) with this name, and refuses requests that have it already with 502; or `off`.",
        )
        .default("off"),
        |scope, cx| {
            let name = cx.arg(0);
            let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
            if name.is_empty() || !name.bytes().all(is_name) {
                return Err(cx.error(format_args!(
                    "invalid value \"{name}\" in \"proxy_cdn_loop\", it must be a host name or \"off\""
                )));
            }
            scope.own::<Conf>().cdn_loop = (name != "off").then(|| name.as_bytes().into());
            Ok(())
        },
    ),
    // A template: what a `map` makes of the client's method is a usual value. What it comes to is looked at for each
    // request, since only a token may stand in a request line.
    Directive::scope(
        spec("proxy_method", Args::Exactly(1), "The method of requests, in the place of the client's."),
        |scope, cx| {
            scope.own::<Conf>().method = Some(Arc::new(cx.template(cx.arg(0))?));
            Ok(())
        },
    ),
    // An empty value takes the field away. Those that frame the body follow from the body.
    Directive::scope(
        spec("proxy_set_header", Args::Exactly(2), "A field of requests, in the place of the client's.")
            .many(),
        set_field,
    ),
    // The client's body is still read, so that variables can show it, and its length is told anew.
    Directive::scope(
        spec("proxy_set_body", Args::Exactly(1), "The body of requests, in the place of the client's."),
        |scope, cx| {
            scope.own::<Conf>().body = Some(Arc::new(cx.template(cx.arg(0))?));
            Ok(())
        },
    ),
    // Off, an upstream gets what `proxy_set_header` says and what the message cannot do without.
    Directive::scope(
        spec("proxy_pass_request_headers", Args::Flag, "Whether the client's fields are passed on.")
            .default("on"),
        |scope, cx| cx.flag(&mut scope.own::<Conf>().pass_fields),
    ),
    // Off, no length is announced either: an upstream would wait for bytes that never come.
    Directive::scope(
        spec("proxy_pass_request_body", Args::Flag, "Whether the client's body is passed on.").default("on"),
        |scope, cx| cx.flag(&mut scope.own::<Conf>().pass_body),
    ),
    // Off, an upstream sees the first bytes of an upload before the last ones are here, and no other one is asked.
    Directive::scope(
        spec("proxy_request_buffering", Args::Flag, "Reads a body as a whole before an upstream is asked.")
            .default("on"),
        |scope, cx| cx.flag(&mut scope.own::<Conf>().upstream.request_buffering),
    ),
    tuning("proxy_headers_hash_max_size", "512"),
    tuning("proxy_headers_hash_bucket_size", "64"),
];

/// Connections to upstreams. Which of them are kept for later requests is said in their `upstream` block.
pub(super) const CONNECTION: &[Directive] = &[
    // An upstream that drops packets must not hold a client for the minutes that the kernel would try.
    Directive::scope(
        spec("proxy_connect_timeout", Args::Exactly(1), "How long a connection to an upstream may take.")
            .default("60s"),
        |scope, cx| cx.milliseconds(&mut scope.own::<Conf>().upstream.connect_timeout),
    ),
    // Between two successes, as `proxy_read_timeout`.
    Directive::scope(
        spec("proxy_send_timeout", Args::Exactly(1), "How long an upstream may take no more of a request.")
            .default("60s"),
        |scope, cx| cx.milliseconds(&mut scope.own::<Conf>().upstream.send_timeout),
    ),
    // Between two reads and not for the whole, so that a slow but living upstream may take its time.
    Directive::scope(
        spec("proxy_read_timeout", Args::Exactly(1), "How long an upstream may send nothing.").default("60s"),
        |scope, cx| cx.milliseconds(&mut scope.own::<Conf>().upstream.read_timeout),
    ),
    // With `transparent` the address may be the client's own, which needs a route back to this machine.
    Directive::scope(
        spec("proxy_bind", Args::Between(1, 2), "The address that connections go out from; `transparent`."),
        set_bind,
    ),
    // Finds out about upstreams that went away without a word while a connection to them was idle.
    Directive::scope(
        spec("proxy_socket_keepalive", Args::Flag, "Whether the kernel looks after idle connections.")
            .default("off"),
        |scope, cx| cx.flag(&mut scope.own::<Conf>().upstream.socket_keepalive),
    ),
    // The kernel grows its buffers by itself; a number here ends that, for lines that are long and fast, or many.
    Directive::scope(
        spec("proxy_socket_rcvbuf", Args::Exactly(1), "The kernel's buffer for what an upstream sends."),
        |scope, cx| socket_buffer(&mut scope.own::<Conf>().upstream.socket_rcvbuf, cx),
    ),
    // As above, for the other direction.
    Directive::scope(
        spec("proxy_socket_sndbuf", Args::Exactly(1), "The kernel's buffer for what an upstream is sent."),
        |scope, cx| socket_buffer(&mut scope.own::<Conf>().upstream.socket_sndbuf, cx),
    ),
    // FreeBSD has it; see `send_lowat`.
    Directive::scope(
        spec("proxy_send_lowat", Args::Exactly(1), "Least room in the socket that is worth a write.")
            .default("0")
            .state(State::Accepted("Linux has no such socket option")),
        |_, cx| {
            cx.size(&mut 0)?;
            cx.warn("\"proxy_send_lowat\" is not supported, ignored");
            Ok(())
        },
    ),
    // Upstreams that do work beside answering may be cut short in it otherwise.
    Directive::scope(
        spec("proxy_ignore_client_abort", Args::Flag, "Goes on with a request when its client is gone.")
            .default("off"),
        |scope, cx| cx.flag(&mut scope.own::<Conf>().upstream.ignore_client_abort),
    ),
    // Requests that may have had an effect are sent again only where `non_idempotent` says so.
    Directive::scope(
        spec("proxy_next_upstream", Args::AtLeast(1), "When the next upstream is asked.")
            .default("error timeout")
            .many(),
        set_next_upstream,
    ),
    // Each try may take all of a timeout, so a client can wait for a multiple of it without this bound.
    Directive::scope(
        spec(
            "proxy_next_upstream_tries",
            Args::Exactly(1),
            "How many upstreams are asked at most; 0 is all.",
        )
        .default("0"),
        |scope, cx| {
            let mut tries = 0;
            cx.number(&mut tries)?;
            scope.own::<Conf>().upstream.next_upstream_tries = u32::try_from(tries).unwrap_or(u32::MAX);
            Ok(())
        },
    ),
    // The same bound as a time; a try under way is not cut short by it.
    Directive::scope(
        spec(
            "proxy_next_upstream_timeout",
            Args::Exactly(1),
            "For how long others are asked; 0 is no limit.",
        )
        .default("0"),
        |scope, cx| cx.milliseconds(&mut scope.own::<Conf>().upstream.next_upstream_timeout),
    ),
];

/// Memory and files for answers. nginx has rules for how the sizes fit together; `conf` looks at them where a block ends,
/// because the lines of one may stand in any order.
pub(super) const BUFFERS: &[Directive] = &[
    // An upstream has few workers and this server has room: it is set free as soon as it has sent its answer.
    Directive::scope(
        spec(
            "proxy_buffering",
            Args::Flag,
            "Reads responses as fast as they come, whatever the client's speed. Each piece is passed on when it comes, with `off` too.",
        )
        .default("on"),
        |scope, cx| cx.flag(&mut scope.own::<Conf>().upstream.buffering),
    ),
    // A head that does not fit is an error of the upstream (502), not a reason to take more memory.
    Directive::scope(
        spec("proxy_buffer_size", Args::Exactly(1), "Bytes for the head of an answer.").default("4k"),
        |scope, cx| cx.size(&mut scope.own::<Conf>().upstream.buffer_size),
    ),
    // Together the most memory that one answer takes, whatever the speed of its client.
    Directive::scope(
        spec("proxy_buffers", Args::Exactly(2), "Number and bytes of the buffers for an answer.")
            .default("8 4k"),
        |scope, cx| {
            let (count, bytes) = cx.statement.buffers()?;
            scope.own::<Conf>().upstream.buffers = (u32::try_from(count).unwrap_or(u32::MAX), bytes);
            Ok(())
        },
    ),
    // What is on its way cannot be filled anew, so some buffers have to be left to read into. nginx's default, twice the
    // largest buffer, would only make more calls: `body::stream` gathers what is there.
    Directive::scope(
        spec(
            "proxy_busy_buffers_size",
            Args::Exactly(1),
            "Bytes of them that are handed to the client's connection at once; unset, all that is here, up to 256k.",
        ),
        |scope, cx| written(&mut scope.own::<Conf>().sizes.busy_buffers, value::size, cx),
    ),
    // Beyond the buffers and this file the upstream waits for the client.
    Directive::scope(
        spec("proxy_max_temp_file_size", Args::Exactly(1), "Bytes of an answer in a file; 0 is no file.")
            .default("1024m"),
        |scope, cx| written(&mut scope.own::<Conf>().sizes.max_temp_file, value::size, cx),
    ),
    // Writes of this size go out one by one, so that an answer on its way to the disk keeps its place in memory small.
    Directive::scope(
        spec(
            "proxy_temp_file_write_size",
            Args::Exactly(1),
            "Bytes that are written to it at once; unset, what one read has brought.",
        ),
        |scope, cx| written(&mut scope.own::<Conf>().sizes.temp_file_write, value::size, cx),
    ),
    // On the disk that a `proxy_store` or a cache is on, files get their final names without being copied.
    Directive::scope(
        spec(
            "proxy_temp_path",
            Args::Between(1, 4),
            "The folder for such files, and the digits of its levels.",
        )
        .default("proxy_temp 1 2"),
        |scope, cx| {
            let (folder, levels) = cx.temp_folder()?;
            scope.own::<Conf>().upstream.temp_path = (folder, levels.into_iter().collect());
            Ok(())
        },
    ),
    // A limit on what is read: with buffering it keeps one answer from filling the line to the upstream.
    Directive::scope(
        spec(
            "proxy_limit_rate",
            Args::Exactly(1),
            "Bytes a second that are read from an upstream; 0 is no limit.",
        )
        .default("0"),
        |scope, cx| {
            scope.own::<Conf>().upstream.limit_rate = Some(cx.size_template(cx.arg(0))?);
            Ok(())
        },
    ),
];

/// What of an answer is passed on, and what it may tell this server. How values are changed on the way is said in
/// `rewrites`.
pub(super) const REPLY: &[Directive] = &[
    // Fields that are this server's own business are hidden without being named; see `reply`.
    Directive::scope(
        spec("proxy_hide_header", Args::Exactly(1), "A field of answers that is not passed on.").many(),
        |scope, cx| {
            scope.own::<Conf>().hidden.own(cx.block).push(cx.arg(0).into());
            Ok(())
        },
    ),
    // Goes before `proxy_hide_header`, wherever either stands. `Server` and `Date` then take the place of our own.
    Directive::scope(
        spec(
            "proxy_pass_header",
            Args::Exactly(1),
            "A field of answers that otherwise would not be passed on.",
        )
        .many(),
        |scope, cx| {
            scope.own::<Conf>().shown.own(cx.block).push(cx.arg(0).into());
            Ok(())
        },
    ),
    // They are passed on as long as nothing hides them. Those about caching are `caching`'s to look at.
    Directive::scope(
        spec("proxy_ignore_headers", Args::AtLeast(1), "Fields of answers that do not steer this server.")
            .many(),
        |scope, cx| scope.own::<Conf>().ignored.add(reply::IGNORABLE, cx),
    ),
    // Only statuses that have an `error_page` are taken, and only from 300 on.
    Directive::scope(
        spec("proxy_intercept_errors", Args::Flag, "Whether `error_page` holds for answers of upstreams.")
            .default("off"),
        |scope, cx| cx.flag(&mut scope.own::<Conf>().intercept_errors),
    ),
    // For upstreams that answer with a whole file only; one range of it is cut out here, several are not.
    Directive::scope(
        spec("proxy_force_ranges", Args::Flag, "Cuts ranges out of answers, whatever the upstream can do.")
            .default("off"),
        |scope, cx| cx.flag(&mut scope.own::<Conf>().force_ranges),
    ),
    // An upstream sends some only where it was told `TE: trailers`, which is up to `proxy_set_header`.
    Directive::scope(
        spec("proxy_pass_trailers", Args::Flag, "Whether fields behind the body of answers are passed on.")
            .default("off"),
        |scope, cx| cx.flag(&mut scope.own::<Conf>().upstream.pass_trailers),
    ),
];

/// A directive that sizes a hash table of nginx.
const fn tuning(name: &'static str, default: &'static str) -> Directive {
    let spec = Spec::new("http_proxy", name, LEVELS, Args::Exactly(1), "The size of a table of nginx.");
    Directive::scope(spec.default(default).state(State::Accepted(NO_HASH)), |_, cx| cx.number(&mut 0))
}

/// A size that others follow from where it is not written.
fn written(
    field: &mut Option<u64>,
    read: fn(&str) -> Result<u64, value::ValueError>,
    cx: &Cx<'_>,
) -> Result<(), Error> {
    *field = Some(cx.statement.value(0, read)?);
    Ok(())
}

fn socket_buffer(field: &mut Option<u64>, cx: &Cx<'_>) -> Result<(), Error> {
    let bytes = cx.statement.value(0, value::size)?;
    // nginx leaves the kernel's choice alone then.
    *field = (bytes > 0).then_some(bytes);
    Ok(())
}

/// Fields with a name that nobody could send are told and left out; nginx sends them as they are.
fn set_field(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let (name, value) = (cx.arg(0), cx.template(cx.arg(1))?);
    let fields = scope.own::<Conf>().set_fields.own(cx.block);
    if http::response::push_field(&mut Vec::new(), name.as_bytes(), b"").is_err() {
        cx.warn(format_args!("invalid field name \"{name}\", the field is not sent"));
        return Ok(());
    }
    let is_empty = value.constant() == Some("");
    if request::is_framing(name.as_bytes()) && !is_empty {
        cx.warn(format_args!("\"{name}\" is that of the body that is sent, whatever is set"));
    }
    fields.push(SetField { name: name.into(), value });
    Ok(())
}

/// `off`, or an address and perhaps `transparent`. An address with variables is read for each connection.
fn set_bind(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let text = cx.arg(0);
    let second = cx.statement.args.get(1).map(|word| word.text.as_str());
    if second.is_none() && text == "off" {
        scope.own::<Conf>().upstream.bind = None;
        return Ok(());
    }
    let template = cx.template(text)?;
    let address = match template.constant() {
        None => BindAddr::Text(template),
        Some(text) => {
            let address = bind_address(text);
            BindAddr::Fixed(address.ok_or_else(|| cx.error(format_args!("invalid address \"{text}\"")))?)
        }
    };
    let transparent = match second {
        None => false,
        Some("transparent") => true,
        Some(text) => return Err(cx.error(format_args!("invalid parameter \"{text}\""))),
    };
    scope.own::<Conf>().upstream.bind = Some(Bind { address, transparent });
    Ok(())
}

/// An address, with a port or without.
fn bind_address(text: &str) -> Option<SocketAddr> {
    let inside = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    match inside.parse() {
        Ok(ip) => Some(SocketAddr::new(ip, 0)),
        Err(_) => text.parse().ok(),
    }
}

/// Names, and the number of the bit that stands for each while they are read.
const NEXT_UPSTREAM: &[(&str, u64)] = &[
    ("error", 1),
    ("timeout", 1 << 1),
    ("invalid_header", 1 << 2),
    ("non_idempotent", 1 << 3),
    ("http_500", 1 << 4),
    ("http_502", 1 << 5),
    ("http_503", 1 << 6),
    ("http_504", 1 << 7),
    ("http_403", 1 << 8),
    ("http_404", 1 << 9),
    ("http_429", 1 << 10),
    ("off", NEXT_OFF),
];

const NEXT_OFF: u64 = 1 << 11;

/// What the bits above mean, in their order.
const REASONS: [NextUpstream; 11] = [
    NextUpstream::ERROR,
    NextUpstream::TIMEOUT,
    NextUpstream::INVALID_HEADER,
    NextUpstream::NON_IDEMPOTENT,
    NextUpstream::HTTP_500,
    NextUpstream::HTTP_502,
    NextUpstream::HTTP_503,
    NextUpstream::HTTP_504,
    NextUpstream::HTTP_403,
    NextUpstream::HTTP_404,
    NextUpstream::HTTP_429,
];

/// `off` wins over whatever else is written.
fn set_next_upstream(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let bits = &mut scope.own::<Conf>().next_upstream;
    bits.add(NEXT_UPSTREAM, cx)?;
    let chosen = REASONS.iter().enumerate().filter(|(number, _)| bits.has(1 << number));
    scope.own::<Conf>().upstream.next_upstream = match bits.has(NEXT_OFF) {
        true => NextUpstream::OFF,
        false => chosen.fold(NextUpstream::OFF, |all, (_, reason)| all | *reason),
    };
    Ok(())
}
