//! TLS to clients.

use std::path::Path;

use crate::model::{At, Model};
use crate::rule::Level::{Error, Note, Warning};
use crate::rule::{Findings, Fix, Rule};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "weak-protocols",
        level: Error,
        what: "`ssl_protocols` has versions before TLS 1.2.",
        why: "SSLv3, TLS 1.0 and 1.1 are broken or forbidden (RFC 8996), and this server does not offer them.",
        mend: "Write `ssl_protocols TLSv1.2 TLSv1.3;`.",
        bad: "server { ssl_protocols TLSv1 TLSv1.2; }",
        good: "server { ssl_protocols TLSv1.2 TLSv1.3; }",
        check: |model, found| {
            for at in model.named("ssl_protocols") {
                if let Some(old) =
                    at.args().find(|arg| matches!(*arg, "SSLv2" | "SSLv3" | "TLSv1" | "TLSv1.1"))
                {
                    found.add(
                        at,
                        format_args!("{old} is insecure"),
                        "write \"ssl_protocols TLSv1.2 TLSv1.3;\"",
                    );
                }
            }
        },
    },
    Rule {
        name: "weak-ciphers",
        level: Error,
        what: "`ssl_ciphers` permits broken ciphers.",
        why: "RC4, DES, MD5, export ciphers and ciphers without encryption or authentication can be read by an attacker.",
        mend: "Remove the directive: the default has only secure ciphers.",
        bad: "server { ssl_ciphers HIGH:RC4-SHA; }",
        good: "server { ssl_ciphers HIGH:!RC4:!aNULL:!MD5; }",
        check: |model, found| {
            const WEAK: [&str; 12] = [
                "RC4", "DES-CBC", "3DES", "EXPORT", "EXP", "NULL", "aNULL", "eNULL", "LOW", "MD5", "ADH",
                "AECDH",
            ];
            for at in model.named("ssl_ciphers") {
                let ciphers =
                    at.arg(0).split([':', ' ', ',']).filter(|cipher| !cipher.starts_with(['!', '-']));
                let weak = ciphers.into_iter().find(|cipher| {
                    cipher.split(['-', '+', '_']).any(|part| WEAK.contains(&part))
                        || cipher.contains("DES-CBC")
                });
                if let Some(cipher) = weak {
                    found.add(
                        at,
                        format_args!("{cipher} is broken"),
                        "remove \"ssl_ciphers\": the default is secure",
                    );
                }
            }
        },
    },
    Rule {
        name: "certificate-name",
        level: Error,
        what: "The certificate is not valid for a name of the server.",
        why: "Browsers refuse the connection.",
        mend: "Use a certificate for all names, or another server for the name.",
        bad: "server { listen 443 ssl; server_name other.example; ssl_certificate for-www.example.org; ssl_certificate_key k; }",
        good: "server { listen 443 ssl; server_name www.example.org; ssl_certificate for-www.example.org; ssl_certificate_key k; }",
        check: certificate_name,
    },
    Rule {
        name: "session-tickets-shared-key",
        level: Note,
        what: "The key of session tickets is a file that is never replaced.",
        why: "Who gets the file can read all recorded connections of TLS 1.2.",
        mend: "Replace the file each day, or remove the directive: the server then changes keys itself.",
        bad: "server { ssl_session_ticket_key ticket.key; }",
        good: "server { ssl_session_tickets on; }",
        check: |model, found| {
            for at in model.named("ssl_session_ticket_key") {
                if at.parent().is_some_and(|block| block.own("ssl_session_ticket_key").count() == 1) {
                    found.fixable(
                        at,
                        "the key is never replaced",
                        "remove it: the server changes keys itself",
                        Fix::Remove,
                    );
                }
            }
        },
    },
    Rule {
        name: "basic-auth-without-tls",
        level: Note,
        what: "Passwords of `auth_basic` are sent without TLS.",
        why: "Everybody on the path can read them, unless a proxy in front has TLS.",
        mend: "Redirect to a server with `listen … ssl`.",
        bad: "server { listen 80; auth_basic x; auth_basic_user_file users; }",
        good: "server { listen 443 ssl; auth_basic x; auth_basic_user_file users; }",
        check: basic_auth,
    },
    Rule {
        name: "redirect-to-http",
        level: Warning,
        what: "A server with TLS redirects to `http://`.",
        why: "The next request and its cookies are readable, and often the redirect is a loop.",
        mend: "Write `https://`.",
        bad: "server { listen 443 ssl; location / { return 301 http://www.example.org$request_uri; } }",
        good: "server { listen 443 ssl; location / { return 301 https://www.example.org$request_uri; } }",
        check: |model, found| {
            for at in model.named("return").filter(|at| at.last().starts_with("http://")) {
                let is_tls = at.server().is_some_and(|server| {
                    let listens: Vec<_> = server.own("listen").collect();
                    !listens.is_empty()
                        && listens.iter().all(|listen| listen.has("ssl") || listen.has("quic"))
                });
                let index = at.args().count() - 1;
                let fix = Fix::SetArgument(index, at.last().replacen("http://", "https://", 1));
                if is_tls {
                    found.fixable(at, "the next request is not encrypted", "write https://", fix);
                }
            }
        },
    },
];

fn certificate_name(model: &Model<'_>, found: &mut Findings<'_>) {
    for server in model.named("server") {
        let certificates: Vec<_> = server.in_effect("ssl_certificate");
        let paths: Vec<&str> = certificates.iter().map(|at| at.arg(0)).collect();
        let is_tls = server.own("listen").any(|listen| listen.has("ssl") || listen.has("quic"));
        // One of several certificates is selected by the algorithms of the client, so each must be valid.
        let is_wrong = |name: &str| {
            paths.iter().any(|path| model.facts.is_certificate_for(Path::new(path), name) == Some(false))
        };
        for at in server.own("server_name").filter(|_| is_tls) {
            if let Some(name) = at.args().find(|name| is_host(name) && is_wrong(name)) {
                let path = paths.join(", ");
                found.add(
                    at,
                    format_args!("the certificate \"{path}\" is not valid for {name}"),
                    "use a certificate for all names",
                );
            }
        }
    }
}

/// Whether a server name is one host.
fn is_host(name: &str) -> bool {
    name.contains('.')
        && !name.contains(['*', '~', '$', '_'])
        && !name.starts_with('.')
        && !name.ends_with('.')
}

fn basic_auth(model: &Model<'_>, found: &mut Findings<'_>) {
    for at in model.named("auth_basic").filter(|at| at.arg(0) != "off") {
        let Some(server) = at.server() else { continue };
        let listens: Vec<At<'_, '_>> = server.own("listen").collect();
        let is_open = |listen: &At<'_, '_>| {
            matches!(listen.arg(0).rsplit(':').next(), Some("80"))
                && !listen.has("ssl")
                && !crate::text::is_loopback(listen.arg(0))
        };
        if !listens.is_empty() && listens.iter().all(is_open) {
            found.add(at, "passwords are sent without TLS", "redirect to a server with \"listen 443 ssl\"");
        }
    }
}
