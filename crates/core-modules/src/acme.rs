//! `http_acme`: certificates from certificate authorities (ACME, RFC 8555), like nginx's module of that name.
//!
//! ```text
//!   acme_issuer ----> Wanted { issuers } <---- acme_certificate (server): an order
//!                        |                          |
//!         issuers(): to the agent's process         +--> Slots: order -> slot, used by ssl_certificate $acme_certificate
//! ```
//! The directives describe the certificates to obtain: [`issuers`] returns them for the process that obtains them. A
//! server block with `acme_certificate` has a slot in [`exchange::acme::Slots`], which `ssl_certificate
//! $acme_certificate` uses. Until the first certificate arrives, the slot holds a placeholder that no client trusts.
//! The handler in this file serves the challenge files that authorities request.

use std::net::IpAddr;
use std::time::SystemTime;

use ::acme::base64url;
use ::acme::settings::{AccountKey, ChallengeKind, ExternalAccount, Issuer, Order, Profile};
use ::acme::url::Url;
use ::tls::server::Slot;
use ::tls::signing::KeyKind;
use conf::{Args, Contexts, Error, Object, Spec, Support, value};
use exchange::acme::{Acme, Slots, http_challenge};
use exchange::module::Variable;
use exchange::phases::{Phase, Step};
use exchange::request::Request;
use exchange::response::ContentType;
use http::fields::Method;
use io::segments::Source;
use site::config::{BlockEnd, BlockKind, Config, Cx, Http, HttpType, Scope, Settings, SettingsType};
use site::declaration::BlockHooks;
use site::shared_zone::BYTES_MIN;
use site::uses::FileUse;

use crate::{Declaration, Directive, Module};

/// The module.
pub(crate) static MODULE: Module = Module {
    variables: VARIABLES,
    // The handler runs before the server's own handlers, such as a redirect to https: the authority follows redirects,
    // but the target may have no certificate yet.
    add_to_plan: |http, scope, plan| {
        let issuers = &http.of::<Issuers>().issuers;
        if issuers.iter().any(|issuer| issuer.challenge == ChallengeKind::Http01 && !issuer.orders.is_empty())
        {
            plan.now(Phase::PostRead, scope.shared::<Acme>(), serve_challenge);
        }
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Draft>(), SettingsType::of::<Acme>()],
        http: &[HttpType::of::<Issuers>(), HttpType::of::<Slots>()],
        blocks: BlockHooks { end, ..BlockHooks::NONE },
        ..Declaration::named("http_acme")
    })
};

const ONE: Args = Args::Exactly(1);

const DIRECTIVES: &[Directive] = &[
    Directive::http(
        Spec::new(
            "http_acme",
            "acme_issuer",
            Contexts::HTTP,
            ONE,
            "A certificate authority and the account there: `uri`, `account_key`, `challenge`, `common_name_in_csr`, `contact`, \
             `external_account_key`, `preferred_chain`, `profile`, `ssl_trusted_certificate`, `ssl_verify`, \
             `state_path`, `accept_terms_of_service`.",
        )
        .raw()
        .many(),
        add_issuer,
    ),
    Directive::http(
        Spec::new(
            "http_acme",
            "acme_shared_zone",
            Contexts::HTTP,
            ONE,
            "The shared zone of nginx for certificates, `zone=NAME:SIZE`.",
        )
        .default("zone=ngx_acme_shared:256k")
        .state(Support::Accepted("threads share their memory")),
        check_zone,
    ),
    Directive::scope(
        Spec::new(
            "http_acme",
            "acme_certificate",
            Contexts::SERVER,
            Args::AtLeast(1),
            "Obtains a certificate from an issuer, for these names or those of `server_name`; `key=` is the kind of its key.",
        ),
        set_certificate,
    ),
];

const VARIABLES: &[Variable] = &[
    Variable {
        name: "acme_certificate",
        get: |request, out| {
            let Some(slot) = &request.location().scope.of::<Acme>().slot else { return false };
            for der in slot.get().chain() {
                out.extend_from_slice(::tls::certificate::to_pem(der).as_bytes());
            }
            true
        },
        set: None,
        help: "The certificate of `acme_certificate`; in `ssl_certificate` it stands for the newest one.",
    },
    // A key must never appear in a response or a log.
    Variable {
        name: "acme_certificate_key",
        get: |_, _| false,
        set: None,
        help: "The key of `$acme_certificate`, only for `ssl_certificate_key`; empty elsewhere.",
    },
];

/// Authorities with the certificates to obtain from each, in file order.
///
/// The blocks are added first, wherever they are written, because a server may name a block that follows. The orders of
/// a server are added at the end of its block.
#[derive(Debug, Default)]
struct Issuers {
    issuers: Vec<Issuer>,
}

/// Returns the authorities, with the certificates that a configuration orders from each.
pub fn issuers(config: &Config) -> &[Issuer] {
    &config.http.of::<Issuers>().issuers
}

/// The `acme_certificate` of a server. Locations inherit the value without using it. The slot is created at the end of
/// the server's block, when all of `server_name` is known.
#[derive(Clone, Debug, Default)]
struct Draft {
    issuer: Option<String>,
    names: Vec<String>,
    key: KeyKind,
}

impl Settings for Draft {}

/// Checks the parameter `zone=NAME:SIZE` as nginx does, so that a configuration that loads here also loads in nginx.
/// The certificates of all threads are in ordinary memory.
fn check_zone(cx: &mut Cx<'_>) -> Result<(), Error> {
    let Some(zone) = cx.arg(0).strip_prefix("zone=") else {
        return Err(cx.error("\"acme_shared_zone\" must have \"zone\" parameter"));
    };
    let invalid = || cx.error(format_args!("invalid zone size \"{zone}\""));
    let (name, size) = zone.split_once(':').ok_or_else(invalid)?;
    if value::size(size).map_err(|_| invalid())? < BYTES_MIN {
        return Err(cx.error(format_args!("zone {name} is too small")));
    }
    Ok(())
}

/// The rows of an `acme_issuer` block: name, minimum and maximum number of arguments, whether it may be repeated.
const ROWS: [(&str, usize, usize, bool); 12] = [
    ("uri", 1, 1, true),
    ("account_key", 1, 1, false),
    ("challenge", 1, 1, false),
    ("common_name_in_csr", 1, 1, false),
    ("contact", 1, 1, true),
    ("external_account_key", 2, 2, false),
    ("preferred_chain", 1, 1, false),
    ("profile", 1, 2, false),
    ("ssl_trusted_certificate", 1, 1, false),
    ("ssl_verify", 1, 1, false),
    ("state_path", 1, 1, false),
    ("accept_terms_of_service", 0, 0, false),
];

/// Parses an `acme_issuer` block. Its rows are not in the tables of directives, because they are valid only here. Two rows
/// (`ssl_verify`, `ssl_trusted_certificate`) have names of directives with another meaning.
fn add_issuer(cx: &mut Cx<'_>) -> Result<(), Error> {
    let (name, statement) = (cx.arg(0), cx.statement);
    if cx.http.of::<Issuers>().issuers.iter().any(|issuer| issuer.name == name) {
        return Err(cx.error("\"acme_issuer\" directive is duplicate"));
    }
    // The name becomes part of the default state directory's path, and of the identifiers of orders.
    if name.is_empty() || name.contains('/') {
        return Err(cx.invalid(name));
    }
    let mut issuer = Issuer::new(name);
    issuer.state_path = Some(cx.path(&format!("acme_{name}"), FileUse::Master));
    let mut seen: Vec<&str> = Vec::new();
    for row in statement.rows() {
        let row = row?;
        let cx = &mut cx.at(row);
        let what = row.name.text.as_str();
        let Some((_, min, max, many)) = ROWS.iter().find(|(known, ..)| *known == what) else {
            return Err(cx.error(format_args!("unknown directive \"{what}\"")));
        };
        if !(*min..=*max).contains(&row.args.len()) {
            return Err(cx.error(format_args!("invalid number of arguments in \"{what}\"")));
        }
        if !many && seen.contains(&what) {
            return Err(cx.error(format_args!("\"{what}\" directive is duplicate")));
        }
        seen.push(what);
        read_row(&mut issuer, what, cx)?;
    }
    if issuer.uri.is_empty() {
        return Err(Error::at(&statement.end, "acme_issuer: \"uri\" is missing"));
    }
    cx.http.make_mut::<Issuers>().issuers.push(issuer);
    Ok(())
}

/// Parses a row of the block, whose number of arguments was already checked.
fn read_row(issuer: &mut Issuer, what: &str, cx: &mut Cx<'_>) -> Result<(), Error> {
    let text = cx.statement.args.first().map_or("", |word| word.text.as_str());
    match what {
        "uri" => {
            // The protocol requires https (RFC 8555 section 6.1). As in nginx the last of several rows counts.
            if Url::parse(text).is_none() {
                return Err(
                    cx.error(format_args!("invalid \"uri\" value \"{text}\": it has to be an https URL"))
                );
            }
            issuer.uri = text.to_owned();
        }
        "account_key" => {
            issuer.account_key = match key_kind(text) {
                Some(Ok(kind)) => AccountKey::Generated(kind),
                Some(Err(reason)) => return Err(cx.error(format_args!("account_key: {reason}"))),
                None => AccountKey::Pem(read_key(cx, text)?),
            }
        }
        "challenge" => {
            issuer.challenge = match text {
                "http" | "http-01" => ChallengeKind::Http01,
                "tls-alpn" | "tls-alpn-01" => ChallengeKind::TlsAlpn01,
                _ => return Err(cx.error(format_args!("unsupported challenge: {text}"))),
            }
        }
        "common_name_in_csr" => cx.flag(&mut issuer.has_common_name)?,
        "contact" => issuer.contacts.push(contact(text).ok_or_else(|| cx.invalid(text))?),
        "external_account_key" => issuer.external_account = Some(external_account(cx)?),
        "preferred_chain" => issuer.preferred_chain = Some(text.to_owned()),
        "profile" => {
            let is_required = match cx.statement.args.get(1).map(|word| word.text.as_str()) {
                None => false,
                Some("require") => true,
                Some(other) => return Err(cx.invalid(other)),
            };
            issuer.profile = Some(Profile { name: text.to_owned(), is_required });
        }
        "ssl_trusted_certificate" => {
            issuer.roots = Some(exchange::tls_arguments::read_file(cx, "certificate")?.bytes.to_vec())
        }
        "ssl_verify" => cx.flag(&mut issuer.verifies)?,
        "state_path" => issuer.state_path = (text != "off").then(|| cx.path(text, FileUse::Master)),
        _ => issuer.accepts_terms = true,
    }
    Ok(())
}

/// Parses `ecdsa`, or `rsa` with a size; returns `None` if the text is a file name. Errors for invalid sizes have
/// nginx's text.
fn key_kind(text: &str) -> Option<Result<KeyKind, &'static str>> {
    let wrong = match text.split(':').next() {
        Some("ecdsa") => "unsupported curve",
        Some("rsa") => "unsupported key size",
        _ => return None,
    };
    let whole = match text {
        "ecdsa" => "ecdsa:256",
        "rsa" => "rsa:2048",
        _ => text,
    };
    Some(KeyKind::ALL.iter().find(|(name, _)| *name == whole).map(|(_, kind)| *kind).ok_or(wrong))
}

/// Reads the file of an account key. It is read and checked here, with the privileges of the master, so that `-t`
/// reports errors in it. The process that obtains certificates gets its bytes.
fn read_key(cx: &mut Cx<'_>, text: &str) -> Result<Vec<u8>, Error> {
    let file = exchange::tls_arguments::read_file(cx, "account key")?;
    // A worker of `sandbox strict` gets no keys, and does not need this one.
    if !::tls::apart::is_connected() {
        ::tls::signing::SigningKey::from_pem(&file.bytes)
            .map_err(|error| cx.error(format_args!("cannot load account key \"{text}\": {error}")))?;
    }
    Ok(file.bytes.to_vec())
}

/// Returns a contact URL; a text without a scheme is an e-mail address.
fn contact(text: &str) -> Option<String> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return None;
    }
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|char: char| char.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    };
    let has_scheme = text.split_once(':').is_some_and(|(scheme, _)| is_scheme(scheme));
    Some(if has_scheme { text.to_owned() } else { format!("mailto:{text}") })
}

/// Parses the key identifier, and the key or its file in base64url. The authority provides both. No message may show
/// the key.
fn external_account(cx: &mut Cx<'_>) -> Result<ExternalAccount, Error> {
    let (id, text) = (cx.arg(0), cx.arg(1));
    if id.is_empty() || text.is_empty() {
        return Err(cx.invalid(""));
    }
    let encoded = match text.strip_prefix("data:") {
        Some(encoded) => encoded.to_owned(),
        None => {
            let path = cx.conf_prefix.join(text);
            cx.http.stand_ins.insert(path.clone(), b"AA");
            String::from_utf8_lossy(&cx.read_data(&path)?).into_owned()
        }
    };
    let secret = base64url::decode(encoded.trim()).filter(|secret| !secret.is_empty());
    let invalid = || cx.error("\"external_account_key\" directive invalid base64url encoded value");
    Ok(ExternalAccount { id: id.to_owned(), secret: secret.ok_or_else(invalid)? })
}

/// Sets `acme_certificate`: the issuer, followed by names and the kind of the key in any order. The issuer is resolved
/// later, because its block may follow.
fn set_certificate(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let mut draft = Draft { issuer: Some(cx.arg(0).to_owned()), ..Draft::default() };
    if cx.arg(0).is_empty() {
        return Err(cx.error("\"acme_certificate\" directive \"issuer\" is missing"));
    }
    for word in &cx.statement.args[1..] {
        let text = word.text.as_str();
        match text.strip_prefix("key=") {
            Some(kind) => {
                let kind = key_kind(kind).unwrap_or(Err("invalid \"key\" value"));
                draft.key = kind.map_err(|reason| cx.error(format_args!("acme_certificate: {reason}")))?;
            }
            None if text.is_empty() => return Err(cx.invalid(text)),
            None => {
                let added = add_name(&mut draft.names, text);
                added.map_err(|reason| cx.error(format_args!("acme_certificate: {reason}")))?;
            }
        }
    }
    *scope.make_mut::<Draft>() = draft;
    Ok(())
}

/// Adds a name or an address in the form for the authority: lower case, addresses as in RFC 5952. A leading dot means
/// the name with and without `www.`.
fn add_name(names: &mut Vec<String>, text: &str) -> Result<(), String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        push(names, address.to_string());
        return Ok(());
    }
    let lower = text.to_ascii_lowercase();
    let name = lower.strip_prefix('.').unwrap_or(&lower);
    if name.contains('*') {
        return Err(format!("a wildcard cannot be verified by http-01 or tls-alpn-01: \"{text}\""));
    }
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    if name.len() > 253 || !name.split('.').all(is_label) {
        return Err(format!("invalid server name: \"{text}\""));
    }
    if lower.starts_with('.') {
        push(names, format!("www.{name}"));
    }
    push(names, name.to_owned());
    Ok(())
}

/// Adds a name unless it is a duplicate, because authorities reject orders with duplicates.
fn push(names: &mut Vec<String>, name: String) {
    if !names.contains(&name) {
        names.push(name);
    }
}

/// Assigns a slot to a server. Servers with equal orders share a slot, so that the authority gets only one order. The
/// order of names matters, because the first one is the common name.
fn end(http: &mut Http, scope: &mut Scope, block: &BlockEnd<'_>) -> Result<(), Error> {
    let Draft { issuer: Some(issuer), mut names, key } = scope.of::<Draft>().clone() else { return Ok(()) };
    if block.kind != BlockKind::Server {
        return Ok(());
    }
    let at = |message: String| Error::at(block.span, message);
    if names.is_empty() {
        // An authority cannot verify regular expressions.
        let written = block.names.iter().filter(|name| name.pattern().is_none() && !name.text().is_empty());
        for name in written {
            add_name(&mut names, name.text())
                .map_err(|reason| at(format!("\"acme_certificate\": {reason}")))?;
        }
    }
    if names.is_empty() {
        return Err(at("\"acme_certificate\": no identifiers found in \"server_name\"".to_owned()));
    }
    let placeholder = ::tls::issue::placeholder(&names, SystemTime::now());
    let placeholder = placeholder.map_err(|error| at(error.to_string()))?;
    // A placeholder is created for each server, in about 30 us, although most servers already have a stored certificate:
    // the master and the worker find stored certificates only later.
    let order = Order { names, key };
    let mut issuers = http.make_mut::<Issuers>().issuers.iter_mut();
    let found = issuers.find(|known| known.name == issuer);
    let found = found.ok_or_else(|| Error::undefined(block.span, Object::Issuer, &issuer))?;
    let id = found.id_of(&order);
    if !found.orders.contains(&order) {
        found.orders.push(order);
    }
    let slot = http.make_mut::<Slots>().0.entry(id).or_insert_with(|| Slot::new(placeholder));
    scope.make_mut::<Acme>().slot = Some(std::sync::Arc::clone(slot));
    Ok(())
}

/// Serves a challenge file that an authority requests, independently of the server's other handlers. Other paths below
/// the directory are left to the server, because another ACME client may store its files there.
fn serve_challenge(_: &Acme, request: &mut Request) -> Step {
    if !matches!(request.method, Method::Get | Method::Head) {
        return Step::Next;
    }
    // Only the token is compared, because an authority may connect to any server of the port, by name or address.
    let token = request.uri.strip_prefix(b"/.well-known/acme-challenge/");
    let token = token.and_then(|token| std::str::from_utf8(token).ok());
    let Some(text) = token.and_then(http_challenge) else { return Step::Next };
    let response = &mut request.response;
    response.status = 200;
    response.content_type = ContentType::Text("text/plain".into());
    response.set_bytes(Source::Vec(text.into_bytes()));
    Step::Done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded};

    const ISSUER: &str = "acme_issuer one { uri https://a.example/dir; }";

    #[test]
    fn directives_of_an_issuer_are_read() {
        let config = loaded(
            "acme_issuer one {
                uri https://a.example:14000/dir;
                account_key ecdsa:384;
                challenge tls-alpn;
                contact a@b.example;
                contact tel:1;
                external_account_key kid data:Zm9v;
                preferred_chain \"Root X1\";
                profile shortlived require;
                ssl_verify off;
                state_path off;
                common_name_in_csr on;
                accept_terms_of_service;
             }
             acme_issuer two { uri https://b.example/; }
             acme_shared_zone zone=x:1M;",
        );
        let [one, two] = issuers(&config) else { panic!("two issuers") };
        assert_eq!(one.account_key, AccountKey::Generated(KeyKind::EcdsaP384));
        assert_eq!(one.challenge, ChallengeKind::TlsAlpn01);
        assert_eq!(one.contacts, ["mailto:a@b.example", "tel:1"]);
        assert_eq!(one.external_account.as_ref().map(|account| account.secret.as_slice()), Some(&b"foo"[..]));
        assert_eq!(one.preferred_chain.as_deref(), Some("Root X1"));
        assert_eq!(one.profile, Some(Profile { name: "shortlived".to_owned(), is_required: true }));
        assert_eq!((one.verifies, one.has_common_name, one.accepts_terms), (false, true, true));
        assert_eq!(one.state_path, None);
        assert!(two.state_path.as_ref().is_some_and(|path| path.ends_with("acme_two")), "{two:?}");
        assert_eq!((two.verifies, two.challenge), (true, ChallengeKind::Http01));
    }

    #[test]
    fn names_are_taken_from_the_directive_or_the_server() {
        let config = loaded(&format!(
            "{ISSUER} server {{ server_name .Example.org ~^x$ 192.0.2.1; acme_certificate one; }}
             server {{ server_name other; acme_certificate one b.example key=rsa:3072; }}
             server {{ server_name more; acme_certificate one b.example key=rsa:3072; }}"
        ));
        let orders = &issuers(&config)[0].orders;
        let names: Vec<Vec<&str>> =
            orders.iter().map(|order| order.names.iter().map(String::as_str).collect()).collect();
        assert_eq!(names, [vec!["www.example.org", "example.org", "192.0.2.1"], vec!["b.example"]]);
        assert_eq!(orders[1].key, KeyKind::Rsa3072);
        assert_eq!(config.http.of::<Slots>().0.len(), 2, "equal orders share a slot");
    }

    #[test]
    fn wrong_statements_are_refused() {
        for (text, expected) in [
            ("acme_issuer a { }", "acme_issuer: \"uri\" is missing"),
            ("acme_issuer a { uri http://a/; }", "invalid \"uri\" value \"http://a/\""),
            ("acme_issuer a { nonsense 1; }", "unknown directive \"nonsense\""),
            ("acme_issuer a { uri; }", "invalid number of arguments in \"uri\""),
            ("acme_issuer a { challenge dns-01; }", "unsupported challenge: dns-01"),
            ("acme_issuer a { account_key rsa:1024; }", "account_key: unsupported key size"),
            ("acme_issuer a { account_key ecdsa:1; }", "account_key: unsupported curve"),
            ("acme_issuer a { account_key /none; }", "cannot load account key"),
            (
                "acme_issuer a { external_account_key k data:*; }",
                "\"external_account_key\" directive invalid base64url",
            ),
            ("acme_issuer a { ssl_verify on; ssl_verify on; }", "\"ssl_verify\" directive is duplicate"),
            ("acme_issuer a { profile x y; }", "\"profile\" directive invalid value"),
            ("acme_shared_zone x;", "\"acme_shared_zone\" must have \"zone\" parameter"),
            ("acme_shared_zone zone=x:1k;", "zone x is too small"),
            ("server { acme_certificate none a; }", "issuer \"none\" is missing"),
            ("server { acme_certificate a *.b; }", "acme_certificate: a wildcard cannot be verified"),
            ("server { acme_certificate a b..c; }", "acme_certificate: invalid server name: \"b..c\""),
            ("server { acme_certificate a b key=dsa; }", "acme_certificate: invalid \"key\" value"),
        ] {
            let found = error(&format!("http {{\n{text} }}"));
            assert!(found.starts_with(expected) && found.contains("nginx.conf:2"), "{text}: {found}");
        }
        let found = error(&format!("http {{ {ISSUER}\n server {{ acme_certificate one; }} }}"));
        assert!(
            found.starts_with("\"acme_certificate\": no identifiers found in \"server_name\""),
            "{found}"
        );
        let found = error(&format!("http {{ {ISSUER}\n{ISSUER} }}"));
        assert!(found.starts_with("\"acme_issuer\" directive is duplicate"), "{found}");
    }
}
