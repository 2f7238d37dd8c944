//! Directives that define servers and locations, and those that restrict access to them.

use conf::{Args, Contexts, Error, Support};

use crate::http_core::{core, listen};
use crate::{Directive, Walk};
use site::config::Cx;
use site::declaration::{LEVELS, NO_HASH};
use site::settings::listen::ServerDraft;
use site::settings::names::ServerName;

/// Returns a directive that is parsed and checked as usual, but has nothing to tune.
const fn tuning(name: &'static str, contexts: Contexts, default: &'static str) -> Directive {
    let spec = core(name, contexts, Args::Exactly(1), "Sizes one of nginx's hash tables.").default(default);
    Directive::scope(spec.state(Support::Accepted(NO_HASH)), |_, cx| cx.number(&mut 0))
}

pub(super) const DIRECTIVES: &[Directive] = &[
    // The order of servers matters twice: the first one of an address is its default, and regular expressions are tried
    // in order.
    Directive::walk(
        core("server", Contexts::HTTP, Args::None, "A server: addresses, names, locations.")
            .block(Contexts::SERVER)
            .many(),
        Walk::Server,
    ),
    // Port 80 needs root privileges, so without them nginx's default is 8000.
    Directive::server(
        core("listen", Contexts::SERVER, Args::AtLeast(1), "An address that the server is reached at.")
            .many()
            .default("*:80"),
        listen::read,
    ),
    // The empty name is a name too: it matches requests without a host.
    Directive::server(
        core(
            "server_name",
            Contexts::SERVER,
            Args::AtLeast(1),
            "Names of the server: exact, with a wildcard, or patterns.",
        )
        .many()
        .default("\"\""),
        add_names,
    ),
    // The arguments are parsed in `locations`, which also implements the search.
    Directive::walk(
        core(
            "location",
            Contexts::SERVER.or(Contexts::LOCATION),
            Args::Between(1, 2),
            "Settings for some URIs. `$variable` instead of a URI: settings for requests for which the variable is neither empty nor `0`.",
        )
        .block(Contexts::LOCATION)
        .many(),
        Walk::Location,
    ),
    // Not inherited; it is a separate location for the other methods.
    Directive::walk(
        core(
            "limit_except",
            Contexts::LOCATION,
            Args::AtLeast(1),
            "Other settings for all methods but these.",
        )
        .block(Contexts::LIMIT_EXCEPT),
        Walk::LimitExcept,
    ),
    // `internal` cannot be turned off again, so nested locations inherit it.
    Directive::scope(
        core(
            "internal",
            Contexts::LOCATION,
            Args::None,
            "Allows only internal requests, such as internal redirects and subrequests, in a location.",
        ),
        |scope, _| {
            scope.core.internal = true;
            Ok(())
        },
    ),
    // The phases combine the results of the access modules.
    Directive::scope(
        core("satisfy", LEVELS, Args::Exactly(1), "Whether all access checks must pass, or any of them.")
            .default("all"),
        |scope, cx| cx.choice(&mut scope.core.satisfy.any, &[("all", false), ("any", true)]),
    ),
    // Slows down password guessing: each wrong password costs the client time, but not the server.
    Directive::scope(
        core("auth_delay", LEVELS, Args::Exactly(1), "How long a 401 response is delayed.").default("0s"),
        |scope, cx| cx.milliseconds(&mut scope.core.satisfy.auth_delay),
    ),
    tuning("server_names_hash_bucket_size", Contexts::HTTP, "64"),
    tuning("server_names_hash_max_size", Contexts::HTTP, "512"),
    tuning("types_hash_bucket_size", LEVELS, "64"),
    tuning("types_hash_max_size", LEVELS, "1024"),
    tuning("variables_hash_bucket_size", Contexts::HTTP, "64"),
    tuning("variables_hash_max_size", Contexts::HTTP, "1024"),
];

/// Adds the names. Regular expressions are compiled here, so that errors are reported with their line.
pub(crate) fn add_names(draft: &mut ServerDraft, cx: &mut Cx<'_>) -> Result<(), Error> {
    for text in cx.statement.texts() {
        draft.names.push(server_name(text, cx)?.at(cx.statement.span()));
    }
    Ok(())
}

/// Parses an argument of `server_name`.
fn server_name(text: &str, cx: &mut Cx<'_>) -> Result<ServerName, Error> {
    let bare_wildcard = text.starts_with('*') && (text.len() < 3 || !text.starts_with("*."));
    if bare_wildcard || text == "." {
        return Err(cx.error(format_args!("server name \"{text}\" is invalid")));
    }
    if text.contains('/') {
        cx.warn(format_args!("server name \"{text}\" has suspicious symbols"));
    }
    if let Some(pattern) = text.strip_prefix('~') {
        if pattern.is_empty() {
            return Err(cx.error(format_args!("empty regex in server name \"{text}\"")));
        }
        // Hosts are in lower case, so a pattern with capitals is matched case-insensitively.
        let caseless = pattern.bytes().any(|byte| byte.is_ascii_uppercase());
        let compiled = cx.pattern(pattern, caseless)?;
        return Ok(ServerName::new(pattern.to_owned(), Some(compiled)));
    }
    let text = match text.eq_ignore_ascii_case("$hostname") {
        true => cx.http.hostname.clone(),
        false => text.to_ascii_lowercase(),
    };
    Ok(ServerName::new(text, None))
}
