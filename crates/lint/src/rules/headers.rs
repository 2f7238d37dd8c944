//! Header fields: their inheritance, and fields that a client can forge.

use crate::model::{At, Model};
use crate::rule::Level::{Error, Note, Warning};
use crate::rule::{Findings, Fix, Rule};
use crate::text;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "add-header-inheritance",
        level: Warning,
        what: "`add_header` in an inner block drops the fields of the outer block.",
        why: "The fields of `add_header` are inherited only by blocks without any `add_header`. Security fields are lost in the inner block.",
        mend: "Repeat the fields (an included file), or write `add_header_inherit merge;` where it is supported.",
        bad: "server { add_header X-Frame-Options DENY; location /x { add_header Cache-Control no-store; } }",
        good: "server { add_header X-Frame-Options DENY; location /x { add_header X-Frame-Options DENY; add_header Cache-Control no-store; } }",
        check: |model, found| lost(model, found, "add_header", &["add_header"]),
    },
    Rule {
        name: "proxy-set-header-inheritance",
        level: Warning,
        what: "`proxy_set_header` in an inner block drops the fields of the outer block.",
        why: "The fields are inherited only by blocks without any `proxy_set_header`. Usually `Host` and the address of the client are lost.",
        mend: "Repeat the fields, for example by an included file.",
        bad: "server { proxy_set_header Host $host; location / { proxy_set_header X-A b; proxy_pass http://127.0.0.1:1; } }",
        good: "server { proxy_set_header Host $host; location / { proxy_set_header Host $host; proxy_set_header X-A b; proxy_pass http://127.0.0.1:1; } }",
        check: |model, found| lost(model, found, "proxy_set_header", &["proxy_pass"]),
    },
    Rule {
        name: "param-inheritance",
        level: Error,
        what: "`fastcgi_param` (`uwsgi_param`, `scgi_param`) in an inner block drops the parameters of the outer block.",
        why: "The parameters are inherited only by blocks without any of them. Without `SCRIPT_FILENAME` the application finds no program.",
        mend: "Include the file of parameters in the inner block.",
        bad: "server { fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name; location / { fastcgi_param HTTPS on; fastcgi_pass 127.0.0.1:9; } }",
        good: "server { location / { fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name; fastcgi_param HTTPS on; fastcgi_pass 127.0.0.1:9; } }",
        check: |model, found| {
            for kind in ["fastcgi", "uwsgi", "scgi"] {
                lost(model, found, &format!("{kind}_param"), &[&format!("{kind}_pass")]);
            }
        },
    },
    Rule {
        name: "add-header-content-type",
        level: Warning,
        what: "`add_header Content-Type` adds a second field of this name.",
        why: "`add_header` does not replace fields. Clients get two types, and choose one of them.",
        mend: "Use `default_type`, `types`, or with `return` the setting `default_type` of the location.",
        bad: "server { location / { add_header Content-Type text/plain; return 200 ok; } }",
        good: "server { location / { default_type text/plain; return 200 ok; } }",
        check: content_type,
    },
    Rule {
        name: "header-injection",
        level: Error,
        what: "A decoded path is used in a header field or in a redirect.",
        why: "`$uri` and `$document_uri` are decoded: with `%0d%0a` in the URL, a client adds header fields to the response or to the \
              request of the upstream (response splitting), unless the server refuses such values.",
        mend: "Use `$request_uri`, which is not decoded.",
        bad: "server { location / { return 302 https://example.org$uri; } }",
        good: "server { location / { return 302 https://example.org$request_uri; } }",
        check: header_injection,
    },
    Rule {
        name: "host-from-client",
        level: Note,
        what: "`$http_host` passes on the field `Host` as the client has written it.",
        why: "The server is selected by `$host`, which comes from the request line if that has a host. Both can differ, and an \
              application that trusts `Host` then generates links to a foreign name.",
        mend: "Write `proxy_set_header Host $host;` (with the port: `$host:$server_port`).",
        bad: "server { location / { proxy_set_header Host $http_host; proxy_pass http://127.0.0.1:1; } }",
        good: "server { location / { proxy_set_header Host $host; proxy_pass http://127.0.0.1:1; } }",
        check: |model, found| {
            for at in model
                .named("proxy_set_header")
                .filter(|at| is_field(*at, "Host") && at.arg(1) == "$http_host")
            {
                let fix = Fix::SetArgument(1, "$host".to_owned());
                found.fixable(
                    at,
                    "$http_host may differ from the host that has selected the server",
                    "write $host",
                    fix,
                );
            }
        },
    },
    Rule {
        name: "forwarded-from-client",
        level: Warning,
        what: "A field that names the address of the client is passed on as the client has sent it.",
        why: "Applications use `X-Real-IP` and `X-Forwarded-For` for access checks and limits. A client can write any address into them.",
        mend: "Write `$remote_addr`, or `$proxy_add_x_forwarded_for`; behind another proxy use `real_ip_header`.",
        bad: "server { location / { proxy_set_header X-Real-IP $http_x_real_ip; proxy_pass http://127.0.0.1:1; } }",
        good: "server { location / { proxy_set_header X-Real-IP $remote_addr; proxy_pass http://127.0.0.1:1; } }",
        check: forwarded_from_client,
    },
    Rule {
        name: "trust-all-proxies",
        level: Error,
        what: "`set_real_ip_from` trusts all addresses.",
        why: "Each client can then choose the address that access rules, limits and logs see.",
        mend: "List the addresses of the proxies in front of this server.",
        bad: "server { set_real_ip_from 0.0.0.0/0; real_ip_header X-Forwarded-For; }",
        good: "server { set_real_ip_from 10.0.0.0/8; real_ip_header X-Forwarded-For; }",
        check: |model, found| {
            let is_all = |at: &At<'_, '_>| {
                matches!(at.arg(0), "0.0.0.0/0" | "::/0" | "0/0" | "0.0.0.0/1" | "128.0.0.0/1")
            };
            for at in model.named("set_real_ip_from").filter(is_all) {
                let message = format!("with \"{}\" each client can choose its address", at.arg(0));
                found.add(at, message, "list the addresses of the proxies in front of this server");
            }
        },
    },
    Rule {
        name: "real-ip-without-proxies",
        level: Warning,
        what: "`real_ip_header` has no effect without `set_real_ip_from`.",
        why: "The address of the client is replaced only for connections from trusted proxies.",
        mend: "Add `set_real_ip_from` with the addresses of the proxies.",
        bad: "server { real_ip_header X-Forwarded-For; }",
        good: "set_real_ip_from 10.0.0.1; server { real_ip_header X-Forwarded-For; }",
        check: |model, found| {
            for at in model.named("real_ip_header").filter(|at| at.in_effect("set_real_ip_from").is_empty()) {
                let is_below = at
                    .parent()
                    .is_some_and(|block| block.inside().any(|inner| inner.name() == "set_real_ip_from"));
                if !is_below {
                    found.add(
                        at,
                        "no \"set_real_ip_from\" is in effect",
                        "add \"set_real_ip_from\" with the addresses of the proxies",
                    );
                }
            }
        },
    },
    Rule {
        name: "cors-credentials",
        level: Error,
        what: "Any origin may read responses with the cookies of the user.",
        why: "`Access-Control-Allow-Origin $http_origin` with `Access-Control-Allow-Credentials true` permits each site on the web to \
              act as the user.",
        mend: "Select the permitted origins by a `map` of `$http_origin`.",
        bad: "server { add_header Access-Control-Allow-Origin $http_origin; add_header Access-Control-Allow-Credentials true; }",
        good: "map $http_origin $cors { default ''; https://app.example.org $http_origin; } server { add_header Access-Control-Allow-Origin $cors; add_header Access-Control-Allow-Credentials true; }",
        check: cors_credentials,
    },
    Rule {
        name: "hsts-over-http",
        level: Note,
        what: "`Strict-Transport-Security` is sent without TLS, where browsers ignore it.",
        why: "RFC 6797 section 8.1: the field counts only over secure transport.",
        mend: "Move it to the server with `listen … ssl`, and redirect from this one.",
        bad: "server { listen 80; add_header Strict-Transport-Security max-age=300; }",
        good: "server { listen 443 ssl; add_header Strict-Transport-Security max-age=300; }",
        check: hsts_over_http,
    },
    Rule {
        name: "websocket-connection",
        level: Error,
        what: "`Upgrade` is passed on without `Connection: upgrade`.",
        why: "`Connection` is a field of one connection and is not passed on. Without it the upstream ignores `Upgrade`, and the \
              WebSocket fails.",
        mend: "Add `proxy_set_header Connection $connection_upgrade;` with a `map` of `$http_upgrade`.",
        bad: "server { location / { proxy_pass http://127.0.0.1:1; proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; } }",
        good: "server { location / { proxy_pass http://127.0.0.1:1; proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; } }",
        check: websocket,
    },
    Rule {
        name: "sub-filter-compressed",
        level: Warning,
        what: "`sub_filter` cannot change compressed responses of the upstream.",
        why: "The client's `Accept-Encoding` is passed on, so the upstream compresses and the text is not found.",
        mend: "Add `proxy_set_header Accept-Encoding \"\";`.",
        bad: "server { location / { proxy_pass http://127.0.0.1:1; sub_filter a b; } }",
        good: "server { location / { proxy_pass http://127.0.0.1:1; proxy_set_header Accept-Encoding ''; sub_filter a b; } }",
        check: sub_filter,
    },
];

/// Whether a directive sets this field.
fn is_field(at: At<'_, '_>, name: &str) -> bool {
    at.arg(0).eq_ignore_ascii_case(name)
}

/// Finds blocks whose own list replaces an outer one that has further names. Only blocks with one of `uses` (or `add_header`
/// itself) count.
fn lost(model: &Model<'_>, found: &mut Findings<'_>, name: &str, uses: &[&str]) {
    for block in model.all().filter(|at| matches!(at.name(), "server" | "location" | "if")) {
        let Some(first) = block.children().find(|child| child.name() == name) else { continue };
        let is_used = block.has_own(uses) || block.inside().any(|inner| uses.contains(&inner.name()));
        let merges = block.setting("add_header_inherit").is_some_and(|setting| setting.arg(0) == "merge");
        if !is_used || merges {
            continue;
        }
        let outer = block
            .above()
            .map(|above| above.children().filter(|child| child.name() == name).collect::<Vec<_>>());
        let Some(outer) = outer.into_iter().find(|list: &Vec<_>| !list.is_empty()) else { continue };
        let has = |field: &At<'_, '_>| {
            block.children().any(|own| own.name() == name && is_field(own, field.arg(0)))
        };
        let missing: Vec<&str> = outer.iter().filter(|field| !has(field)).map(|field| field.arg(0)).collect();
        if let Some(line) = outer.first().map(|field| field.statement().span().line)
            && !missing.is_empty()
        {
            let names = missing.join(", ");
            found.add(
                first,
                format_args!("this block drops {names} of line {line}: \"{name}\" is inherited only by blocks without one"),
                format_args!("repeat {names} in this block"),
            );
        }
    }
}

fn content_type(model: &Model<'_>, found: &mut Findings<'_>) {
    for at in model.named("add_header").filter(|at| is_field(*at, "Content-Type")) {
        let value = at.arg(1);
        let remedy = format_args!("write \"default_type {value};\" instead");
        found.add(at, "the response has two fields Content-Type", remedy);
    }
}

fn header_injection(model: &Model<'_>, found: &mut Findings<'_>) {
    for at in model.all().filter(|at| !at.is_row()) {
        let texts: Vec<&str> = match at.name() {
            "return" if at.arg(0).starts_with('3') || at.arg(1).is_empty() => vec![at.last()],
            "rewrite" if at.arg(1).contains("://") => vec![at.arg(1)],
            "add_header" | "proxy_set_header" | "more_set_headers" => at.args().skip(1).collect(),
            _ => continue,
        };
        let path =
            texts.iter().flat_map(|text| text::variables(text)).find(|name| text::is_decoded_path(name));
        if let Some(name) = path {
            let fixed = at
                .args()
                .position(|arg| text::variables(arg).iter().any(|found| text::is_decoded_path(found)));
            let index = fixed.unwrap_or_default();
            let new = at.arg(index).replace("$document_uri", "$request_uri").replace("$uri", "$request_uri");
            let new = new
                .replace("$request_uri$is_args$args", "$request_uri")
                .replace("$request_uri?$args", "$request_uri");
            found.fixable(
                at,
                format_args!("${name} is decoded: %0d%0a in the URL becomes a line break"),
                "use $request_uri, which is not decoded and has the query",
                Fix::SetArgument(index, new),
            );
        }
    }
}

fn forwarded_from_client(model: &Model<'_>, found: &mut Findings<'_>) {
    const FIELDS: [&str; 4] = ["X-Real-IP", "X-Forwarded-For", "X-Client-IP", "True-Client-IP"];
    for at in model.named("proxy_set_header") {
        let is_address = FIELDS.iter().any(|field| is_field(at, field));
        let sent = text::variables(at.arg(1)).into_iter().find(|name| name.starts_with("http_"));
        if let (true, Some(name)) = (is_address, sent) {
            let (field, value) = (
                at.arg(0),
                if is_field(at, "X-Forwarded-For") { "$proxy_add_x_forwarded_for" } else { "$remote_addr" },
            );
            found.fixable(
                at,
                format_args!("the client chooses {field} by ${name}"),
                format_args!("write {value}"),
                Fix::SetArgument(1, value.to_owned()),
            );
        }
    }
}

fn cors_credentials(model: &Model<'_>, found: &mut Findings<'_>) {
    for at in model.named("add_header").filter(|at| is_field(*at, "Access-Control-Allow-Origin")) {
        let Some(block) = at.parent() else { continue };
        let has_credentials = block
            .own("add_header")
            .any(|field| is_field(field, "Access-Control-Allow-Credentials") && field.arg(1) == "true");
        let is_checked = block.name() == "if";
        if at.arg(1) == "$http_origin" && has_credentials && !is_checked {
            found.add(
                at,
                "each site on the web can read these responses as the user",
                "select the permitted origins by a \"map\" of $http_origin",
            );
        }
    }
}

fn hsts_over_http(model: &Model<'_>, found: &mut Findings<'_>) {
    for at in model.named("add_header").filter(|at| is_field(*at, "Strict-Transport-Security")) {
        let Some(server) = at.server() else { continue };
        let listens: Vec<_> = server.own("listen").collect();
        let is_plain = |listen: &At<'_, '_>| !listen.has("ssl") && !listen.has("quic");
        let is_local = |listen: &At<'_, '_>| text::is_loopback(listen.arg(0)) || listen.has("proxy_protocol");
        let is_port_80 = |listen: &At<'_, '_>| matches!(listen.arg(0).rsplit(':').next(), Some("80"));
        if !listens.is_empty()
            && listens.iter().all(|listen| is_plain(listen) && !is_local(listen) && is_port_80(listen))
        {
            found.add(
                at,
                "browsers ignore this field without TLS",
                "move it to the server with \"listen 443 ssl\"",
            );
        }
    }
}

fn websocket(model: &Model<'_>, found: &mut Findings<'_>) {
    for at in model.named("proxy_set_header").filter(|at| is_field(*at, "Upgrade") && !at.arg(1).is_empty()) {
        let Some(block) = at.parent() else { continue };
        if !block.own("proxy_set_header").any(|field| is_field(field, "Connection")) {
            found.fixable(
                at,
                "without the field Connection the upstream ignores Upgrade",
                "add \"proxy_set_header Connection $connection_upgrade;\" and \"map $http_upgrade $connection_upgrade { default upgrade; '' close; }\"",
                Fix::AddAfter("proxy_set_header Connection \"upgrade\";".to_owned()),
            );
        }
    }
}

fn sub_filter(model: &Model<'_>, found: &mut Findings<'_>) {
    for at in model.named("sub_filter") {
        let Some(block) = at.parent().filter(|block| block.has_own(&["proxy_pass"])) else { continue };
        let is_first = block.own("sub_filter").next() == Some(at);
        let fields = block.in_effect("proxy_set_header");
        let is_plain = fields.iter().any(|field| is_field(*field, "Accept-Encoding"));
        if is_first && !is_plain && !block.is_set("gunzip", "on") {
            found.fixable(
                at,
                "the upstream may compress its response, in which the text is not found",
                "add \"proxy_set_header Accept-Encoding \\\"\\\";\"",
                Fix::AddAfter("proxy_set_header Accept-Encoding \"\";".to_owned()),
            );
        }
    }
}
