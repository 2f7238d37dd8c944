//! Caches of responses: keys, cookies, and what is never stored.

use crate::model::{At, Model};
use crate::rule::Level::{Error, Note, Warning};
use crate::rule::{Findings, Rule};
use crate::text;

/// Protocols with a cache.
const KINDS: [&str; 5] = ["proxy", "fastcgi", "uwsgi", "scgi", "grpc"];

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "cache-key-without-host",
        level: Error,
        what: "The key of a cache has no host, and several hosts use the cache.",
        why: "Responses of one site are then served to clients of another one.",
        mend: "Begin the key with `$scheme$host`, or use a zone for each server.",
        bad: "proxy_cache_path c keys_zone=z:1m; server { server_name a.example b.example; location / { proxy_cache z; proxy_cache_key $request_uri; proxy_pass http://127.0.0.1:1; } }",
        good: "proxy_cache_path c keys_zone=z:1m; server { server_name a.example b.example; location / { proxy_cache z; proxy_cache_key $host$request_uri; proxy_pass http://127.0.0.1:1; } }",
        check: key_without_host,
    },
    Rule {
        name: "cached-cookies",
        level: Error,
        what: "Responses with `Set-Cookie` are stored with their cookies.",
        why: "With `proxy_ignore_headers Set-Cookie` such responses are stored. Without `proxy_hide_header Set-Cookie` all clients get \
              the cookie, often a session, of the first one.",
        mend: "Add `proxy_hide_header Set-Cookie;`, or do not ignore the field.",
        bad: "proxy_cache_path c keys_zone=z:1m; server { location / { proxy_cache z; proxy_ignore_headers Set-Cookie; proxy_pass http://127.0.0.1:1; } }",
        good: "proxy_cache_path c keys_zone=z:1m; server { location / { proxy_cache z; proxy_ignore_headers Set-Cookie; proxy_hide_header Set-Cookie; proxy_pass http://127.0.0.1:1; } }",
        check: cached_cookies,
    },
    Rule {
        name: "cache-ignores-private",
        level: Warning,
        what: "A cache ignores `Cache-Control` of the upstream.",
        why: "Responses that the application marks as `private` or `no-store` are stored and served to other clients.",
        mend: "Let the application set `Cache-Control`, or bypass the cache for requests with a session (`proxy_cache_bypass`, `proxy_no_cache`).",
        bad: "proxy_cache_path c keys_zone=z:1m; server { location / { proxy_cache z; proxy_ignore_headers Cache-Control; proxy_pass http://127.0.0.1:1; } }",
        good: "proxy_cache_path c keys_zone=z:1m; server { location / { proxy_cache z; proxy_ignore_headers Cache-Control; proxy_no_cache $cookie_session; proxy_pass http://127.0.0.1:1; } }",
        check: ignores_private,
    },
    Rule {
        name: "cache-key-without-query",
        level: Warning,
        what: "The key of a cache has the path without the query.",
        why: "`?page=1` and `?page=2` are one entry: the second client gets the page of the first one.",
        mend: "Use `$request_uri`, or add `$is_args$args`.",
        bad: "proxy_cache_path c keys_zone=z:1m; server { location / { proxy_cache z; proxy_cache_key $host$uri; proxy_pass http://127.0.0.1:1; } }",
        good: "proxy_cache_path c keys_zone=z:1m; server { location / { proxy_cache z; proxy_cache_key $host$uri$is_args$args; proxy_pass http://127.0.0.1:1; } }",
        check: key_without_query,
    },
    Rule {
        name: "cache-post-without-body",
        level: Error,
        what: "Responses to POST are cached, and the key has no body.",
        why: "All requests to the path get the response to the first body.",
        mend: "Remove `POST` from `proxy_cache_methods`, or add `$request_body` to the key.",
        bad: "proxy_cache_path c keys_zone=z:1m; server { location / { proxy_cache z; proxy_cache_methods GET POST; proxy_pass http://127.0.0.1:1; } }",
        good: "proxy_cache_path c keys_zone=z:1m; server { location / { proxy_cache z; proxy_cache_methods GET HEAD; proxy_pass http://127.0.0.1:1; } }",
        check: post_without_body,
    },
    Rule {
        name: "cache-without-buffering",
        level: Error,
        what: "A cache stores nothing with `proxy_buffering off`.",
        why: "Only buffered responses are stored.",
        mend: "Remove `proxy_buffering off`.",
        bad: "proxy_cache_path c keys_zone=z:1m; server { location / { proxy_cache z; proxy_buffering off; proxy_pass http://127.0.0.1:1; } }",
        good: "proxy_cache_path c keys_zone=z:1m; server { location / { proxy_cache z; proxy_buffering on; proxy_pass http://127.0.0.1:1; } }",
        check: |model, found| {
            for (kind, at) in caches(model) {
                let name = format!("{kind}_buffering");
                let off =
                    at.here_and_above().flat_map(|block| block.children()).find(|child| child.name() == name);
                if let Some(off) = off.filter(|off| off.arg(0) == "off") {
                    found.add(
                        off,
                        format_args!("\"{kind}_cache\" stores only buffered responses"),
                        "remove this directive",
                    );
                }
            }
        },
    },
    Rule {
        name: "cache-errors-long",
        level: Warning,
        what: "`proxy_cache_valid any` stores errors as long as other responses.",
        why: "A short failure of the application is then served for the complete time.",
        mend: "Name the statuses: `proxy_cache_valid 200 301 1h; proxy_cache_valid 404 1m;`.",
        bad: "server { proxy_cache_valid any 1h; }",
        good: "server { proxy_cache_valid 200 1h; proxy_cache_valid any 1m; }",
        check: |model, found| {
            for at in model.all().filter(|at| at.name().ends_with("_cache_valid") && at.has("any")) {
                let time = at.last();
                let is_short = time.ends_with("ms")
                    || time.ends_with('s')
                    || time.bytes().all(|byte| byte.is_ascii_digit())
                    || matches!(time, "1m" | "2m" | "3m" | "4m" | "5m");
                if !is_short {
                    found.add(
                        at,
                        format_args!("errors are served for {time}"),
                        "name the statuses, and use a short time for \"any\"",
                    );
                }
            }
        },
    },
    Rule {
        name: "unused-zone",
        level: Note,
        what: "A zone of a cache or a limit is defined and never used.",
        why: "The limit or the cache has no effect; often the name or the second directive is missing.",
        mend: "Add the directive that uses the zone, or remove it.",
        bad: "limit_req_zone $binary_remote_addr zone=a:1m rate=1r/s; server { location / { return 204; } }",
        good: "limit_req_zone $binary_remote_addr zone=a:1m rate=1r/s; server { limit_req zone=a; }",
        check: unused_zone,
    },
];

/// Returns the directives that enable a cache, with their protocol.
fn caches<'m, 't>(model: &'m Model<'t>) -> Vec<(&'static str, At<'m, 't>)> {
    let mut found = Vec::new();
    for kind in KINDS {
        let name = format!("{kind}_cache");
        found.extend(model.all().filter(|at| at.name() == name && at.arg(0) != "off").map(|at| (kind, at)));
    }
    found
}

/// Returns the setting of a protocol that is in effect where a cache is enabled.
fn beside<'m, 't>(at: At<'m, 't>, kind: &str, name: &str) -> Vec<At<'m, 't>> {
    let name = format!("{kind}_{name}");
    let of = |block: At<'m, 't>| block.children().filter(|child| child.name() == name).collect::<Vec<_>>();
    at.above().map(of).find(|found| !found.is_empty()).unwrap_or_default()
}

fn key_without_host(model: &Model<'_>, found: &mut Findings<'_>) {
    const HOSTS: [&str; 7] =
        ["host", "http_host", "server_name", "proxy_host", "hostname", "server_addr", "request"];
    let caches = caches(model);
    for (kind, at) in &caches {
        let keys = beside(*at, kind, "cache_key");
        let Some(key) = keys.last().copied() else { continue };
        let names = text::variables(key.arg(0));
        // A variable of `map` or `set` may contain the host.
        let is_known = |name: &&str| {
            text::is_of_client(name)
                || matches!(
                    *name,
                    "scheme" | "request_method" | "is_args" | "request_body" | "slice_range" | "https"
                )
        };
        if names.iter().any(|name| HOSTS.contains(name) || !is_known(name)) {
            continue;
        }
        let zone = at.arg(0);
        let servers: Vec<_> = caches
            .iter()
            .filter(|(_, other)| other.arg(0) == zone)
            .map(|(_, other)| other.server())
            .collect();
        let is_shared =
            servers.iter().any(|server| *server != servers[0]) || servers.iter().any(Option::is_none);
        let names_of = |server: At<'_, '_>| {
            let names: Vec<&str> = server.own("server_name").flat_map(At::args).collect();
            names.len() > 1 || names.iter().any(|name| name.contains(['*', '~']) || name.starts_with('.'))
        };
        if is_shared || at.server().is_some_and(names_of) {
            let written = key.arg(0);
            found.add(
                key,
                format_args!("\"{written}\" is the same key for all hosts that use the cache {zone}"),
                format_args!("write \"$scheme$host{written}\""),
            );
        }
    }
}

fn ignores<'m, 't>(at: At<'m, 't>, kind: &str, field: &str) -> Option<At<'m, 't>> {
    let directives = beside(at, kind, "ignore_headers");
    directives.into_iter().find(|directive| directive.args().any(|arg| arg.eq_ignore_ascii_case(field)))
}

fn cached_cookies(model: &Model<'_>, found: &mut Findings<'_>) {
    for (kind, at) in caches(model) {
        let Some(ignoring) = ignores(at, kind, "Set-Cookie") else { continue };
        let hides = beside(at, kind, "hide_header")
            .iter()
            .any(|field| field.arg(0).eq_ignore_ascii_case("Set-Cookie"));
        if !hides {
            found.add(
                ignoring,
                "the cookie of the first client is stored and sent to all others",
                format_args!("add \"{kind}_hide_header Set-Cookie;\""),
            );
        }
    }
}

fn ignores_private(model: &Model<'_>, found: &mut Findings<'_>) {
    for (kind, at) in caches(model) {
        let Some(ignoring) = ignores(at, kind, "Cache-Control") else { continue };
        if beside(at, kind, "no_cache").is_empty() {
            found.add(
                ignoring,
                "responses with \"private\" or \"no-store\" are stored and sent to other clients",
                format_args!(
                    "remove Cache-Control here, or add \"{kind}_no_cache\" with the cookie of the session"
                ),
            );
        }
    }
}

fn key_without_query(model: &Model<'_>, found: &mut Findings<'_>) {
    for (kind, at) in caches(model) {
        let Some(key) = beside(at, kind, "cache_key").last().copied() else { continue };
        let names = text::variables(key.arg(0));
        let has_path = names.iter().any(|name| text::is_decoded_path(name));
        let has_query = names.iter().any(|name| {
            matches!(*name, "args" | "query_string" | "request_uri" | "request") || name.starts_with("arg_")
        });
        let is_only_path = names.iter().all(|name| {
            text::is_decoded_path(name)
                || matches!(
                    *name,
                    "scheme" | "host" | "http_host" | "proxy_host" | "request_method" | "server_name"
                )
        });
        if has_path && !has_query && is_only_path {
            found.add(
                key,
                "requests with different queries are one entry",
                "add $is_args$args, or use $request_uri",
            );
        }
    }
}

fn post_without_body(model: &Model<'_>, found: &mut Findings<'_>) {
    for (kind, at) in caches(model) {
        let methods = beside(at, kind, "cache_methods");
        let Some(methods) = methods.into_iter().find(|methods| methods.has("POST")) else { continue };
        let keys = beside(at, kind, "cache_key");
        let has_body = keys.iter().any(|key| {
            text::variables(key.arg(0)).iter().any(|name| {
                name.contains("body")
                    || !text::is_of_client(name)
                        && !matches!(*name, "scheme" | "host" | "proxy_host" | "request_method")
            })
        });
        if !has_body {
            found.add(
                methods,
                "all bodies to a path get the response to the first one",
                "remove POST, or add $request_body to the key",
            );
        }
    }
}

fn unused_zone(model: &Model<'_>, found: &mut Findings<'_>) {
    for at in model.all().filter(|at| at.enclosing("http").is_some() && !at.is_row()) {
        let (parameter, users): (&str, &[&str]) = match at.name() {
            "limit_req_zone" => ("zone=", &["limit_req"]),
            "limit_conn_zone" => ("zone=", &["limit_conn"]),
            "proxy_cache_path" | "fastcgi_cache_path" | "uwsgi_cache_path" | "scgi_cache_path" => {
                ("keys_zone=", &["proxy_cache", "fastcgi_cache", "uwsgi_cache", "scgi_cache", "grpc_cache"])
            }
            _ => continue,
        };
        let Some(zone) = at.args().find_map(|arg| arg.strip_prefix(parameter)) else { continue };
        let name = zone.split(':').next().unwrap_or(zone);
        let uses = |user: At<'_, '_>| {
            users.contains(&user.name())
                && user
                    .args()
                    .any(|arg| arg.strip_prefix("zone=").unwrap_or(arg) == name || arg.contains('$'))
        };
        if !model.all().any(uses) {
            found.add(
                at,
                format_args!("no directive uses the zone {name}"),
                format_args!("add \"{}\" with this zone, or remove it", users[0]),
            );
        }
    }
}
