//! Access rules: their order, their inheritance, and responses that are sent before they are read.

use crate::model::{At, Location, Model};
use crate::rule::Level::{Error, Note, Warning};
use crate::rule::{Findings, Fix, Rule};
use crate::text;

/// Directives of the phases after the rewrite phase that refuse requests: access rules and limits.
const ACCESS: [&str; 8] =
    ["allow", "deny", "auth_basic", "auth_request", "auth_jwt", "auth_oidc", "limit_req", "limit_conn"];

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "return-before-access",
        level: Error,
        what: "`return` is sent before the access rules and limits of the same block are read.",
        why: "`return` and `rewrite … redirect` run in the rewrite phase, limits and access rules in later phases. All clients get the \
              response, whatever the rules and limits are.",
        mend: "Put the response into a location that `try_files` or `error_page` reaches after the access phase, or decide by `if` on \
               a variable of `geo`.",
        bad: "server { location /admin { deny all; return 200 secret; } }",
        good: "server { location /admin { deny all; proxy_pass http://127.0.0.1:1; } }",
        check: return_before_access,
    },
    Rule {
        name: "allow-without-deny",
        level: Warning,
        what: "A block has `allow`, but no rule that denies other clients.",
        why: "A client that no rule matches is allowed. `allow` alone has no effect.",
        mend: "Add `deny all;` after the last `allow`.",
        bad: "server { location / { allow 10.0.0.0/8; } }",
        good: "server { location / { allow 10.0.0.0/8; deny all; } }",
        check: allow_without_deny,
    },
    Rule {
        name: "rule-after-all",
        level: Error,
        what: "An access rule follows a rule for `all` and is never read.",
        why: "The first rule that matches the client decides.",
        mend: "Move the rule for `all` to the end.",
        bad: "server { location / { deny all; allow 10.0.0.0/8; } }",
        good: "server { location / { allow 10.0.0.0/8; deny all; } }",
        check: rule_after_all,
    },
    Rule {
        name: "access-rules-replaced",
        level: Warning,
        what: "The rules of an inner block replace `deny all` of an outer block, and do not deny all other clients.",
        why: "`allow` and `deny` are inherited only by blocks without any such rule.",
        mend: "Repeat the outer rules in the inner block.",
        bad: "server { allow 10.0.0.0/8; deny all; location /x { deny 10.1.1.1; } }",
        good: "server { allow 10.0.0.0/8; deny all; location /x { deny 10.1.1.1; allow 10.0.0.0/8; deny all; } }",
        check: access_rules_replaced,
    },
    Rule {
        name: "satisfy-any-open",
        level: Error,
        what: "With `satisfy any` and `allow all`, no client needs the password.",
        why: "`satisfy any` grants access as soon as one module allows the client.",
        mend: "Allow only the networks that need no password, and end with `deny all;`.",
        bad: "server { location / { satisfy any; allow all; auth_basic x; auth_basic_user_file f; } }",
        good: "server { location / { satisfy any; allow 10.0.0.0/8; deny all; auth_basic x; auth_basic_user_file f; } }",
        check: satisfy_any_open,
    },
    Rule {
        name: "missing-auth-file",
        level: Error,
        what: "The file of `auth_basic_user_file` does not exist.",
        why: "It is opened for each request, so the start succeeds and each request fails with 403.",
        mend: "Create the file, for example with `htpasswd -c FILE USER`, or correct the path.",
        bad: "server { location / { auth_basic x; auth_basic_user_file /nonexistent/users; } }",
        good: "server { location / { auth_basic x; auth_basic_user_file $users; } }",
        check: missing_auth_file,
    },
    Rule {
        name: "auth-basic-without-file",
        level: Error,
        what: "`auth_basic` is set without `auth_basic_user_file`.",
        why: "Without a file the module has no passwords to compare, and nginx then asks for none: the location is open.",
        mend: "Add `auth_basic_user_file`.",
        bad: "server { location / { auth_basic \"staff\"; } }",
        good: "server { auth_basic_user_file users; location / { auth_basic \"staff\"; } }",
        check: auth_basic_without_file,
    },
    Rule {
        name: "auth-request-target-public",
        level: Note,
        what: "The location of an `auth_request` is not `internal`.",
        why: "Clients can request it and learn how the application answers, or try passwords without the limits of the other locations.",
        mend: "Add `internal;` to the location.",
        bad: "server { location / { auth_request /check; } location = /check { proxy_pass http://127.0.0.1:1; } }",
        good: "server { location / { auth_request /check; } location = /check { internal; proxy_pass http://127.0.0.1:1; } }",
        check: auth_request_target,
    },
    Rule {
        name: "auth-request-body",
        level: Warning,
        what: "The location of an `auth_request` passes on the length of a body that is not sent.",
        why: "The subrequest has no body, but the header field `Content-Length` of the client's request. Many applications then wait \
              for the body.",
        mend: "Add `proxy_pass_request_body off; proxy_set_header Content-Length \"\";`.",
        bad: "server { location / { auth_request /check; } location = /check { internal; proxy_pass http://127.0.0.1:1; proxy_pass_request_body on; } }",
        good: "server { location / { auth_request /check; } location = /check { internal; proxy_pass http://127.0.0.1:1; proxy_pass_request_body off; proxy_set_header Content-Length ''; } }",
        check: auth_request_body,
    },
    Rule {
        name: "open-status",
        level: Warning,
        what: "A status page has no access rule.",
        why: "It shows loads, names of servers and addresses of upstreams to all clients; `api` with write=on changes them.",
        mend: "Add `allow` for the addresses of the monitoring and `deny all;`, or listen on a loopback address.",
        bad: "server { listen 80; location /status { stub_status; } }",
        good: "server { listen 127.0.0.1:80; location /status { stub_status; } }",
        check: open_status,
    },
    Rule {
        name: "client-certificate-unchecked",
        level: Warning,
        what: "Clients may omit their certificate, and nothing reads the result of the verification.",
        why: "With `ssl_verify_client optional` requests without a certificate are served like all others.",
        mend: "Use `ssl_verify_client on`, or decide by `$ssl_client_verify`.",
        bad: "server { ssl_verify_client optional; ssl_client_certificate ca.pem; location / { proxy_pass http://127.0.0.1:1; } }",
        good: "server { ssl_verify_client optional; ssl_client_certificate ca.pem; location / { if ($ssl_client_verify != SUCCESS) { return 403; } } }",
        check: client_certificate_unchecked,
    },
    Rule {
        name: "merge-slashes-off",
        level: Note,
        what: "`merge_slashes off` lets paths with double slashes bypass prefix locations.",
        why: "`//admin` matches no location `/admin`, but most applications and file systems treat both as the same.",
        mend: "Remove the directive, or let the application refuse such paths.",
        bad: "server { merge_slashes off; location /admin { deny all; } }",
        good: "server { location /admin { deny all; } }",
        check: |model, found| {
            for at in model.named("merge_slashes").filter(|at| at.arg(0) == "off") {
                found.fixable(
                    at,
                    "paths such as //admin match no location /admin",
                    "remove \"merge_slashes off\"",
                    Fix::Remove,
                );
            }
        },
    },
];

fn return_before_access(model: &Model<'_>, found: &mut Findings<'_>) {
    for block in model.all().filter(|at| matches!(at.name(), "location" | "server")) {
        let Some(rule) =
            block.children().find(|child| ACCESS.contains(&child.name()) && child.arg(0) != "off")
        else {
            continue;
        };
        // `allow all` and a server's rules for its locations are no trap.
        let is_response = |child: &At<'_, '_>| match child.name() {
            "return" => true,
            "rewrite" => matches!(child.arg(2), "redirect" | "permanent"),
            _ => false,
        };
        if rule.written() == "allow all" {
            continue;
        }
        if let Some(response) = block.children().find(is_response) {
            let (name, rule) = (response.name(), rule.written());
            found.add(
                response,
                format_args!("\"{name}\" is sent before \"{rule}\" of this block is read"),
                "move the response into a location that is reached after the access phase, such as a named location of try_files",
            );
        }
    }
}

/// Returns the access rules directly in a block.
fn rules_of<'m, 't>(block: At<'m, 't>) -> Vec<At<'m, 't>> {
    block.children().filter(|child| matches!(child.name(), "allow" | "deny")).collect()
}

fn allow_without_deny(model: &Model<'_>, found: &mut Findings<'_>) {
    for block in model.all() {
        let rules = rules_of(block);
        let (Some(last), true) = (rules.last(), rules.iter().all(|rule| rule.name() == "allow")) else {
            continue;
        };
        // With `satisfy any` the other modules deny.
        if rules.iter().any(|rule| rule.arg(0) == "all") || block.is_set("satisfy", "any") {
            continue;
        }
        found.fixable(
            *last,
            "without \"deny\" all other clients are allowed too",
            "add \"deny all;\" after this line",
            Fix::AddAfter("deny all;".to_owned()),
        );
    }
}

fn rule_after_all(model: &Model<'_>, found: &mut Findings<'_>) {
    for block in model.all() {
        let rules = rules_of(block);
        let Some(all) = rules.iter().position(|rule| rule.arg(0) == "all") else { continue };
        for rule in &rules[all + 1..] {
            let (text, first) = (rule.written(), rules[all]);
            let (first, line) = (first.written(), first.statement().span().line);
            found.add(
                *rule,
                format_args!("\"{text}\" is never read: \"{first}\" of line {line} matches all clients"),
                format_args!("move \"{first};\" behind it"),
            );
        }
    }
}

fn access_rules_replaced(model: &Model<'_>, found: &mut Findings<'_>) {
    for block in model.all().filter(|at| at.name() == "location") {
        let rules = rules_of(block);
        let Some(first) = rules.first().filter(|_| !rules.iter().any(|rule| rule.arg(0) == "all")) else {
            continue;
        };
        let outer = block.parent().map(|outer| outer.in_effect("deny")).unwrap_or_default();
        if let Some(deny) = outer.iter().find(|rule| rule.arg(0) == "all") {
            let line = deny.statement().span().line;
            found.add(
                *first,
                format_args!(
                    "the rules of this block replace those of line {line}, which deny all other clients"
                ),
                "repeat the outer rules in this block, with \"deny all;\" as the last one",
            );
        }
    }
}

fn satisfy_any_open(model: &Model<'_>, found: &mut Findings<'_>) {
    for at in model.named("satisfy").filter(|at| at.arg(0) == "any") {
        let Some(block) = at.parent() else { continue };
        let rules = block.in_effect("allow");
        if let Some(rule) = rules.iter().find(|rule| rule.arg(0) == "all") {
            found.add(
                *rule,
                "with \"satisfy any\" this rule grants access to all clients without a password",
                "allow only the networks that need no password, and end with \"deny all;\"",
            );
        }
    }
}

fn missing_auth_file(model: &Model<'_>, found: &mut Findings<'_>) {
    for at in model.named("auth_basic_user_file").filter(|at| !at.arg(0).contains('$')) {
        let path = at.arg(0);
        if model.facts.exists(std::path::Path::new(path)) == Some(false) {
            let message = format_args!("\"{path}\" does not exist: each request is refused");
            found.add(at, message, "create the file (htpasswd -c), or correct the path");
        }
    }
}

fn auth_basic_without_file(model: &Model<'_>, found: &mut Findings<'_>) {
    for at in model.named("auth_basic").filter(|at| at.arg(0) != "off") {
        let Some(block) = at.parent() else { continue };
        let below = block.inside().any(|inner| inner.name() == "auth_basic_user_file");
        if block.in_effect("auth_basic_user_file").is_empty() && !below {
            found.add(
                at,
                "no \"auth_basic_user_file\" is in effect",
                "add \"auth_basic_user_file\" with the file of passwords",
            );
        }
    }
}

/// Returns the locations of `auth_request`, with the directive.
fn auth_targets<'m, 't>(model: &'m Model<'t>) -> Vec<At<'m, 't>> {
    let mut targets: Vec<At<'m, 't>> = Vec::new();
    for at in model.named("auth_request").filter(|at| at.arg(0) != "off") {
        let path = at.arg(0).split('?').next().unwrap_or_default();
        let servers = at.server().into_iter().chain(model.named("server").filter(|_| at.server().is_none()));
        for server in servers {
            let target = server.own("location").find(|location| {
                let Location { kind, path: prefix } = Location::of(*location);
                matches!(kind, "" | "=" | "^~") && prefix == path
            });
            targets.extend(target.filter(|target| !targets.contains(target)));
        }
    }
    targets
}

fn auth_request_target(model: &Model<'_>, found: &mut Findings<'_>) {
    for target in auth_targets(model).into_iter().filter(|target| !target.has_own(&["internal"])) {
        let path = Location::of(target).path;
        found.add(
            target,
            format_args!("clients can request {path}, which \"auth_request\" uses"),
            "add \"internal;\" to this location",
        );
    }
}

fn auth_request_body(model: &Model<'_>, found: &mut Findings<'_>) {
    for target in auth_targets(model) {
        let Some(pass) = target.own("proxy_pass").next() else { continue };
        let drops_length = target
            .in_effect("proxy_set_header")
            .iter()
            .any(|field| field.arg(0).eq_ignore_ascii_case("Content-Length") && field.arg(1).is_empty());
        if !drops_length && !target.is_set("proxy_pass_request_headers", "off") {
            found.add(
                pass,
                "the subrequest has the Content-Length of the client's request, but no body",
                "add \"proxy_pass_request_body off; proxy_set_header Content-Length \\\"\\\";\"",
            );
        }
    }
}

/// Whether only this machine reaches a server.
fn is_local(server: At<'_, '_>) -> bool {
    let listens: Vec<_> = server.own("listen").collect();
    !listens.is_empty() && listens.iter().all(|listen| text::is_loopback(listen.arg(0)))
}

/// Whether some access check is in effect in a block.
pub(super) fn is_guarded(block: At<'_, '_>) -> bool {
    let guards = ["deny", "auth_request", "auth_basic", "auth_jwt", "auth_oidc"];
    guards.iter().any(|name| block.in_effect(name).iter().any(|rule| rule.arg(0) != "off"))
        || block.here_and_above().any(|at| at.has_own(&["internal"]))
        || block.here_and_above().any(|at| at.is_set("ssl_verify_client", "on"))
}

fn open_status(model: &Model<'_>, found: &mut Findings<'_>) {
    for name in ["stub_status", "dashboard", "metrics", "api", "cache_counters"] {
        for at in model.named(name) {
            let (Some(block), Some(server)) = (at.parent(), at.server()) else { continue };
            let decides = block.here_and_above().any(|above| above.has_own(&["if"]));
            if !is_local(server) && !is_guarded(block) && !decides {
                found.add(
                    at,
                    format_args!("all clients can read \"{name}\""),
                    "add \"allow\" for the monitoring and \"deny all;\", or listen on 127.0.0.1",
                );
            }
        }
    }
}

fn client_certificate_unchecked(model: &Model<'_>, found: &mut Findings<'_>) {
    let reads = |at: At<'_, '_>| {
        let words = at.args().chain([at.name()]);
        words.flat_map(text::variables).any(|name| name.starts_with("ssl_client_"))
    };
    for at in model.named("ssl_verify_client").filter(|at| at.arg(0).starts_with("optional")) {
        if !model.all().any(reads) {
            found.add(
                at,
                "requests without a certificate are served like all others",
                "write \"ssl_verify_client on;\", or decide by $ssl_client_verify",
            );
        }
    }
}
