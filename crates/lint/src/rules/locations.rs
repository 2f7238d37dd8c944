//! Locations that are never reached, and directives in `if`.

use crate::model::{At, Location, Model};
use crate::rule::Level::{Error, Note, Warning};
use crate::rule::{Findings, Fix, Rule};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "unreachable-after-return",
        level: Warning,
        what: "A server ends all requests by `return`, so its locations are never searched.",
        why: "`return` directly in a server runs before the search for a location. Often the location for ACME challenges is lost.",
        mend: "Move `return` into `location / { … }`.",
        bad: "server { return 301 https://$host$request_uri; location /.well-known/acme-challenge/ { root /srv; } }",
        good: "server { location / { return 301 https://$host$request_uri; } location /.well-known/acme-challenge/ { root /srv; } }",
        check: after_return,
    },
    Rule {
        name: "unreachable-location",
        level: Warning,
        what: "A regular expression before this location matches all of its URIs.",
        why: "The first regular expression that matches wins, also over each prefix without `^~`.",
        mend: "Move the location before the general one, or write the general one as `location /`.",
        bad: "server { location ~ / { proxy_pass http://127.0.0.1:1; } location /static/ { root /srv; } }",
        good: "server { location / { proxy_pass http://127.0.0.1:1; } location /static/ { root /srv; } }",
        check: unreachable,
    },
    Rule {
        name: "shadowed-by-prefix",
        level: Warning,
        what: "A protecting regular expression does not apply below a `^~` location.",
        why: "`^~` ends the search without regular expressions. Files such as `.git` below the prefix are served although a rule for \
              all paths denies them.",
        mend: "Repeat the protecting location inside of the `^~` location.",
        bad: "server { location ^~ /files/ { root /srv; } location ~ /\\.git { deny all; } }",
        good: "server { location ^~ /files/ { root /srv; location ~ /\\.git { deny all; } } location ~ /\\.git { deny all; } }",
        check: shadowed,
    },
    Rule {
        name: "server-try-files",
        level: Warning,
        what: "`try_files` of a server does not apply to its locations.",
        why: "Locations do not inherit `try_files`; with `location /` no request is left for the server's own.",
        mend: "Move `try_files` into `location /`.",
        bad: "server { try_files $uri /index.html; location / { expires 1h; } }",
        good: "server { location / { try_files $uri /index.html; expires 1h; } }",
        check: server_try_files,
    },
    Rule {
        name: "if-disables-try-files",
        level: Error,
        what: "In a location with `try_files`, an `if` without a response makes `try_files` ineffective.",
        why: "If the condition is true, the request continues in the block of `if`, which has no `try_files`.",
        mend: "Decide by `map`, or return in the `if`.",
        bad: "server { location / { try_files $uri /index.php; if ($arg_x) { set $y 1; add_header X-Y 1; } } }",
        good: "server { location / { try_files $uri /index.php; if ($arg_x) { return 403; } } }",
        check: if_try_files,
    },
    Rule {
        name: "if-with-settings",
        level: Note,
        what: "An `if` in a location has settings besides `return`, `rewrite`, `set` and `break`.",
        why: "The block is a location of its own: of several true blocks only the last one counts, and some settings are not inherited.",
        mend: "Select the value by `map`, or use separate locations.",
        bad: "server { location / { if ($arg_x) { expires 1h; } } }",
        good: "map $arg_x $time { default off; 1 1h; } server { location / { expires $time; } }",
        check: if_settings,
    },
    Rule {
        name: "if-several-headers",
        level: Warning,
        what: "Several `if` blocks of a location have `add_header`; only the last true one counts.",
        why: "The request continues in the block of the last condition that is true, with the fields of that block only.",
        mend: "Set variables in a `map`, and use `add_header` once in the location.",
        bad: "server { location / { if ($arg_a) { add_header X-A 1; } if ($arg_b) { add_header X-B 1; } } }",
        good: "server { location / { if ($arg_a) { add_header X-A 1; } } }",
        check: if_headers,
    },
    Rule {
        name: "if-file-exists",
        level: Note,
        what: "`if (!-e $request_filename)` with `rewrite` or `proxy_pass` replaces `try_files`.",
        why: "`try_files` does the same with one check of the disk, in an order that can be read.",
        mend: "Write `try_files $uri $uri/ /index.php;` or a named location as its last argument.",
        bad: "server { location / { if (!-e $request_filename) { rewrite ^ /index.php last; } } }",
        good: "server { location / { try_files $uri /index.php; } }",
        check: |model, found| {
            for at in model.named("if") {
                let is_check =
                    at.args().any(|arg| matches!(arg.trim_start_matches('('), "!-e" | "!-f" | "!-d"));
                if is_check
                    && at.args().any(|arg| arg.contains("$request_filename"))
                    && at.has_own(&["rewrite", "proxy_pass", "fastcgi_pass"])
                {
                    found.add(
                        at,
                        "\"try_files\" does the same with fewer checks",
                        "write \"try_files $uri $uri/ FALLBACK;\"",
                    );
                }
            }
        },
    },
    Rule {
        name: "unused-named-location",
        level: Note,
        what: "No directive refers to a named location.",
        why: "Clients cannot request it; often the name in `error_page` or `try_files` is misspelt.",
        mend: "Remove the location, or correct the name.",
        bad: "server { location @app { proxy_pass http://127.0.0.1:1; } }",
        good: "server { location / { try_files $uri @app; } location @app { proxy_pass http://127.0.0.1:1; } }",
        check: unused_named,
    },
    Rule {
        name: "unknown-named-location",
        level: Error,
        what: "A directive continues in a named location that the server does not have.",
        why: "The start succeeds; each request that gets there fails with 500.",
        mend: "Add the location, or correct the name.",
        bad: "server { location / { try_files $uri @app; } location @ap { proxy_pass http://127.0.0.1:1; } }",
        good: "server { location / { try_files $uri @app; } location @app { proxy_pass http://127.0.0.1:1; } }",
        check: unknown_named,
    },
    Rule {
        name: "listen-443-without-ssl",
        level: Error,
        what: "A server listens on port 443 without `ssl`.",
        why: "Clients of https get an error of the TLS protocol, and requests on this port are readable.",
        mend: "Write `listen 443 ssl;`.",
        bad: "server { listen 443; }",
        good: "server { listen 443 ssl; }",
        check: listen_443,
    },
    Rule {
        name: "unanchored-server-name",
        level: Warning,
        what: "A regular expression of `server_name` matches any host that contains the name.",
        why: "Without `^` and `$` the host `example.org.attacker.net` selects this server.",
        mend: "Begin with `^`, end with `$`, and escape the dots.",
        bad: "server { server_name ~example\\.org; }",
        good: "server { server_name ~^(www\\.)?example\\.org$; }",
        check: |model, found| {
            for at in model.named("server_name") {
                let open = at
                    .args()
                    .find(|name| name.starts_with('~') && !(name.starts_with("~^") && name.ends_with('$')));
                if let Some(name) = open {
                    found.add(
                        at,
                        format_args!("\"{name}\" matches each host that contains it"),
                        "write ~^…$",
                    );
                }
            }
        },
    },
];

fn after_return(model: &Model<'_>, found: &mut Findings<'_>) {
    for server in model.named("server").filter(|server| server.statement().block.is_some()) {
        let Some(response) = server.own("return").next() else { continue };
        if let Some(location) = server.own("location").find(|location| Location::of(*location).kind != "@") {
            let (line, path) =
                (response.statement().span().line, location.args().collect::<Vec<_>>().join(" "));
            found.add(
                response,
                format_args!(
                    "\"return\" of line {line} ends all requests: location {path} is never searched"
                ),
                "move \"return\" into \"location / { … }\"",
            );
        }
    }
}

/// Whether a pattern matches each path.
fn matches_all(pattern: &str) -> bool {
    matches!(
        pattern,
        "/" | "."
            | ".*"
            | "^"
            | "^/"
            | "^/.*"
            | "^/.*$"
            | "^.*$"
            | "^/(.*)"
            | "^/(.*)$"
            | "(.*)"
            | "^(.*)$"
            | "/.*"
            | ""
    )
}

fn unreachable(model: &Model<'_>, found: &mut Findings<'_>) {
    for block in model.all().filter(|at| matches!(at.name(), "server" | "location")) {
        let mut general: Option<At<'_, '_>> = None;
        let mut seen: Vec<(Location<'_>, u32)> = Vec::new();
        let locations: Vec<_> = block.own("location").collect();
        for location in &locations {
            let own = Location::of(*location);
            if own.is_regex() {
                let line = location.statement().span().line;
                let twin = seen.iter().find(|(other, _)| *other == own).map(|(_, line)| *line);
                let hidden = general.map(|general| general.statement().span().line).or(twin);
                if let Some(before) = hidden {
                    let message = format_args!(
                        "the regular expression of line {before} matches all URIs of this location"
                    );
                    found.add(*location, message, "move this location before it");
                }
                seen.push((own, line));
                if general.is_none() && matches_all(own.path) {
                    general = Some(*location);
                }
            }
        }
        let Some(general) = general else { continue };
        let line = general.statement().span().line;
        for location in &locations {
            let Location { kind, path } = Location::of(*location);
            if kind.is_empty() {
                found.add(
                    *location,
                    format_args!(
                        "the regular expression of line {line} has precedence over \"location {path}\""
                    ),
                    format_args!("write \"location ^~ {path}\", or \"location /\" in line {line}"),
                );
            }
        }
    }
}

fn shadowed(model: &Model<'_>, found: &mut Findings<'_>) {
    for server in model.named("server") {
        let protects = |location: &At<'_, '_>| {
            let is_refusal = |child: At<'_, '_>| {
                child.written() == "deny all"
                    || child.name() == "return" && matches!(child.arg(0), "403" | "404" | "444")
            };
            Location::of(*location).is_regex() && location.children().any(is_refusal)
        };
        for guard in server.own("location").filter(protects) {
            let pattern = Location::of(guard).path;
            // Only patterns that match at any depth.
            if pattern.starts_with('^') || !pattern.contains("/\\.") && !pattern.starts_with("\\.") {
                continue;
            }
            for location in server.own("location") {
                let Location { kind, path } = Location::of(location);
                let is_hidden_path = path.contains("/.");
                let repeats = location
                    .inside()
                    .any(|inner| inner.name() == "location" && Location::of(inner).is_regex());
                let serves =
                    location.inside().any(|inner| matches!(inner.name(), "root" | "alias" | "try_files"))
                        || !location
                            .inside()
                            .any(|inner| inner.name().ends_with("_pass") || inner.name() == "return");
                if kind == "^~" && !is_hidden_path && !repeats && serves {
                    let line = guard.statement().span().line;
                    found.add(
                        location,
                        format_args!(
                            "\"location ~ {pattern}\" of line {line} does not protect files below {path}"
                        ),
                        "repeat the protecting location inside of this one",
                    );
                }
            }
        }
    }
}

fn server_try_files(model: &Model<'_>, found: &mut Findings<'_>) {
    for at in model.named("try_files") {
        let Some(server) = at.parent().filter(|parent| parent.name() == "server") else { continue };
        if let Some(location) = server.own("location").find(|location| location.arg(0) == "/") {
            let line = location.statement().span().line;
            found.add(
                at,
                format_args!("\"location /\" of line {line} does not inherit it"),
                "move it into \"location /\"",
            );
        }
    }
}

/// Directives of the rewrite module.
const REWRITES: [&str; 6] = ["return", "rewrite", "set", "break", "rewrite_log", "access_log"];

fn if_try_files(model: &Model<'_>, found: &mut Findings<'_>) {
    for at in model.named("try_files") {
        let Some(block) = at.parent().filter(|parent| parent.name() == "location") else { continue };
        let ends = |condition: &At<'_, '_>| {
            condition.has_own(&["return"])
                || condition.own("rewrite").any(|rewrite| rewrite.arg(2) != "break")
        };
        let has_content =
            |condition: &At<'_, '_>| condition.children().any(|child| !REWRITES.contains(&child.name()));
        for condition in block.own("if").filter(|condition| !ends(condition) && has_content(condition)) {
            let line = at.statement().span().line;
            found.add(
                condition,
                format_args!("if the condition is true, \"try_files\" of line {line} is not used"),
                "select the value by \"map\" instead of \"if\"",
            );
        }
    }
}

fn if_settings(model: &Model<'_>, found: &mut Findings<'_>) {
    for at in model.named("if").filter(|at| at.parent().is_some_and(|parent| parent.name() == "location")) {
        if let Some(setting) = at.children().find(|child| !REWRITES.contains(&child.name())) {
            let name = setting.name();
            let message = format_args!("\"{name}\" in \"if\": the block is a location of its own");
            found.add(setting, message, "select the value by \"map\", or use another location");
        }
    }
}

fn if_headers(model: &Model<'_>, found: &mut Findings<'_>) {
    for block in model.all().filter(|at| at.name() == "location") {
        let ends = |at: &At<'_, '_>| at.has_own(&["return", "rewrite"]);
        let blocks: Vec<_> = block.own("if").filter(|at| at.has_own(&["add_header"]) && !ends(at)).collect();
        if let [first, .., last] = blocks.as_slice() {
            let line = first.statement().span().line;
            found.add(
                *last,
                format_args!("if this condition is true, the fields of the \"if\" of line {line} are lost"),
                "set variables by \"map\", and use \"add_header\" once in the location",
            );
        }
    }
}

/// Returns the name of the named location that an argument refers to.
fn named_target<'t>(at: At<'_, 't>) -> Option<&'t str> {
    match at.name() {
        "try_files" | "error_page" | "post_action" | "auth_request" => at.last().strip_prefix('@'),
        _ => None,
    }
}

fn unused_named(model: &Model<'_>, found: &mut Findings<'_>) {
    for location in model.locations().filter(|location| Location::of(*location).kind == "@") {
        let name = Location::of(location).path;
        let is_variable = model.all().any(|at| named_target(at).is_some_and(|target| target.contains('$')));
        let is_used = model
            .all()
            .filter(|at| !at.is_row())
            .any(|at| at.args().any(|arg| arg.strip_prefix('@') == Some(name)) && at != location)
            || model.all().any(|at| at.is_row() && at.args().any(|arg| arg.strip_prefix('@') == Some(name)));
        if !is_used && !is_variable {
            found.add(
                location,
                format_args!("no directive refers to @{name}"),
                "remove the location, or correct the name",
            );
        }
    }
}

fn unknown_named(model: &Model<'_>, found: &mut Findings<'_>) {
    for at in model.all() {
        let (Some(name), Some(server)) = (named_target(at), at.server()) else { continue };
        let known: Vec<&str> = server
            .own("location")
            .filter(|location| Location::of(*location).kind == "@")
            .map(|location| Location::of(location).path)
            .collect();
        if name.contains('$') || known.contains(&name) {
            continue;
        }
        let remedy = match conf::similar(name, known.iter().copied()) {
            Some(meant) => format!("did you mean @{meant}?"),
            None => format!("add \"location @{name}\""),
        };
        let index = at.args().count() - 1;
        match conf::similar(name, known.iter().copied()) {
            Some(meant) => found.fixable(
                at,
                format_args!("this server has no location @{name}"),
                remedy,
                Fix::SetArgument(index, format!("@{meant}")),
            ),
            None => found.add(at, format_args!("this server has no location @{name}"), remedy),
        }
    }
}

fn listen_443(model: &Model<'_>, found: &mut Findings<'_>) {
    for at in model.named("listen").filter(|at| at.enclosing("http").is_some()) {
        let port = at.arg(0).rsplit(':').next().unwrap_or_default();
        let is_secure = at.has("ssl") || at.has("quic");
        let is_old = at.server().is_some_and(|server| server.is_set("ssl", "on"));
        // Another server of the same address may have the parameter.
        let others = model.named("listen").any(|other| other.arg(0) == at.arg(0) && other.has("ssl"));
        if port == "443" && !is_secure && !is_old && !others {
            let fix = Fix::AddArgument("ssl".to_owned());
            found.fixable(at, "clients of https cannot connect", "write \"listen 443 ssl;\"", fix);
        }
    }
}
