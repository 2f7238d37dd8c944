//! Directives of the core that select the clients with compressed responses, for `gzip`, `gunzip` and `gzip_static`.
//!
//! They are directives of the core, although only those modules use them, through [`exchange::accept_encoding`].
//! `gzip_vary` applies to the other codings too.

use std::sync::Arc;

use conf::{Args, Error, value};

use crate::Directive;
use crate::http_core::core;
use site::config::{Cx, Scope};
use site::declaration::LEVELS;
use site::settings::gzip_clients::Proxied;

pub(super) const DIRECTIVES: &[Directive] = &[
    // Clients of HTTP/1.0 do not support chunked coding, so their connections would have to be closed after a
    // compressed response.
    Directive::scope(
        core(
            "gzip_http_version",
            LEVELS,
            Args::Exactly(1),
            "The lowest HTTP version that gets compressed responses.",
        )
        .default("1.1"),
        |scope, cx| {
            cx.set(
                &mut scope.core.responding.gzip_clients.http_10,
                value::choice(&[("1.0", true), ("1.1", false)]),
            )
        },
    ),
    // A request with `Via` came through a proxy, which may serve the response to clients that do not accept gzip.
    Directive::scope(
        core("gzip_proxied", LEVELS, Args::AtLeast(1), "Responses that are compressed for proxied requests.")
            .many()
            .default("off"),
        set_proxied,
    ),
    Directive::scope(
        core(
            "gzip_vary",
            LEVELS,
            Args::Flag,
            "Sends \"Vary: Accept-Encoding\" if the response depends on it.",
        )
        .default("off"),
        |scope, cx| cx.flag(&mut scope.core.responding.gzip_clients.vary),
    ),
    // Patterns are case-insensitive and match anywhere in the field.
    Directive::scope(
        core(
            "gzip_disable",
            LEVELS,
            Args::AtLeast(1),
            "Patterns of User-Agent that get no compressed responses, or msie6 for old Internet Explorer.",
        )
        .many(),
        set_disable,
    ),
];

/// The parameters of `gzip_proxied`.
const PROXIED: &[(&str, u64)] = &[
    ("off", Proxied::OFF),
    ("expired", Proxied::EXPIRED),
    ("no-cache", Proxied::NO_CACHE),
    ("no-store", Proxied::NO_STORE),
    ("private", Proxied::PRIVATE),
    ("no_last_modified", Proxied::NO_LAST_MODIFIED),
    ("no_etag", Proxied::NO_ETAG),
    ("auth", Proxied::AUTH),
    ("any", Proxied::ANY),
];

/// Sets `gzip_proxied`; several directives in a block add up.
fn set_proxied(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let bits = cx.statement.bits(PROXIED, cx.warnings)?;
    let proxied = &mut scope.core.responding.gzip_clients.proxied;
    let before = if proxied.block == cx.block { proxied.bits } else { 0 };
    *proxied = Proxied { bits: before | bits, block: cx.block };
    Ok(())
}

fn set_disable(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    for text in cx.statement.texts() {
        // Either kind of argument drops the inherited patterns.
        let patterns = scope.core.responding.gzip_clients.disable.make_mut(cx.block);
        if text == "msie6" {
            scope.core.responding.gzip_clients.disable_msie6 = true;
            continue;
        }
        let pattern = Arc::new(cx.pattern(text, true)?);
        patterns.push(pattern);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded, warnings};
    use site::settings::gzip_clients::GzipClients;

    fn conf_of(http: &str) -> GzipClients {
        let config = loaded(http);
        config.http.locations.last().expect("there is a server").scope.core.responding.gzip_clients.clone()
    }

    #[test]
    fn gzip_proxied_values_are_combined_in_a_block_and_replace_inherited_ones() {
        assert!(conf_of("server {}").proxied.has(Proxied::OFF));
        let conf = conf_of("gzip_proxied any; server { gzip_proxied expired auth; gzip_proxied no_etag; }");
        let bits = Proxied::EXPIRED | Proxied::AUTH | Proxied::NO_ETAG;
        assert_eq!(conf.proxied.bits, bits);
        assert!(conf_of("gzip_proxied any; server { location / {} }").proxied.has(Proxied::ANY));
    }

    #[test]
    fn patterns_are_inherited_until_a_block_has_its_own() {
        let inherited = conf_of("gzip_disable a b; gzip_disable msie6; server { location / {} }");
        assert_eq!((inherited.disable.items().len(), inherited.disable_msie6), (2, true));
        assert!(inherited.disable.items()[0].is_match(b"xAx"), "without case");
        let own = conf_of("gzip_disable a b msie6; server { gzip_disable c; }");
        assert_eq!((own.disable.items().len(), own.disable_msie6), (1, true));
    }

    #[test]
    fn version_and_vary_are_inherited() {
        let conf = conf_of("gzip_http_version 1.0; gzip_vary on; server { location / {} }");
        assert!(conf.http_10 && conf.vary);
        let conf =
            conf_of("gzip_http_version 1.0; gzip_vary on; server { gzip_http_version 1.1; gzip_vary off; }");
        assert!(!conf.http_10 && !conf.vary);
    }

    #[test]
    fn wrong_values_are_refused() {
        for (text, expected) in [
            ("gzip_http_version 1.2;", "invalid value \"1.2\""),
            ("gzip_proxied some;", "invalid value \"some\""),
            (
                "gzip_vary yes;",
                "invalid value \"yes\" in \"gzip_vary\" directive, it must be \"on\" or \"off\"",
            ),
            ("gzip_disable (;", "pcre2_compile() failed: missing closing parenthesis in \"(\""),
        ] {
            let found = error(&format!("http {{\n{text} }}"));
            assert!(found.starts_with(&format!("{expected} in /conf/nginx.conf:2")), "{found}");
        }
        let found = warnings("http { gzip_proxied auth auth; }");
        assert!(found[0].contains("duplicate value \"auth\""), "{found:?}");
    }
}
