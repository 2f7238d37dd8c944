//! Directives about the directories of files, the methods to send them, and the header fields of responses.

use conf::value;
use conf::{Args, Contexts, Error, Spec};
use http::conditional::IfModifiedSince;

use crate::Directive;
use crate::core::read_error_log;
use crate::http_core::core;
use site::config::{Cx, Scope};
use site::declaration::{LEVELS, LEVELS_AND_IF, OWN};
use site::settings::core::Core;
use site::settings::core::FoundBy;
use site::settings::files::Root;
use site::settings::responding::ErrorPage;
use site::settings::responding::ServerTokens;
use site::settings::types::Types;
use site::uses::FileUse;
use transfer::body::rules::Aio;

pub(super) const DIRECTIVES: &[Directive] = &[
    // Directories of files.
    // A path without a leading variable is made absolute once, here. A path with a leading variable is expanded per
    // request.
    Directive::scope(
        core("root", LEVELS_AND_IF, Args::Exactly(1), "The directory of files; URIs are appended to it.")
            .default("html"),
        |scope, cx| set_root(scope, cx, false),
    ),
    // In a regular-expression location the alias replaces the complete URI, so it needs the groups of the regular
    // expression.
    Directive::scope(
        core(
            "alias",
            Contexts::LOCATION,
            Args::Exactly(1),
            "The directory that replaces the location's prefix.",
        ),
        |scope, cx| set_root(scope, cx, true),
    ),
    // nginx follows links anywhere, so this is off; openat2(2) with RESOLVE_BENEATH implements it.
    Directive::scope(
        Spec::new(OWN, "root_beneath", LEVELS, Args::Flag, "Never follows a symbolic link out of the root.")
            .default("off"),
        |scope, cx| {
            cx.flag(&mut scope.core.files.opening.beneath)?;
            // The root of an outer block may still be replaced.
            if scope.core.files.root_block == cx.block {
                warn_of_refused_root(&scope.core, cx);
            }
            Ok(())
        },
    ),
    // The default is three types, as in nginx; larger sites include a file of types.
    Directive::scope(
        core("types", LEVELS, Args::None, "Media types by file extension.").raw().many(),
        |scope, cx| Types::read(&mut scope.core.files.types, cx.block, cx.statement, cx.warnings),
    ),
    // nginx's default: a browser displays it and does not execute it.
    Directive::scope(
        core(
            "default_type",
            LEVELS,
            Args::Exactly(1),
            "The media type of files with an unknown extension.",
        )
        .default("text/plain"),
        |scope, cx| {
            scope.core.files.default_type = cx.arg(0).into();
            Ok(())
        },
    ),
    // Methods to send files. An unset `sendfile` differs from `off`: long files then use sendfile unless `aio` or
    // `directio` is set. `body::choose` combines the settings.
    Directive::scope(
        core(
            "sendfile",
            LEVELS_AND_IF,
            Args::Flag,
            "Sends files with sendfile(2), without copying. If `sendfile`, `aio` and `directio` are not set, only files of at least 64k.",
        ),
        |scope, cx| {
            let mut on = false;
            cx.flag(&mut on)?;
            scope.core.sending.sendfile = Some(on);
            Ok(())
        },
    ),
    // A fast client must not monopolise a thread: after this many bytes other connections get their turn.
    Directive::scope(
        core(
            "sendfile_max_chunk",
            LEVELS,
            Args::Exactly(1),
            "Maximum bytes of a sendfile call, which never sends more than 1m; 0 sets no other limit.",
        )
        .default("2m"),
        |scope, cx| cx.size(&mut scope.core.sending.sendfile_max_chunk),
    ),
    // An unset `aio` differs from `off`: without it the best engine reads; with `off` the thread itself reads and
    // blocks.
    Directive::scope(
        core(
            "aio",
            LEVELS,
            Args::Exactly(1),
            "The disk engine: on, off, threads, threads=pool, libaio or io_uring; by default the best one.",
        ),
        set_aio,
    ),
    // A thread of this server must never block on a write, so there is no choice.
    Directive::scope(
        core("aio_write", LEVELS, Args::Flag, "Writes files through the disk engine as well.")
            .default("off")
            .state(conf::Support::Accepted("files are always written through the disk engine")),
        |_, cx| cx.flag(&mut false),
    ),
    // The chunk is the size of a disk read; large chunks suit large files on spinning or remote disks.
    Directive::scope(
        Spec::new(
            OWN,
            "aio_sendfile",
            LEVELS,
            Args::Exactly(1),
            "Reads files into shared memory, this many bytes at once, and sends them from there with sendfile.",
        )
        .default("off"),
        |scope, cx| {
            let off = cx.arg(0).eq_ignore_ascii_case("off");
            scope.core.sending.aio_sendfile = if off { None } else { Some(chunk(cx)?) };
            Ok(())
        },
    ),
    // Otherwise large files that are read once would evict small ones from the page cache.
    Directive::scope(
        core(
            "directio",
            LEVELS,
            Args::Exactly(1),
            "Reads files of at least this size bypassing the page cache (O_DIRECT).",
        )
        .default("off"),
        |scope, cx| {
            scope.core.sending.directio =
                if cx.arg(0) == "off" { None } else { Some(cx.statement.value(0, value::offset)?) };
            Ok(())
        },
    ),
    // nginx reads the unaligned start of a range without O_DIRECT, so there a small alignment reduces such reads.
    Directive::scope(
        core("directio_alignment", LEVELS, Args::Exactly(1), "Bytes that direct reads are aligned to.")
            .default("512")
            .state(conf::Support::Accepted("direct reads are aligned to 4096 bytes, which suits disks with sectors of 512 and of 4096 bytes")),
        |_, cx| cx.offset(&mut 0),
    ),
    // nginx reads 32k at a time; here the size depends on the file, which saves system calls.
    Directive::scope(
        Spec::new(
            "http_copy",
            "output_buffers",
            LEVELS,
            Args::Exactly(2),
            "Number and bytes of the buffers that a file is read into; by default the engine chooses.",
        ),
        |scope, cx| {
            scope.core.sending.output_buffers = Some(cx.statement.buffers()?);
            Ok(())
        },
    ),
    // As in nginx this is a hint to the kernel, once per file.
    Directive::scope(
        core(
            "read_ahead",
            LEVELS,
            Args::Exactly(1),
            "Any value except 0 increases the kernel's readahead for files above 128k; as in nginx, the number has no effect.",
        )
        .default("0"),
        |scope, cx| cx.size(&mut scope.core.sending.read_ahead),
    ),
    // Saves a packet for each response; it matters with sendfile, where header section and body are two calls.
    Directive::scope(
        core(
            "tcp_nopush",
            LEVELS,
            Args::Flag,
            "Fills packets: the header section is sent together with the start of the file.",
        )
        .default("off"),
        |scope, cx| cx.flag(&mut scope.core.sending.tcp_nopush),
    ),
    // A complete response must not wait for the acknowledgement of the preceding packet.
    Directive::scope(
        core("tcp_nodelay", LEVELS, Args::Flag, "Sends small packets immediately: on keep-alive connections, in tunnels, if a body pauses.").default("on"),
        |scope, cx| cx.flag(&mut scope.core.sending.tcp_nodelay),
    ),
    // Applies between two successful writes, not to the complete response: slow clients may take any time as long as
    // they make progress.
    Directive::scope(
        core(
            "send_timeout",
            LEVELS,
            Args::Exactly(1),
            "How long to wait until a client accepts more of a response.",
        )
        .default("60s"),
        |scope, cx| cx.milliseconds(&mut scope.core.sending.send_timeout),
    ),
    // FreeBSD supports this directive. Configurations for FreeBSD can be loaded too.
    Directive::scope(
        core("send_lowat", LEVELS, Args::Exactly(1), "Minimum free space in the socket for a write.")
            .default("0")
            .state(conf::Support::Idle("Linux has no such socket option")),
        |scope, cx| {
            cx.size(&mut scope.core.sending.send_lowat)?;
            if scope.core.sending.send_lowat > 0 {
                cx.warn("\"send_lowat\" is not supported, ignored");
            }
            Ok(())
        },
    ),
    Directive::scope(
        core(
            "postpone_output",
            LEVELS,
            Args::Exactly(1),
            "Bytes to collect before a send, while a page waits for a subrequest.",
        )
        .default("0")
        .state(conf::Support::Differs("its default is 0: available bytes are sent together, without waiting for more")),
        |scope, cx| {
            let mut bytes = 0;
            cx.size(&mut bytes)?;
            scope.core.sending.postpone_output = usize::try_from(bytes).unwrap_or(usize::MAX);
            Ok(())
        },
    ),
    // The value may depend on the request, so only constants are checked here.
    Directive::scope(
        core(
            "limit_rate",
            LEVELS_AND_IF,
            Args::Exactly(1),
            "Maximum rate of a response in bytes per second; 0 is no limit.",
        )
        .default("0"),
        |scope, cx| {
            scope.core.limit_rate = Some(cx.size_template(cx.arg(0))?);
            Ok(())
        },
    ),
    // For players that need the start of a film immediately.
    Directive::scope(
        core(
            "limit_rate_after",
            LEVELS_AND_IF,
            Args::Exactly(1),
            "Bytes of a response that are sent before `limit_rate` applies.",
        )
        .default("0"),
        |scope, cx| {
            scope.core.limit_rate_after = Some(cx.size_template(cx.arg(0))?);
            Ok(())
        },
    ),
    // Responses. The first `error_page` in a block replaces the inherited error pages, further `error_page` directives add
    // to it.
    Directive::scope(
        core("error_page", LEVELS_AND_IF, Args::AtLeast(2), "The URI that is shown for some statuses.")
            .many(),
        add_error_pages,
    ),
    // Off, because a missing error page would lead to an endless loop.
    Directive::scope(
        core("recursive_error_pages", LEVELS, Args::Flag, "Lets an error page lead to another one.")
            .default("off"),
        |scope, cx| cx.flag(&mut scope.core.responding.recursive_error_pages),
    ),
    // On as in nginx. A text may have variables, so it is rendered for each response.
    Directive::scope(
        core(
            "server_tokens",
            LEVELS,
            Args::Exactly(1),
            "Whether responses contain the version; a quoted text replaces all of it.",
        )
        .default("on"),
        set_server_tokens,
    ),
    // Derived from time and size, as in nginx, so that cached copies stay valid when servers are replaced.
    Directive::scope(
        core("etag", LEVELS, Args::Flag, "Sends entity tags of files.").default("on"),
        |scope, cx| cx.flag(&mut scope.core.responding.etag),
    ),
    // Exact, because a file that was restored to an older state must be sent again.
    Directive::scope(
        core(
            "if_modified_since",
            LEVELS,
            Args::Exactly(1),
            "How `If-Modified-Since` is compared. If the directive is not set: `before` for responses of a cache.",
        )
        .default("exact"),
        |scope, cx| {
            const NAMES: &[(&str, Option<IfModifiedSince>)] = &[
                ("off", Some(IfModifiedSince::Off)),
                ("exact", Some(IfModifiedSince::Exact)),
                ("before", Some(IfModifiedSince::Before)),
            ];
            cx.choice(&mut scope.core.responding.if_modified_since, NAMES)
        },
    ),
    // Without it the range filter's built-in limit applies against requests with thousands of ranges.
    Directive::scope(
        core("max_ranges", LEVELS, Args::Exactly(1), "Maximum ranges of a request; 0 ignores `Range`."),
        |scope, cx| cx.set(&mut scope.core.responding.max_ranges, |text| value::number(text).map(Some)),
    ),
    // Off is for HTTP/1.1 clients that cannot decode chunked coding; their bodies end with the connection.
    Directive::scope(
        core("chunked_transfer_encoding", LEVELS, Args::Flag, "Sends bodies of unknown length in chunks.")
            .default("on"),
        |scope, cx| cx.flag(&mut scope.core.responding.chunked_transfer_encoding),
    ),
    // Relative redirects are shorter and correct behind any proxy, but nginx's default is absolute.
    Directive::scope(
        core("absolute_redirect", LEVELS, Args::Flag, "Puts scheme and host into redirects.").default("on"),
        |scope, cx| cx.flag(&mut scope.core.responding.absolute_redirect),
    ),
    // Off, because the client can reach the name that it has used.
    Directive::scope(
        core(
            "server_name_in_redirect",
            LEVELS,
            Args::Flag,
            "Uses the first server name in redirects, not the client's.",
        )
        .default("off"),
        |scope, cx| cx.flag(&mut scope.core.responding.server_name_in_redirect),
    ),
    // Off is for servers behind a proxy that listens on another port.
    Directive::scope(
        core("port_in_redirect", LEVELS, Args::Flag, "Puts the port into redirects.").default("on"),
        |scope, cx| cx.flag(&mut scope.core.responding.port_in_redirect),
    ),
    // Old Internet Explorers replace short error pages with their own.
    Directive::scope(
        core("msie_padding", LEVELS, Args::Flag, "Makes error pages long enough for old browsers.")
            .default("on"),
        |scope, cx| cx.flag(&mut scope.core.responding.msie.padding),
    ),
    // Old Internet Explorers do not follow some redirects.
    Directive::scope(
        core("msie_refresh", LEVELS, Args::Flag, "Redirects old browsers by an HTML page.").default("off"),
        |scope, cx| cx.flag(&mut scope.core.responding.msie.refresh),
    ),
    // Off keeps the error log readable if missing files are expected.
    Directive::scope(
        core("log_not_found", LEVELS, Args::Flag, "Logs missing files as errors.").default("on"),
        |scope, cx| cx.flag(&mut scope.core.responding.log_not_found),
    ),
    // Subrequests are logged with their own URI, in the format of their location.
    Directive::scope(
        core("log_subrequest", LEVELS, Args::Flag, "Logs subrequests to the access log.").default("off"),
        |scope, cx| cx.flag(&mut scope.core.subrequests.log),
    ),
    // Lines go to the targets of the innermost block with an `error_log` only.
    Directive::scope(
        core(
            "error_log",
            LEVELS,
            Args::AtLeast(1),
            "Target of error messages, their minimum level (`debug` traces each request), and `format=json` for JSON lines.",
        )
        .many(),
        |scope, cx| read_error_log(&mut scope.core.error_log, cx),
    ),
    // Such responses use server memory for each client; values that pages store in a variable are small.
    Directive::scope(
        core(
            "subrequest_output_buffer_size",
            LEVELS,
            Args::Exactly(1),
            "Maximum bytes of a subrequest's response in memory.",
        )
        .default("4k"),
        |scope, cx| cx.size(&mut scope.core.subrequests.output_buffer_size),
    ),
    // The connection is busy until the subrequest ends, as in nginx.
    Directive::scope(
        core(
            "post_action",
            LEVELS_AND_IF,
            Args::Exactly(1),
            "A URI or named location that runs after the response; its own response is dropped.",
        ),
        |scope, cx| {
            scope.core.subrequests.post_action = Some(cx.arg(0).into());
            Ok(())
        },
    ),
];

/// Sets `root` or `alias`, which exclude each other in one block. Records how the location is found, because an alias
/// replaces the matched prefix.
fn set_root(scope: &mut Scope, cx: &mut Cx<'_>, alias: bool) -> Result<(), Error> {
    let core = &mut scope.core;
    let name = if alias { "alias" } else { "root" };
    let before = if matches!(core.files.root, Root::Alias(_)) { "alias" } else { "root" };
    // In nested blocks both directives may be used, in one block they contradict each other.
    if core.files.root_block == cx.block {
        let message =
            format_args!("\"{name}\" directive is duplicate, \"{before}\" directive was specified earlier");
        return Err(cx.error(message));
    }
    // A named location has no prefix or pattern that an alias could replace.
    if alias && core.found_by == FoundBy::Name {
        return Err(cx.error("the \"alias\" directive cannot be used inside the named location"));
    }
    let text = cx.arg(0);
    // The value of either variable would depend on itself.
    for variable in ["document_root", "realpath_root"] {
        if text.contains(&format!("${variable}")) || text.contains(&format!("${{{variable}}}")) {
            let message = format_args!("the ${variable} variable cannot be used in the \"{name}\" directive");
            return Err(cx.error(message));
        }
    }
    core.files.root_block = cx.block;
    core.files.root_position = Some(cx.statement.span().clone());
    // A trailing slash of a root would be doubled, because each URI begins with a slash. An alias is used as written,
    // because it replaces a prefix.
    core.files.root = match alias {
        true => Root::Alias(cx.path_template(text, FileUse::Read)?),
        false => Root::Root(cx.path_template(
            text.strip_suffix('/').filter(|text| !text.is_empty()).unwrap_or(text),
            FileUse::Read,
        )?),
    };
    warn_of_refused_root(core, cx);
    if alias {
        core.files.by_pattern = core.found_by == FoundBy::Pattern;
        if let FoundBy::Exact(prefix) | FoundBy::Prefix(prefix) = &core.found_by {
            core.files.location_prefix = prefix.clone();
        }
        warn_of_escape(core, cx);
    }
    Ok(())
}

/// Warns of a root with variables and `root_beneath`, which may stand in either order.
fn warn_of_refused_root(core: &Core, cx: &mut Cx<'_>) {
    if core.files.opening.beneath && core.files.root.template().constant().is_none() {
        let name = if matches!(core.files.root, Root::Alias(_)) { "alias" } else { "root" };
        cx.warn(format_args!("\"root_beneath\" refuses all files of a \"{name}\" with variables"));
    }
}

/// Warns of an alias that URIs can leave: `/files../x` is the file `/data/../x` with `location /files` and `alias /data/`.
fn warn_of_escape(core: &Core, cx: &mut Cx<'_>) {
    if let FoundBy::Prefix(prefix) = &core.found_by
        && !prefix.ends_with('/')
        && cx.arg(0).ends_with('/')
        && cx.arg(0) != "/"
        && !core.files.opening.beneath
    {
        cx.warn(format_args!(
            "\"alias\" ends with a slash and location \"{prefix}\" does not: \"{prefix}../\" is outside of the alias"
        ));
    }
}

/// Sets `aio`. Pools are numbered by first use; whether they exist is checked after the complete configuration was
/// read.
fn set_aio(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let text = cx.arg(0);
    scope.core.sending.aio = match text {
        "on" => Aio::On,
        "off" => Aio::Off,
        "io_uring" => Aio::Uring,
        "libaio" => Aio::Libaio,
        "threads" => Aio::Threads(0),
        _ => {
            let pool = text.strip_prefix("threads=").filter(|pool| !pool.is_empty());
            let pool = pool.ok_or_else(|| cx.invalid(text))?;
            // nginx allows variables, for which the pool would be looked up per request.
            if pool.contains('$') {
                return Err(cx.not_supported(text));
            }
            let number = cx.http.pools.number(pool, cx.statement.span().clone());
            Aio::Threads(number.ok_or_else(|| cx.error("more than 256 thread pools are used"))?)
        }
    };
    Ok(())
}

/// Minimum chunk size in bytes: less than a page would need more calls than it saves copies.
const CHUNK_MIN: u64 = 4096;

/// Parses a chunk size.
fn chunk(cx: &Cx<'_>) -> Result<u64, Error> {
    match cx.statement.value(0, value::size)? {
        bytes if bytes < CHUNK_MIN => {
            Err(cx.error(format_args!("value must be equal to or greater than {CHUNK_MIN}")))
        }
        bytes => Ok(bytes),
    }
}

/// Sets `server_tokens`: `on`, `off`, `build`, or a custom text, which open-source nginx does not accept.
fn set_server_tokens(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    // A separate type, because a custom text is no keyword of a list.
    const NAMES: &[(&str, Tokens)] = &[("off", Tokens::Off), ("on", Tokens::On), ("build", Tokens::Build)];
    #[derive(Clone, Copy)]
    enum Tokens {
        Off,
        On,
        Build,
    }
    let text = cx.arg(0);
    scope.core.responding.server_tokens = match cx.statement.value(0, value::choice(NAMES)) {
        Ok(Tokens::Off) => ServerTokens::Off,
        Ok(Tokens::On) => ServerTokens::On,
        Ok(Tokens::Build) => ServerTokens::Build,
        // An unquoted text without variables is probably a typo and not a signature.
        Err(_) if cx.statement.args[0].quoted || text.contains('$') => ServerTokens::Text(cx.template(text)?),
        Err(error) => return Err(error),
    };
    Ok(())
}

/// Parses `error_page code … [=[response]] uri`.
fn add_error_pages(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let texts: Vec<&str> = cx.statement.texts().collect();
    let (uri, mut codes) = texts.split_last().expect("the table promises two arguments");
    // An `=` before the URI: the status that the client receives, or with an empty value that of the page.
    let mut overwrite = None;
    if let Some((last, before)) = codes.split_last()
        && let Some(code) = last.strip_prefix('=')
    {
        let wrong = || cx.error(format_args!("invalid value \"{last}\""));
        if before.is_empty() {
            return Err(wrong());
        }
        let code = if code.is_empty() { Some(0) } else { code.parse().ok() };
        overwrite = Some(code.ok_or_else(wrong)?);
        codes = before;
    }
    let target = cx.template(uri)?;
    for &text in codes {
        let status = status_of_page(text, cx)?;
        // nginx's own codes from 494 on are sent as 400.
        let hidden = matches!(status, 494..=497).then_some(400);
        let page = ErrorPage { status, overwrite: overwrite.or(hidden), target: target.clone() };
        scope.core.responding.error_pages.make_mut(cx.block).push(page);
    }
    Ok(())
}

/// Parses a status. 499 means that the client closed the connection, so its page would never be sent.
fn status_of_page(text: &str, cx: &Cx<'_>) -> Result<u16, Error> {
    match value::number(text) {
        Ok(499) | Err(_) => Err(cx.error(format_args!("invalid value \"{text}\""))),
        Ok(status) if (300..=599).contains(&status) => Ok(status as u16),
        Ok(_) => Err(cx.error(format_args!("value \"{text}\" must be between 300 and 599"))),
    }
}
