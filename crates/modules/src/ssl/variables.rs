//! `$ssl_*`: what is known of a connection's handshake and of its client's certificate. Without TLS none has a value.

use std::time::{SystemTime, UNIX_EPOCH};

use ::tls::certificate::to_pem;
use ::tls::x509::{Certificate, NameForm};
use ::tls::{ciphers, groups};
use exchange::request::Request;
use exchange::secured::Secured;
use exchange::variables::Variable;

const SECONDS_PER_DAY: i64 = 86_400;

pub(super) const VARIABLES: &[Variable] = &[
    text(
        "ssl_alpn_protocol",
        |request, out| put(request, out, |it| not_empty(&it.alpn)),
        "The protocol that ALPN agreed on.",
    ),
    text(
        "ssl_cipher",
        |request, out| put(request, out, |it| Some(it.cipher.into())),
        "The cipher suite of the connection.",
    ),
    text("ssl_ciphers", |request, out| put(request, out, suites), "Cipher suites that the client offers."),
    text(
        "ssl_client_cert",
        |request, out| put(request, out, tabbed),
        "The client's certificate in PEM, its lines behind tabs.",
    ),
    text(
        "ssl_client_escaped_cert",
        |request, out| put(request, out, escaped),
        "The client's certificate in PEM, escaped as in URLs.",
    ),
    text(
        "ssl_client_fingerprint",
        |request, out| of_client(request, out, Certificate::fingerprint),
        "The SHA-1 of the client's certificate.",
    ),
    text(
        "ssl_client_i_dn",
        |request, out| of_client(request, out, |it| it.issuer(NameForm::Rfc2253)),
        "Who signed the client's certificate (RFC 2253).",
    ),
    text(
        "ssl_client_i_dn_legacy",
        |request, out| of_client(request, out, |it| it.issuer(NameForm::Legacy)),
        "The same in the older form.",
    ),
    text(
        "ssl_client_raw_cert",
        |request, out| put(request, out, |it| it.client.first().map(|der| to_pem(der).into_bytes())),
        "The client's certificate in PEM.",
    ),
    text(
        "ssl_client_s_dn",
        |request, out| of_client(request, out, |it| it.subject(NameForm::Rfc2253)),
        "The holder of the client's certificate (RFC 2253).",
    ),
    text(
        "ssl_client_s_dn_legacy",
        |request, out| of_client(request, out, |it| it.subject(NameForm::Legacy)),
        "The same in the older form.",
    ),
    text(
        "ssl_client_serial",
        |request, out| of_client(request, out, Certificate::serial),
        "The number of the client's certificate.",
    ),
    text("ssl_client_sigalg", |_, _| false, "The algorithm of the client's signature; it has no value yet."),
    text(
        "ssl_client_v_end",
        |request, out| of_client(request, out, Certificate::not_after),
        "When the client's certificate ends.",
    ),
    text("ssl_client_v_remain", |request, out| of_client(request, out, remaining_days), "Days until then."),
    text(
        "ssl_client_v_start",
        |request, out| of_client(request, out, Certificate::not_before),
        "When the client's certificate begins.",
    ),
    text(
        "ssl_client_verify",
        |request, out| put(request, out, |it| Some(verdict(it).into_bytes())),
        "`SUCCESS`, `FAILED:reason`, or `NONE` without a certificate.",
    ),
    text(
        "ssl_curve",
        |request, out| put(request, out, |it| Some(it.curve.into())),
        "The group of the key exchange.",
    ),
    text("ssl_curves", |request, out| put(request, out, offered_groups), "Groups that the client offers."),
    text(
        "ssl_early_data",
        |_, _| false,
        "`1` for requests of a resumed session's first bytes; it has no value yet.",
    ),
    text(
        "ssl_ech_outer_server_name",
        |_, _| false,
        "The public name of Encrypted Client Hello, which is not supported.",
    ),
    text("ssl_ech_status", |_, _| false, "What came of Encrypted Client Hello, which is not supported."),
    text(
        "ssl_protocol",
        |request, out| put(request, out, |it| Some(it.protocol.into())),
        "The version of TLS.",
    ),
    text(
        "ssl_server_name",
        |request, out| put(request, out, |it| it.hello.name.clone().map(String::into_bytes)),
        "The server's name that the client asked TLS for.",
    ),
    text("ssl_session_id", |_, _| false, "The identifier of the session; it has no value yet."),
    text(
        "ssl_session_reused",
        |request, out| put(request, out, |it| Some(if it.is_resumed { "r" } else { "." }.into())),
        "`r` for a resumed session, else `.`.",
    ),
    text("ssl_sigalg", |_, _| false, "The algorithm of the server's signature; it has no value yet."),
    text(
        "ssl_sigalgs",
        |request, out| put(request, out, schemes),
        "Schemes of signatures that the client understands.",
    ),
];

const fn text(name: &'static str, get: fn(&Request, &mut Vec<u8>) -> bool, help: &'static str) -> Variable {
    Variable { name, get, set: None, help }
}

/// Writes a value out of the facts of a connection with TLS.
fn put(request: &Request, out: &mut Vec<u8>, get: impl FnOnce(&Secured) -> Option<Vec<u8>>) -> bool {
    let value = request.conn.secured.get().and_then(|secured| get(secured));
    value.is_some_and(|value| {
        out.extend_from_slice(&value);
        true
    })
}

/// Writes a value out of the client's certificate.
fn of_client(request: &Request, out: &mut Vec<u8>, get: impl FnOnce(&Certificate) -> Option<String>) -> bool {
    put(request, out, |secured| {
        let certificate = Certificate::from_der(secured.client.first()?)?;
        get(&certificate).map(String::into_bytes)
    })
}

fn not_empty(bytes: &[u8]) -> Option<Vec<u8>> {
    if bytes.is_empty() { None } else { Some(bytes.to_vec()) }
}

fn joined(names: impl Iterator<Item = String>) -> Option<Vec<u8>> {
    not_empty(names.collect::<Vec<_>>().join(":").as_bytes())
}

fn suites(secured: &Secured) -> Option<Vec<u8>> {
    joined(secured.hello.suites.iter().map(|suite| ciphers::names_of_offer(*suite)))
}

fn offered_groups(secured: &Secured) -> Option<Vec<u8>> {
    let name = |group: &_| {
        groups::name_of(*group).map_or_else(|| format!("0x{:04x}", u16::from(*group)), str::to_owned)
    };
    joined(secured.hello.groups.iter().map(name))
}

fn schemes(secured: &Secured) -> Option<Vec<u8>> {
    joined(secured.hello.schemes.iter().map(|scheme| format!("0x{:04x}", u16::from(*scheme))))
}

/// The certificate for a header field: every line but the first is behind a tab.
fn tabbed(secured: &Secured) -> Option<Vec<u8>> {
    let pem = to_pem(secured.client.first()?);
    Some(pem.trim_end().replace('\n', "\n\t").into_bytes())
}

fn escaped(secured: &Secured) -> Option<Vec<u8>> {
    let pem = to_pem(secured.client.first()?);
    let mut out = Vec::new();
    http::uri::escape(http::uri::Escape::UriComponent, pem.as_bytes(), &mut out);
    Some(out)
}

fn remaining_days(certificate: &Certificate) -> Option<String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
    let left = certificate.expires()? - i64::try_from(now).ok()?;
    Some((left.max(0) / SECONDS_PER_DAY).to_string())
}

fn verdict(secured: &Secured) -> String {
    match &secured.verdict {
        _ if secured.client.is_empty() => "NONE".to_owned(),
        Some(Err(distrust)) => format!("FAILED:{distrust}"),
        _ => "SUCCESS".to_owned(),
    }
}
