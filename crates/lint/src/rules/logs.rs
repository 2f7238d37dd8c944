//! Logs and other settings of a server.

use crate::model::Model;
use crate::rule::Level::{Error, Note, Warning};
use crate::rule::{Findings, Fix, Rule};
use crate::text;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "error-log-off",
        level: Error,
        what: "`error_log off` writes to a file with the name off.",
        why: "Unlike `access_log`, `error_log` cannot be disabled by `off`.",
        mend: "Write `error_log /dev/null crit;`.",
        bad: "server { error_log off; }",
        good: "server { error_log /dev/null crit; }",
        check: |model, found| {
            for at in model.named("error_log").filter(|at| at.arg(0) == "off") {
                let fix = Fix::SetArgument(0, "/dev/null".to_owned());
                found.fixable(
                    at,
                    "the errors are written to a file with the name off",
                    "write \"error_log /dev/null crit;\"",
                    fix,
                );
            }
        },
    },
    Rule {
        name: "log-secrets",
        level: Warning,
        what: "A format of the access log has passwords or sessions.",
        why: "`$http_authorization`, `$http_cookie` and bodies in logs can be used to act as the users.",
        mend: "Log `$remote_user`, or a hash by the application.",
        bad: "log_format a '$remote_addr $http_authorization'; server { access_log l a; }",
        good: "log_format a '$remote_addr $remote_user'; server { access_log l a; }",
        check: |model, found| {
            for at in model.named("log_format") {
                let names: Vec<&str> = at.args().skip(1).flat_map(text::variables).collect();
                if let Some(name) = names.iter().find(|name| {
                    matches!(
                        **name,
                        "http_authorization" | "http_cookie" | "request_body" | "sent_http_set_cookie"
                    )
                }) {
                    found.add(at, format_args!("the log contains ${name}"), "log $remote_user instead");
                }
            }
        },
    },
    Rule {
        name: "gzip-default-types",
        level: Note,
        what: "`gzip on` compresses only HTML.",
        why: "The default of `gzip_types` is `text/html`; style sheets, scripts and JSON are sent as they are.",
        mend: "Add `gzip_types text/css application/javascript application/json image/svg+xml;`.",
        bad: "server { gzip on; }",
        good: "server { gzip on; gzip_types text/css application/json; }",
        check: gzip_types,
    },
    Rule {
        name: "open-redirect",
        level: Warning,
        what: "The client chooses the target of a redirect.",
        why: "Links to this site lead to any other one, which mails and logins misuse.",
        mend: "Select the target by a `map` with the permitted values.",
        bad: "server { location / { return 302 $arg_url; } }",
        good: "server { location / { return 302 /login?next=$arg_url; } }",
        check: |model, found| {
            for at in model.named("return") {
                let target = at.last();
                let authority = if target.starts_with('$') { target } else { text::authority(target) };
                let is_url = target.starts_with('$') || target.contains("://");
                let name = text::variables(authority)
                    .into_iter()
                    .next()
                    .filter(|name| ["arg_", "cookie_"].iter().any(|start| name.starts_with(start)));
                let is_redirect = at.args().count() == 1 || at.arg(0).starts_with('3');
                if let (true, true, Some(name)) = (is_url, is_redirect, name) {
                    found.add(
                        at,
                        format_args!("the client chooses the target by ${name}"),
                        "select it by a \"map\" with the permitted values",
                    );
                }
            }
        },
    },
    Rule {
        name: "no-default-server",
        level: Note,
        what: "Several servers share an address, and none is marked as the default one.",
        why: "Requests with unknown names are served by the first server of an address. In included files the order is that of the names of the files.",
        mend: "Add a server with `listen … default_server; return 444;`.",
        bad: "server { listen 80; server_name a.example; root /a; } server { listen 80; server_name b.example; root /b; }",
        good: "server { listen 80 default_server; return 444; } server { listen 80; server_name a.example; root /a; } server { listen 80; server_name b.example; root /b; }",
        check: default_server,
    },
];

fn gzip_types(model: &Model<'_>, found: &mut Findings<'_>) {
    for at in model.named("gzip").filter(|at| at.arg(0) == "on") {
        let Some(block) = at.parent() else { continue };
        let has = !block.in_effect("gzip_types").is_empty()
            || block.inside().any(|inner| inner.name() == "gzip_types");
        if !has {
            found.fixable(
                at,
                "only text/html is compressed",
                "add \"gzip_types text/css application/javascript application/json image/svg+xml;\"",
                Fix::AddAfter(
                    "gzip_types text/css application/javascript application/json image/svg+xml;".to_owned(),
                ),
            );
        }
    }
}

fn default_server(model: &Model<'_>, found: &mut Findings<'_>) {
    let mut seen: Vec<&str> = Vec::new();
    for at in model.named("listen") {
        let address = at.arg(0);
        if seen.contains(&address) || at.enclosing("http").is_none() {
            continue;
        }
        seen.push(address);
        let same: Vec<_> = model.named("listen").filter(|other| other.arg(0) == address).collect();
        let has_default = same.iter().any(|other| other.has("default_server") || other.has("default"));
        let names = |server: crate::model::At<'_, '_>| {
            server
                .own("server_name")
                .flat_map(crate::model::At::args)
                .any(|name| name == "_" || name.is_empty())
        };
        let catches = same
            .iter()
            .filter_map(|other| other.server())
            .any(|server| names(server) || server.own("server_name").next().is_none());
        let mut servers: Vec<_> = same.iter().filter_map(|other| other.server()).collect();
        servers.dedup();
        if servers.len() > 1 && !has_default && !catches {
            let count = servers.len();
            found.add(
                at,
                format_args!("of {count} servers of {address} this one gets requests with unknown names"),
                "add a server with \"default_server\"",
            );
        }
    }
}
