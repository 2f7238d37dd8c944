//! Requests to upstreams.

use crate::model::{At, Location, Model};
use crate::rule::Level::{Error, Note, Warning};
use crate::rule::{Findings, Fix, Rule};
use crate::text;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "proxy-pass-client-host",
        level: Error,
        what: "The client chooses the server that the request is passed to.",
        why: "With `$http_host`, `$arg_…` or a group of the path as the host, clients reach each server of the internal network \
              (server-side request forgery).",
        mend: "Select the server by a `map` with the permitted names.",
        bad: "server { resolver 127.0.0.1; location / { proxy_pass http://$arg_host; } }",
        good: "map $arg_host $app { default a.internal; b b.internal; } server { resolver 127.0.0.1; location / { proxy_pass http://$app; } }",
        check: client_host,
    },
    Rule {
        name: "proxy-pass-without-resolver",
        level: Error,
        what: "`proxy_pass` has a variable in its host, and no `resolver` is in effect.",
        why: "The name is resolved for each request. Without a resolver requests fail with 502.",
        mend: "Add `resolver` with the addresses of name servers.",
        bad: "server { set $app app.internal; location / { proxy_pass http://$app; } }",
        good: "server { resolver 127.0.0.53; set $app app.internal; location / { proxy_pass http://$app; } } server { location / { proxy_pass http://127.0.0.1:$arg_port; } }",
        check: without_resolver,
    },
    Rule {
        name: "misspelt-upstream",
        level: Error,
        what: "The host of `proxy_pass` is similar to the name of an upstream group, but not equal.",
        why: "The name is then resolved as a host. The start fails, or requests reach another server.",
        mend: "Correct the name.",
        bad: "upstream backend { server 127.0.0.1:1; } server { location / { proxy_pass http://backed; } }",
        good: "upstream backend { server 127.0.0.1:1; } server { location / { proxy_pass http://backend; } }",
        check: misspelt_upstream,
    },
    Rule {
        name: "proxy-pass-slash",
        level: Warning,
        what: "Either the location or the URI of `proxy_pass` ends with a slash, but not both.",
        why: "The URI replaces the prefix of the location: `/api/x` becomes `//x`, or `/v1x`.",
        mend: "End both with a slash, or none.",
        bad: "server { location /api { proxy_pass http://127.0.0.1:1/; } }",
        good: "server { location /api/ { proxy_pass http://127.0.0.1:1/; } }",
        check: slash,
    },
    Rule {
        name: "proxy-pass-variable-uri",
        level: Warning,
        what: "`proxy_pass` with a variable and a URI sends this URI for all requests.",
        why: "With a variable, the URI is sent as written: path and query of the client are lost.",
        mend: "Omit the URI, or write `$request_uri` (after a `rewrite`: `$uri$is_args$args`).",
        bad: "server { resolver 127.0.0.1; set $app app.internal; location /api/ { proxy_pass http://$app/v1/; } }",
        good: "server { resolver 127.0.0.1; set $app app.internal; location /api/ { proxy_pass http://$app$request_uri; } }",
        check: variable_uri,
    },
    Rule {
        name: "proxy-ssl-verify-off",
        level: Warning,
        what: "`proxy_ssl_verify off` accepts any certificate of the upstream.",
        why: "TLS without verification protects only against readers, not against a machine in between.",
        mend: "Write `proxy_ssl_verify on;` with `proxy_ssl_trusted_certificate`.",
        bad: "server { location / { proxy_pass https://app.internal; proxy_ssl_verify off; } }",
        good: "server { location / { proxy_pass https://app.internal; proxy_ssl_verify on; proxy_ssl_trusted_certificate ca.pem; } }",
        check: |model, found| {
            for name in ["proxy_ssl_verify", "grpc_ssl_verify", "uwsgi_ssl_verify"] {
                for at in model.named(name).filter(|at| at.arg(0) == "off") {
                    found.add(
                        at,
                        "any certificate is accepted",
                        "write \"on\", with the CA in the directive ending in _ssl_trusted_certificate",
                    );
                }
            }
        },
    },
    Rule {
        name: "proxy-ssl-unverified",
        level: Note,
        what: "The certificate of an upstream over https is not verified.",
        why: "`proxy_ssl_verify` is off by default.",
        mend: "Write `proxy_ssl_verify on;` with `proxy_ssl_trusted_certificate`.",
        bad: "server { location / { proxy_pass https://app.internal; } }",
        good: "server { location / { proxy_pass https://app.internal; proxy_ssl_verify on; proxy_ssl_trusted_certificate ca.pem; } }",
        check: |model, found| {
            for at in model.named("proxy_pass").filter(|at| at.arg(0).starts_with("https://")) {
                if at.setting("proxy_ssl_verify").is_none() {
                    found.add(
                        at,
                        "the certificate of the upstream is not verified",
                        "add \"proxy_ssl_verify on; proxy_ssl_trusted_certificate FILE;\"",
                    );
                }
            }
        },
    },
    Rule {
        name: "proxy-ssl-name",
        level: Note,
        what: "The name of the upstream is not sent in the TLS handshake.",
        why: "Without `proxy_ssl_server_name on` servers with several certificates, such as content networks, choose a wrong one or refuse.",
        mend: "Add `proxy_ssl_server_name on;`.",
        bad: "server { location / { proxy_pass https://cdn.example.org; } }",
        good: "server { location / { proxy_pass https://cdn.example.org; proxy_ssl_server_name on; } }",
        check: |model, found| {
            for at in model.named("proxy_pass").filter(|at| at.arg(0).starts_with("https://")) {
                let host = text::host(text::authority(at.arg(0)));
                let is_name = host.contains('.') && !text::is_address(host) && !host.contains('$');
                if is_name && at.setting("proxy_ssl_server_name").is_none() {
                    let fix = Fix::AddAfter("proxy_ssl_server_name on;".to_owned());
                    found.fixable(
                        at,
                        format_args!("the handshake does not name {host}"),
                        "add \"proxy_ssl_server_name on;\"",
                        fix,
                    );
                }
            }
        },
    },
    Rule {
        name: "retry-non-idempotent",
        level: Warning,
        what: "`proxy_next_upstream non_idempotent` may carry out a POST twice.",
        why: "A request whose connection fails after it was sent is repeated at the next server, for example a second order.",
        mend: "Remove `non_idempotent`, unless the application recognises repeated requests.",
        bad: "server { location / { proxy_pass http://127.0.0.1:1; proxy_next_upstream error non_idempotent; } }",
        good: "server { location / { proxy_pass http://127.0.0.1:1; proxy_next_upstream error timeout; } }",
        check: |model, found| {
            for at in
                model.all().filter(|at| at.name().ends_with("_next_upstream") && at.has("non_idempotent"))
            {
                found.add(at, "a POST may be carried out twice", "remove \"non_idempotent\"");
            }
        },
    },
    Rule {
        name: "upstream-localhost",
        level: Note,
        what: "`localhost` is two addresses, of which the application may use only one.",
        why: "The name resolves to ::1 and 127.0.0.1. Half of the requests first fail at the address without a listener.",
        mend: "Write `127.0.0.1`.",
        bad: "server { location / { proxy_pass http://localhost:3000; } }",
        good: "server { location / { proxy_pass http://127.0.0.1:3000; } }",
        check: |model, found| {
            for at in model.all().filter(|at| at.name().ends_with("_pass")) {
                if text::host(text::authority(at.arg(0))) == "localhost" {
                    let fix = Fix::SetArgument(0, at.arg(0).replacen("localhost", "127.0.0.1", 1));
                    found.fixable(at, "localhost is ::1 and 127.0.0.1", "write 127.0.0.1", fix);
                }
            }
        },
    },
    Rule {
        name: "unused-upstream",
        level: Note,
        what: "No directive refers to an upstream group.",
        why: "Often the name in `proxy_pass` is another one.",
        mend: "Remove the group, or correct the name.",
        bad: "upstream app { server 127.0.0.1:1; } server { location / { return 204; } }",
        good: "upstream app { server 127.0.0.1:1; } server { location / { proxy_pass http://app; } }",
        check: unused_upstream,
    },
    Rule {
        name: "public-resolver",
        level: Note,
        what: "`resolver` is a public name server.",
        why: "It does not know internal names, and an attacker on the path can forge its answers.",
        mend: "Use the name server of the machine or of the network.",
        bad: "server { resolver 8.8.8.8; }",
        good: "server { resolver 10.0.0.2; }",
        check: |model, found| {
            const PUBLIC: [&str; 8] = [
                "8.8.8.8",
                "8.8.4.4",
                "1.1.1.1",
                "1.0.0.1",
                "9.9.9.9",
                "208.67.222.222",
                "208.67.220.220",
                "149.112.112.112",
            ];
            for at in model.named("resolver") {
                if let Some(server) = at.args().find(|arg| PUBLIC.contains(arg)) {
                    found.add(
                        at,
                        format_args!("{server} is a public name server"),
                        "use the name server of the network",
                    );
                }
            }
        },
    },
    Rule {
        name: "buffering-off-everywhere",
        level: Note,
        what: "`proxy_buffering off` for all locations.",
        why: "Each slow client then occupies a connection of the application for the time of its download.",
        mend: "Set it only in locations with streams, or let the application send `X-Accel-Buffering: no`.",
        bad: "server { proxy_buffering off; location / { proxy_pass http://127.0.0.1:1; } }",
        good: "server { location /events { proxy_buffering off; proxy_pass http://127.0.0.1:1; } }",
        check: |model, found| {
            for at in model.named("proxy_buffering").filter(|at| at.arg(0) == "off") {
                if at.parent().is_some_and(|block| matches!(block.name(), "http" | "server")) {
                    found.add(
                        at,
                        "slow clients occupy connections of the application",
                        "move it into the location with streams",
                    );
                }
            }
        },
    },
];

/// Returns the directives that pass requests to an upstream.
fn passes<'m, 't>(model: &'m Model<'t>) -> impl Iterator<Item = At<'m, 't>> {
    const NAMES: [&str; 5] = ["proxy_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass", "grpc_pass"];
    model.all().filter(|at| NAMES.contains(&at.name()))
}

fn client_host(model: &Model<'_>, found: &mut Findings<'_>) {
    for at in passes(model) {
        let authority = text::authority(at.arg(0));
        for name in text::variables(authority) {
            // The groups of a location are a part of the path; `$host` is that of a server name only if all names are written.
            let is_group = name.bytes().all(|byte| byte.is_ascii_digit());
            let is_whole_host = authority == format!("${name}") || authority == format!("${{{name}}}");
            let is_named_group = at
                .here_and_above()
                .any(|above| above.name() == "location" && above.last().contains(&format!("?<{name}>")));
            let is_open_host = name == "host" && !has_written_names(at);
            if text::is_of_client(name) && name != "uri" && name != "request_uri"
                || (is_group || is_named_group) && is_whole_host
                || is_open_host
            {
                found.add(
                    at,
                    format_args!("the client chooses the server by ${name}"),
                    "select the server by a \"map\" with the permitted names",
                );
                break;
            }
        }
    }
}

/// Whether all names of the server are written, so that `$host` is one of them, unless the server is the default one.
fn has_written_names(at: At<'_, '_>) -> bool {
    let names: Vec<&str> =
        at.server().into_iter().flat_map(|server| server.own("server_name")).flat_map(At::args).collect();
    !names.is_empty()
        && names.iter().all(|name| {
            !name.starts_with(['~', '*', '.']) && !name.ends_with('*') && *name != "_" && !name.is_empty()
        })
}

/// Returns the values that a variable can get in this configuration; `None` if another module sets it.
fn values_of<'t>(model: &Model<'t>, name: &str) -> Option<Vec<&'t str>> {
    let mut values = Vec::new();
    for at in model.all().filter(|at| !at.is_row()) {
        match at.name() {
            "set" if at.arg(0).trim_start_matches('$') == name => values.push(at.arg(1)),
            "map" | "split_clients" if at.arg(1).trim_start_matches('$') == name => {
                let rows =
                    at.children().filter(|row| !matches!(row.name(), "hostnames" | "volatile" | "include"));
                values.extend(rows.map(|row| row.arg(0)));
            }
            _ => {}
        }
    }
    (!values.is_empty()).then_some(values)
}

/// Whether a value is a host that needs no resolver: an upstream group, an address or a socket.
fn needs_no_resolver(model: &Model<'_>, value: &str) -> bool {
    let authority = text::authority(value);
    let host = text::host(authority);
    host.is_empty()
        || text::is_address(host)
        || value.contains("unix:")
        || model.named("upstream").any(|group| group.arg(0) == authority || group.arg(0) == host)
}

fn without_resolver(model: &Model<'_>, found: &mut Findings<'_>) {
    for at in passes(model) {
        let written = at.arg(0);
        // A variable port needs no resolver.
        let host = text::host(text::authority(written));
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
        let names = text::variables(host);
        let (Some(name), true) = (names.first(), at.setting("resolver").is_none()) else { continue };
        let is_address = matches!(*name, "server_addr" | "remote_addr" | "gateway");
        let has_suffix = host != format!("${name}") && host != format!("${{{name}}}");
        let is_safe = !has_suffix
            && values_of(model, name)
                .is_some_and(|values| values.iter().all(|value| needs_no_resolver(model, value)));
        if !is_address && !is_safe && !matches!(*name, "args") {
            found.add(
                at,
                format_args!(
                    "the name in ${name} is resolved for each request, and no \"resolver\" is in effect"
                ),
                "add \"resolver\" with the addresses of name servers",
            );
        }
    }
}

fn misspelt_upstream(model: &Model<'_>, found: &mut Findings<'_>) {
    let groups: Vec<&str> = model.named("upstream").map(|group| group.arg(0)).collect();
    for at in passes(model) {
        let host = text::authority(at.arg(0));
        let is_name = !host.contains(['$', '.', ':', '[']) && host != "localhost" && !host.is_empty();
        if is_name
            && !groups.contains(&host)
            && let Some(meant) = conf::similar(host, groups.iter().copied())
        {
            found.fixable(
                at,
                format_args!("no upstream group has the name \"{host}\""),
                format_args!("did you mean upstream {meant}?"),
                Fix::SetArgument(0, at.arg(0).replacen(host, meant, 1)),
            );
        }
    }
}

fn slash(model: &Model<'_>, found: &mut Findings<'_>) {
    for at in model.named("proxy_pass").filter(|at| !at.arg(0).contains('$')) {
        let Some(location) = at.parent().filter(|parent| parent.name() == "location") else { continue };
        let Location { kind, path } = Location::of(location);
        let Some(uri) = text::path_of(at.arg(0)) else { continue };
        if !matches!(kind, "" | "^~") || path.ends_with('/') == uri.ends_with('/') {
            continue;
        }
        // A location for one path, such as /favicon.ico, with the path of that file.
        let is_one = !path.ends_with('/') && path.rsplit('/').next().is_some_and(|name| name.contains('.'));
        if is_one {
            continue;
        }
        let rest = if path.ends_with('/') { "x" } else { "/x" };
        found.add(
            at,
            format_args!("{path}{rest} is passed on as {uri}{rest}"),
            "end both the location and the URI with a slash, or none",
        );
    }
}

fn variable_uri(model: &Model<'_>, found: &mut Findings<'_>) {
    for at in model.named("proxy_pass").filter(|at| text::authority(at.arg(0)).contains('$')) {
        let Some(uri) = text::path_of(at.arg(0)) else { continue };
        let is_one = at.enclosing("location").is_some_and(|location| Location::of(location).kind == "=");
        if !uri.contains('$') && !is_one {
            found.add(
                at,
                format_args!("all requests are passed on as {uri}: path and query of the client are lost"),
                "omit the URI, or end it with $request_uri",
            );
        }
    }
}

fn unused_upstream(model: &Model<'_>, found: &mut Findings<'_>) {
    for group in model.named("upstream") {
        let name = group.arg(0);
        let mentions = |at: At<'_, '_>| {
            let words = at.args().chain(at.is_row().then(|| at.name()));
            at != group && words.into_iter().any(|word| text::authority(word) == name || word == name)
        };
        // A variable may have the name.
        let is_variable = |at: At<'_, '_>| {
            text::authority(at.arg(0)).contains('$')
                && values_of(model, &text::variables(text::authority(at.arg(0))).join("")).is_none()
        };
        if !model.all().any(mentions) && !passes(model).any(is_variable) {
            found.add(
                group,
                format_args!("no directive refers to \"{name}\""),
                "remove the group, or correct the name in the directive that passes requests",
            );
        }
    }
}
