//! Directives about connections and about how requests are read.

use conf::value::{self, ValueError};
use conf::{Args, Error, Spec};

use crate::Directive;
use crate::http_core::core;
use site::config::{Cx, Scope};
use site::declaration::{LEVELS, OWN, SERVER_LEVELS};
use site::settings::keepalive::KeepaliveDisable;
use site::settings::keepalive::LingeringClose;
use transfer::received::BodyInFile;

pub(super) const DIRECTIVES: &[Directive] = &[
    // Connections.
    // Each argument is inherited separately, as in nginx: a block may set the first and inherit the second.
    Directive::scope(
        core(
            "keepalive_timeout",
            LEVELS,
            Args::Between(1, 2),
            "How long an idle connection stays open; the time in the field `Keep-Alive`.",
        )
        .default("75s"),
        set_keepalive_timeout,
    ),
    // A client may send a request just when its connection is closed; this reduces the race.
    Directive::scope(
        core(
            "keepalive_min_timeout",
            LEVELS,
            Args::Exactly(1),
            "How long an idle connection stays open even if connections are scarce or the worker is retired.",
        )
        .default("0"),
        |scope, cx| cx.milliseconds(&mut scope.core.keepalive.keepalive_min_timeout),
    ),
    // Regularly frees the memory that a connection has accumulated.
    Directive::scope(
        core("keepalive_requests", LEVELS, Args::Exactly(1), "Maximum number of requests of a connection.")
            .default("1000"),
        |scope, cx| cx.number(&mut scope.core.keepalive.keepalive_requests),
    ),
    // Makes even busy clients resolve a server's name again after a while.
    Directive::scope(
        core(
            "keepalive_time",
            LEVELS,
            Args::Exactly(1),
            "Age after which a connection closes with its next response.",
        )
        .default("1h"),
        |scope, cx| cx.milliseconds(&mut scope.core.keepalive.keepalive_time),
    ),
    // For browsers that fail on POST over keep-alive connections. They are rare by now, but the check is cheap.
    Directive::scope(
        core("keepalive_disable", LEVELS, Args::Between(1, 2), "Browsers without keep-alive connections.")
            .many()
            .default("msie6"),
        set_keepalive_disable,
    ),
    // If a connection is closed while unread bytes remain, the kernel resets it, and the client may lose the response
    // (RFC 9112 section 9.6).
    Directive::scope(
        core(
            "lingering_close",
            LEVELS,
            Args::Exactly(1),
            "Whether to read further data of a client before closing.",
        )
        .default("on"),
        |scope, cx| {
            const NAMES: &[(&str, LingeringClose)] = &[
                ("off", LingeringClose::Off),
                ("on", LingeringClose::On),
                ("always", LingeringClose::Always),
            ];
            cx.choice(&mut scope.core.keepalive.lingering_close, NAMES)
        },
    ),
    // A client that sends for longer than this does not read responses anyway.
    Directive::scope(
        core("lingering_time", LEVELS, Args::Exactly(1), "Maximum time of a lingering close.").default("30s"),
        |scope, cx| cx.milliseconds(&mut scope.core.keepalive.lingering_time),
    ),
    // The time to wait for one more packet; a round trip around the world takes a tenth of it.
    Directive::scope(
        core("lingering_timeout", LEVELS, Args::Exactly(1), "Maximum time between two reads of a lingering close.")
            .default("5s"),
        |scope, cx| cx.milliseconds(&mut scope.core.keepalive.lingering_timeout),
    ),
    // Otherwise the kernel retains unsent bytes for minutes (tcp(7), FIN-WAIT-1).
    Directive::scope(
        core(
            "reset_timedout_connection",
            LEVELS,
            Args::Flag,
            "Resets connections that timed out, which frees their memory immediately.",
        )
        .default("off"),
        |scope, cx| cx.flag(&mut scope.core.keepalive.reset_timedout_connection),
    ),
    // Header sections.
    // Applies to the complete header section: a client that sends a byte a minute must not hold a connection.
    Directive::scope(
        core(
            "client_header_timeout",
            SERVER_LEVELS,
            Args::Exactly(1),
            "Time within which a client must send a header section.",
        )
        .default("60s"),
        |scope, cx| cx.milliseconds(&mut scope.core.reading.client_header_timeout),
    ),
    // Most header sections fit. A waiting connection needs no buffer in this server, so the number is only a limit.
    Directive::scope(
        core(
            "client_header_buffer_size",
            SERVER_LEVELS,
            Args::Exactly(1),
            "Bytes of the first buffer for a header section.",
        )
        .default("1k"),
        |scope, cx| cx.size(&mut scope.core.reading.client_header_buffer_size),
    ),
    // Determines the longest line and the longest header section: 414 for the request line, 431 for the others.
    Directive::scope(
        core(
            "large_client_header_buffers",
            SERVER_LEVELS,
            Args::Exactly(2),
            "Number and bytes of further buffers for a header section; no line may be longer than a buffer.",
        )
        .default("4 8k"),
        |scope, cx| {
            scope.core.reading.large_client_header_buffers = cx.statement.buffers()?;
            Ok(())
        },
    ),
    // Each header field costs work in every module that searches for one.
    Directive::scope(
        core("max_headers", SERVER_LEVELS, Args::Exactly(1), "Maximum number of header fields of a request; more cause a 431.")
            .default("1000"),
        |scope, cx| cx.number(&mut scope.core.reading.max_headers),
    ),
    // On, as in nginx: field names with characters that no specification allows are not passed on.
    Directive::scope(
        core("ignore_invalid_headers", SERVER_LEVELS, Args::Flag, "Drops header fields with invalid names.")
            .default("on"),
        |scope, cx| cx.flag(&mut scope.core.reading.ignore_invalid_headers),
    ),
    // Off, because CGI maps names with underscores and names with dashes to the same variable.
    Directive::scope(
        core(
            "underscores_in_headers",
            SERVER_LEVELS,
            Args::Flag,
            "Allows underscores in names of header fields.",
        )
        .default("off"),
        |scope, cx| cx.flag(&mut scope.core.reading.underscores_in_headers),
    ),
    // For servers with known clients: every deviation from the specification gives 400.
    Directive::scope(
        Spec::new(
            OWN,
            "http_strict",
            SERVER_LEVELS,
            Args::Flag,
            "Rejects requests that nginx tolerates: invalid field names, several spaces in the request line, blanks and malformed extensions after a chunk's size.",
        )
        .default("off"),
        |scope, cx| cx.flag(&mut scope.core.reading.http_strict),
    ),
    // On, so that a request with two slashes cannot bypass a location with one.
    Directive::scope(
        core("merge_slashes", SERVER_LEVELS, Args::Flag, "Merges adjacent slashes of a URI into one.")
            .default("on"),
        |scope, cx| cx.flag(&mut scope.core.reading.merge_slashes),
    ),
    // Checked without effect, so that a configuration that nginx rejects is not accepted here.
    Directive::scope(
        core(
            "connection_pool_size",
            SERVER_LEVELS,
            Args::Exactly(1),
            "Bytes of a connection's first memory in nginx.",
        )
        .default("512")
        .state(conf::Support::Accepted("connections have no memory pool; the size is only checked")),
        |scope, cx| {
            cx.set(&mut scope.core.reading.connection_pool_size, pool_size).map_err(|error| pool_error(cx, error))
        },
    ),
    Directive::scope(
        core(
            "request_pool_size",
            SERVER_LEVELS,
            Args::Exactly(1),
            "Bytes of a request's first memory in nginx.",
        )
        .default("4k")
        .state(conf::Support::Accepted("requests have no memory pool; the size is only checked")),
        |_, cx| cx.set(&mut 0, pool_size).map_err(|error| pool_error(cx, error)),
    ),
    // Bodies. A body above the limit gives 413 before it is read.
    Directive::scope(
        core(
            "client_max_body_size",
            LEVELS,
            Args::Exactly(1),
            "Maximum bytes of a request body; 0 is no limit.",
        )
        .default("1m"),
        |scope, cx| cx.offset(&mut scope.core.reading.client_max_body_size),
    ),
    // Larger bodies are written to a file.
    Directive::scope(
        core(
            "client_body_buffer_size",
            LEVELS,
            Args::Exactly(1),
            "Maximum bytes of a request body in memory; a larger one is in a file.",
        )
        .default("16k"),
        |scope, cx| cx.size(&mut scope.core.reading.client_body_buffer_size),
    ),
    // Applies between two reads of the body, not to the complete body.
    Directive::scope(
        core("client_body_timeout", LEVELS, Args::Exactly(1), "How long to wait for more of a request body.")
            .default("60s"),
        |scope, cx| cx.milliseconds(&mut scope.core.reading.client_body_timeout),
    ),
    // Allows the choice of a location to depend on the body.
    Directive::scope(
        core(
            "client_body_early_read",
            SERVER_LEVELS,
            Args::AtLeast(1),
            "Reads the body before a location is chosen, when one of these texts is neither empty nor `0`.",
        )
        .many(),
        |scope, cx| {
            let texts: Result<Vec<_>, _> = cx.statement.texts().map(|text| cx.template(text)).collect();
            scope.core.reading.client_body_early_read.make_mut(cx.block).extend(texts?);
            Ok(())
        },
    ),
    // For debugging, and for programs that need a file.
    Directive::scope(
        core("client_body_in_file_only", LEVELS, Args::Exactly(1), "Writes every request body to a file.")
            .default("off"),
        |scope, cx| {
            const NAMES: &[(&str, BodyInFile)] =
                &[("off", BodyInFile::Off), ("on", BodyInFile::On), ("clean", BodyInFile::Clean)];
            cx.choice(&mut scope.core.body_files.in_file_only, NAMES)
        },
    ),
    // Several buffers would save a copy for some bodies, but all readers would have to support them.
    Directive::scope(
        core("client_body_in_single_buffer", LEVELS, Args::Flag, "Keeps a request body in one buffer.")
            .default("off")
            .state(conf::Support::Accepted("a body in memory is in one buffer; the flag is only checked")),
        |_, cx| cx.flag(&mut false),
    ),
    // Nested directories stay small, which helps file systems that search them linearly.
    Directive::scope(
        core(
            "client_body_temp_path",
            LEVELS,
            Args::Between(1, 4),
            "The directory of files with request bodies, and the digits of its subdirectory levels.",
        )
        .default("client_body_temp"),
        |scope, cx| {
            scope.core.body_files.temp_path = cx.temp_directory()?;
            Ok(())
        },
    ),
];

/// Sets both arguments. The second only sets the `Keep-Alive` header field, and may be longer than the first.
fn set_keepalive_timeout(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    cx.milliseconds(&mut scope.core.keepalive.keepalive_timeout)?;
    if cx.statement.args.len() > 1 {
        // In seconds, because the header field `Keep-Alive` counts in seconds.
        scope.core.keepalive.keepalive_header = Some(cx.statement.value(1, value::seconds)?);
    }
    Ok(())
}

/// Sets `keepalive_disable`. `none` has a separate bit so that duplicates are detected; it removes all others.
fn set_keepalive_disable(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    const NAMES: &[(&str, u64)] = &[("none", 1), ("msie6", 2), ("safari", 4)];
    // As in nginx a duplicate is a warning and no error.
    let bits = cx.statement.bits(NAMES, cx.warnings)?;
    let disable = &mut scope.core.keepalive.keepalive_disable;
    // Several directives in a block add up.
    let before = |flag: bool| flag && disable.block == cx.block;
    let (msie6, safari) = (before(disable.msie6) || bits & 2 != 0, before(disable.safari) || bits & 4 != 0);
    *disable = KeepaliveDisable { msie6, safari, block: cx.block };
    Ok(())
}

/// nginx's limits for memory pools, which a configuration valid in nginx satisfies.
const POOL_SIZE_MIN: u64 = 112;
const POOL_ALIGNMENT: u64 = 16;

/// Parses a size that nginx's allocator would accept.
fn pool_size(text: &str) -> Result<u64, ValueError> {
    match value::size(text)? {
        size if size < POOL_SIZE_MIN => Err(ValueError::TooSmall { min: POOL_SIZE_MIN }),
        size if size % POOL_ALIGNMENT != 0 => Err(ValueError::InvalidNumber),
        size => Ok(size),
    }
}

/// Returns nginx's separate message for an invalid pool size.
fn pool_error(cx: &Cx<'_>, error: Error) -> Error {
    match value::size(cx.arg(0)) {
        Ok(size) if size < POOL_SIZE_MIN => {
            cx.error(format_args!("the pool size must be no less than {POOL_SIZE_MIN}"))
        }
        Ok(_) => cx.error(format_args!("the pool size must be a multiple of {POOL_ALIGNMENT}")),
        Err(_) => error,
    }
}
