//! Directives of all protocols for requests to upstreams and for the parts of a response that are passed on. The cache directives
//! are in `cache_conf`, those of TLS in `ssl`. Each protocol selects its tables.

use std::net::SocketAddr;

use conf::value;
use conf::{Args, Error, Spec, Support};

use crate::Directive;
use crate::passing::conf::{Conf, HasConf, NEXT_OFF, conf};
use crate::passing::protocol::Rows;
use crate::passing::reply;
use crate::passing::spec::row;
use site::config::Cx;
use site::declaration::{LEVELS, OWN};
use upstream::{Bind, BindAddr, NextUpstream};

impl<F: HasConf> Rows<F> {
    /// Connections that switch to another protocol.
    pub(crate) const TUNNELS: &'static [Directive] = &[
        // nginx closes both sides when one has ended. Protocols that end one direction first get this time for the other.
        Directive::scope(
            Spec::new(
                OWN,
                "_half_close_timeout",
                LEVELS,
                Args::Exactly(1),
                "How long a connection that switched to another protocol stays open without data after one side has ended.",
            )
            .default("5s"),
            |scope, cx| cx.milliseconds(&mut conf::<F>(scope).upstream.half_close_timeout),
        ),
    ];

    /// Connections to upstreams, for every protocol. Keep-alive is configured in the `upstream` block.
    pub(crate) const CONNECTION: &'static [Directive] = &[
        // An upstream that drops packets must not delay a client for the minutes that the kernel retries.
        Directive::scope(
            row("_connect_timeout", Args::Exactly(1), "How long a connection to an upstream may take.")
                .default("60s"),
            |scope, cx| cx.milliseconds(&mut conf::<F>(scope).upstream.connect_timeout),
        ),
        // Applies between two successful writes, like `proxy_read_timeout`.
        Directive::scope(
            row("_send_timeout", Args::Exactly(1), "How long an upstream may accept no bytes of a request.")
                .default("60s"),
            |scope, cx| cx.milliseconds(&mut conf::<F>(scope).upstream.send_timeout),
        ),
        // Applies between two reads and not to the complete response, so that a slow but working upstream is not cut off.
        Directive::scope(
            row("_read_timeout", Args::Exactly(1), "How long an upstream may send nothing.").default("60s"),
            |scope, cx| cx.milliseconds(&mut conf::<F>(scope).upstream.read_timeout),
        ),
        // With `transparent` the address may be that of the client, which requires a route back to this machine.
        Directive::scope(
            row("_bind", Args::Between(1, 2), "Local address of connections; `transparent`: any address."),
            |scope, cx| set_bind(conf::<F>(scope), cx),
        ),
        // Detects upstreams that disappeared without closing an idle connection.
        Directive::scope(
            row("_socket_keepalive", Args::Flag, "Whether the kernel probes idle connections.")
                .default("off"),
            |scope, cx| cx.flag(&mut conf::<F>(scope).upstream.socket_keepalive),
        ),
        // Requests that may have had side effects are sent again only with `non_idempotent`.
        Directive::scope(
            row("_next_upstream", Args::AtLeast(1), "When the next upstream is tried.")
                .default("error timeout")
                .many(),
            |scope, cx| set_next_upstream(F::REASONS, conf::<F>(scope), cx),
        ),
        // Each try may use a complete timeout, so without this limit a client may wait for a multiple of it.
        Directive::scope(
            row("_next_upstream_tries", Args::Exactly(1), "Maximum number of tries; 0 is no limit.")
                .default("0"),
            |scope, cx| {
                let mut tries = 0;
                cx.number(&mut tries)?;
                conf::<F>(scope).upstream.next_upstream_tries = u32::try_from(tries).unwrap_or(u32::MAX);
                Ok(())
            },
        ),
        // The same limit as a time; it does not interrupt a try in flight.
        Directive::scope(
            row("_next_upstream_timeout", Args::Exactly(1), "Time limit for further tries; 0 is no limit.")
                .default("0"),
            |scope, cx| cx.milliseconds(&mut conf::<F>(scope).upstream.next_upstream_timeout),
        ),
        // A head that does not fit is an error of the upstream (502), not a reason to use more memory.
        Directive::scope(
            row("_buffer_size", Args::Exactly(1), "Maximum size of the header section of a response.")
                .default("8k"),
            |scope, cx| {
                let conf = conf::<F>(scope);
                cx.size(&mut conf.upstream.buffer_size)?;
                conf.upstream.head_max = conf.upstream.buffer_size;
                Ok(())
            },
        ),
    ];

    /// Which parts of a response are passed on, and which fields this server obeys: for protocols with header fields.
    pub(crate) const FIELDS: &'static [Directive] = &[
        // Fields for this server are hidden without being listed; see `reply`.
        Directive::scope(
            row("_hide_header", Args::Exactly(1), "A field of responses that is not passed on.").many(),
            |scope, cx| {
                conf::<F>(scope).upstream.hidden.names.make_mut(cx.block).push(cx.arg(0).into());
                Ok(())
            },
        ),
        // Overrides `proxy_hide_header`, regardless of the order. `Server` and `Date` then replace the fields of this server.
        Directive::scope(
            row(
                "_pass_header",
                Args::Exactly(1),
                "A field of responses that otherwise would not be passed on.",
            )
            .many(),
            |scope, cx| {
                conf::<F>(scope).upstream.hidden.shown.make_mut(cx.block).push(cx.arg(0).into());
                Ok(())
            },
        ),
        // These fields are passed on unless hidden. `caching` ignores those about caching.
        Directive::scope(
            row("_ignore_headers", Args::AtLeast(1), "Response fields that this server ignores.").many(),
            |scope, cx| conf::<F>(scope).ignored.add(reply::IGNORABLE, cx),
        ),
        // Applies only to statuses with an `error_page`, and only from 300 on.
        Directive::scope(
            row("_intercept_errors", Args::Flag, "Whether `error_page` applies to responses of upstreams.")
                .default("off"),
            |scope, cx| cx.flag(&mut conf::<F>(scope).intercept_errors),
        ),
    ];

    /// Bodies of requests and responses, with the memory and files for them. nginx has rules for the relations of these sizes;
    /// `conf` checks them at the end of a block, because the directives may be in any order.
    pub(crate) const BODIES: &'static [Directive] = &[
        // When off, an upstream gets only the fields of `proxy_set_header` and those that the message needs.
        Directive::scope(
            row("_pass_request_headers", Args::Flag, "Whether the client's fields are passed on.")
                .default("on"),
            |scope, cx| cx.flag(&mut conf::<F>(scope).pass_fields),
        ),
        // When off, no length is announced either: an upstream would wait for bytes that never arrive.
        Directive::scope(
            row("_pass_request_body", Args::Flag, "Whether the client's body is passed on.").default("on"),
            |scope, cx| cx.flag(&mut conf::<F>(scope).pass_body),
        ),
        // When off, an upstream gets the first bytes of an upload before the last have arrived, and no other upstream is tried.
        Directive::scope(
            row("_request_buffering", Args::Flag, "Reads a body completely before an upstream is tried.")
                .default("on"),
            |scope, cx| cx.flag(&mut conf::<F>(scope).upstream.request_buffering),
        ),
        // When off, upstreams that still work on the request could be interrupted.
        Directive::scope(
            row("_ignore_client_abort", Args::Flag, "Continues a request after its client has disconnected.")
                .default("off"),
            |scope, cx| cx.flag(&mut conf::<F>(scope).upstream.ignore_client_abort),
        ),
        // An upstream has few workers, and this server has enough memory: a worker is available again as soon as it has sent its
        // response.
        Directive::scope(
            row(
                "_buffering",
                Args::Flag,
                "Reads responses as fast as they arrive, regardless of the client's speed. Also with `on`, each piece is passed on when it arrives.",
            )
            .default("on"),
            |scope, cx| cx.flag(&mut conf::<F>(scope).upstream.buffering),
        ),
        // The product of both is the maximum memory of one response, regardless of the speed of its client.
        Directive::scope(
            row("_buffers", Args::Exactly(2), "Number and size of the buffers for a response.")
                .default("8 4k"),
            |scope, cx| {
                let (count, bytes) = cx.statement.buffers()?;
                conf::<F>(scope).upstream.buffers = (u32::try_from(count).unwrap_or(u32::MAX), bytes);
                Ok(())
            },
        ),
        // Buffers in flight cannot be reused, so some must remain for reading. nginx's default, twice the largest buffer, would
        // only cause more calls: `exchange::streaming` sends received pieces together.
        Directive::scope(
            row(
                "_busy_buffers_size",
                Args::Exactly(1),
                "Maximum number of bytes in flight to the client; unset, all buffered bytes, up to 256k.",
            ),
            |scope, cx| written(&mut conf::<F>(scope).sizes.busy_buffers, value::size, cx),
        ),
        // Beyond the buffers and this file, reading from the upstream waits for the client.
        Directive::scope(
            row("_max_temp_file_size", Args::Exactly(1), "Maximum size of the temporary file of a response; 0 disables it.")
                .default("1024m"),
            |scope, cx| written(&mut conf::<F>(scope).sizes.max_temp_file, value::size, cx),
        ),
        // Writes of this size are made one by one, so that a response being written occupies little memory.
        Directive::scope(
            row(
                "_temp_file_write_size",
                Args::Exactly(1),
                "Maximum size of one write to the temporary file; unset, the size of one read.",
            ),
            |scope, cx| written(&mut conf::<F>(scope).sizes.temp_file_write, value::size, cx),
        ),
        // On the file system of a `proxy_store` or a cache, files get their final names without being copied.
        Directive::scope(
            row(
                "_temp_path",
                Args::Between(1, 4),
                "The directory of temporary files, and the number of digits of each level.",
            )
            .default("_temp 1 2"),
            |scope, cx| {
                conf::<F>(scope).upstream.temp_path = cx.temp_directory()?;
                Ok(())
            },
        ),
        // Limits the rate of reading: with buffering, one response otherwise could use the complete bandwidth to the upstream.
        Directive::scope(
            row(
                "_limit_rate",
                Args::Exactly(1),
                "Maximum rate of reading from an upstream, in bytes per second; 0 is no limit.",
            )
            .default("0"),
            |scope, cx| {
                conf::<F>(scope).upstream.limit_rate = Some(cx.size_template(cx.arg(0))?);
                Ok(())
            },
        ),
        // For upstreams that always send the complete file: this server cuts out a single range, but not several ranges.
        Directive::scope(
            row("_force_ranges", Args::Flag, "Serves ranges of responses, even if the upstream does not support them.")
                .default("off"),
            |scope, cx| cx.flag(&mut conf::<F>(scope).force_ranges),
        ),
    ];

    /// Socket buffers of the kernel.
    pub(crate) const SOCKETS: &'static [Directive] = &[
        // A value disables the kernel's automatic sizing: useful for long fast connections, or for many connections.
        Directive::scope(
            row("_socket_rcvbuf", Args::Exactly(1), "Bytes of the kernel's receive buffer."),
            |scope, cx| socket_buffer(&mut conf::<F>(scope).upstream.socket_rcvbuf, cx),
        ),
        // Like `proxy_socket_rcvbuf`, for the other direction.
        Directive::scope(
            row("_socket_sndbuf", Args::Exactly(1), "Bytes of the kernel's send buffer."),
            |scope, cx| socket_buffer(&mut conf::<F>(scope).upstream.socket_sndbuf, cx),
        ),
    ];

    /// Directives that have an effect on FreeBSD only.
    pub(crate) const SEND_LOWAT: &'static [Directive] = &[
        // A FreeBSD option; see `send_lowat`.
        Directive::scope(
            row("_send_lowat", Args::Exactly(1), "Minimum free space in the socket buffer for a write.")
                .default("0")
                .state(Support::Idle("Linux has no such socket option")),
            |_, cx| {
                cx.size(&mut 0)?;
                cx.warn(format_args!("\"{}_send_lowat\" is not supported, ignored", F::DIRECTIVES));
                Ok(())
            },
        ),
    ];
}

/// Sets a size whose default depends on other sizes.
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
    // As in nginx, 0 leaves the size to the kernel.
    *field = (bytes > 0).then_some(bytes);
    Ok(())
}

/// Parses `off`, or an address with optional `transparent`. An address with variables is evaluated for each connection.
fn set_bind(conf: &mut Conf, cx: &mut Cx<'_>) -> Result<(), Error> {
    let text = cx.arg(0);
    let second = cx.statement.args.get(1).map(|word| word.text.as_str());
    if second.is_none() && text == "off" {
        conf.upstream.bind = None;
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
    conf.upstream.bind = Some(Bind { address, transparent });
    Ok(())
}

/// Parses an address with or without a port.
fn bind_address(text: &str) -> Option<SocketAddr> {
    let inside = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    match inside.parse() {
        Ok(ip) => Some(SocketAddr::new(ip, 0)),
        Err(_) => text.parse().ok(),
    }
}

/// The reasons for the bits of [`NEXT_UPSTREAM`](crate::passing::conf::NEXT_UPSTREAM), in order.
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

/// Sets the reasons; `off` overrides all other parameters.
fn set_next_upstream(
    names: &'static [(&'static str, u64)],
    conf: &mut Conf,
    cx: &mut Cx<'_>,
) -> Result<(), Error> {
    let bits = &mut conf.next_upstream;
    bits.add(names, cx)?;
    let chosen = REASONS.iter().enumerate().filter(|(number, _)| bits.has(1 << number));
    conf.upstream.next_upstream = match bits.has(NEXT_OFF) {
        true => NextUpstream::OFF,
        false => chosen.fold(NextUpstream::OFF, |all, (_, reason)| all | *reason),
    };
    Ok(())
}
