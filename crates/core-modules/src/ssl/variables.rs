//! `$ssl_*`: values of a connection's handshake and of its client certificate. Without TLS they have no value.

use std::marker::PhantomData;
use std::time::{SystemTime, UNIX_EPOCH};

use ::tls::certificate::to_pem;
use ::tls::x509::{Certificate, NameForm};
use ::tls::{SignatureScheme, ciphers, groups, seen};
use exchange::request::OnConnection;
use exchange::secured::Secured;
use site::variables::{Assign, Variable};

/// The unit of `$ssl_client_v_remain`.
const SECONDS_PER_DAY: i64 = 86_400;

/// The variables of requests, or of sessions, each with the function that writes its value; the function returns `false` if there is
/// none.
pub(super) struct Rows<R>(PhantomData<R>);

impl<R: OnConnection> Rows<R> {
    /// The variables.
    pub(super) const VARIABLES: &'static [Variable<R>] = &[
        text(
            "ssl_alpn_protocol",
            |request, out| put(request, out, |it| not_empty(&it.alpn)),
            "The protocol that ALPN selected.",
        ),
        text(
            "ssl_cipher",
            |request, out| put(request, out, |it| Some(it.cipher.into())),
            "The cipher suite of the connection.",
        ),
        text(
            "ssl_ciphers",
            |request, out| put(request, out, suites),
            "Cipher suites that the client offers.",
        ),
        text(
            "ssl_client_cert",
            |request, out| put(request, out, tabbed),
            "The client's certificate in PEM, with a tab before each line except the first.",
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
            "Issuer DN of the client's certificate (RFC 2253).",
        ),
        text(
            "ssl_client_i_dn_legacy",
            |request, out| of_client(request, out, |it| it.issuer(NameForm::Legacy)),
            "Issuer DN of the client's certificate, in the older format.",
        ),
        text(
            "ssl_client_raw_cert",
            |request, out| put(request, out, |it| pem_of(it).map(String::into_bytes)),
            "The client's certificate in PEM.",
        ),
        text(
            "ssl_client_s_dn",
            |request, out| of_client(request, out, |it| it.subject(NameForm::Rfc2253)),
            "Subject DN of the client's certificate (RFC 2253).",
        ),
        text(
            "ssl_client_s_dn_legacy",
            |request, out| of_client(request, out, |it| it.subject(NameForm::Legacy)),
            "Subject DN of the client's certificate, in the older format.",
        ),
        text(
            "ssl_client_serial",
            |request, out| of_client(request, out, Certificate::serial),
            "The serial number of the client's certificate.",
        ),
        text(
            "ssl_client_sigalg",
            |request, out| put(request, out, |it| scheme(it.seen.client_signature)),
            "The algorithm of the client's signature.",
        ),
        text(
            "ssl_client_v_end",
            |request, out| of_client(request, out, Certificate::not_after),
            "End of the validity of the client's certificate.",
        ),
        text(
            "ssl_client_v_remain",
            |request, out| of_client(request, out, remaining_days),
            "Days until the client's certificate expires.",
        ),
        text(
            "ssl_client_v_start",
            |request, out| of_client(request, out, Certificate::not_before),
            "Start of the validity of the client's certificate.",
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
        text(
            "ssl_curves",
            |request, out| put(request, out, offered_groups),
            "Groups that the client offers.",
        ),
        text(
            "ssl_early_data",
            |request, out| put(request, out, early),
            "`1` for a request in early data (0-RTT), until the handshake has ended.",
        ),
        text(
            "ssl_ech_outer_server_name",
            |_, _| false,
            "The public name of Encrypted Client Hello, which is not supported.",
        ),
        text("ssl_ech_status", |_, _| false, "The result of Encrypted Client Hello, which is not supported."),
        text(
            "ssl_protocol",
            |request, out| put(request, out, |it| Some(it.protocol.into())),
            "The version of TLS.",
        ),
        text(
            "ssl_server_name",
            |request, out| put(request, out, |it| it.name.as_deref().map(|name| name.as_bytes().to_vec())),
            "The server name that the client sent (SNI).",
        ),
        text(
            "ssl_session_id",
            |request, out| put(request, out, session_id),
            "The identifier of the session, in hexadecimal digits.",
        ),
        text(
            "ssl_session_reused",
            |request, out| put(request, out, |it| Some(if it.is_resumed { "r" } else { "." }.into())),
            "`r` for a resumed session, else `.`.",
        ),
        text(
            "ssl_sigalg",
            |request, out| put(request, out, |it| scheme(it.seen.signature)),
            "The algorithm of the server's signature.",
        ),
        text(
            "ssl_sigalgs",
            |request, out| put(request, out, schemes),
            "Signature schemes that the client supports.",
        ),
    ];
}

/// Returns a variable that can be set, as in nginx: behind a proxy that terminates TLS, a configuration sets it from a field.
const fn text<R>(name: &'static str, get: fn(&R, &mut Vec<u8>) -> bool, help: &'static str) -> Variable<R> {
    Variable { name, get, set: Some(Assign::Replace), help }
}

/// Writes a value from the facts of a TLS connection.
fn put<R: OnConnection>(
    request: &R,
    out: &mut Vec<u8>,
    get: impl FnOnce(&Secured) -> Option<Vec<u8>>,
) -> bool {
    let value = request.conn().secured.get().and_then(|secured| get(secured));
    value.is_some_and(|value| {
        out.extend_from_slice(&value);
        true
    })
}

/// Writes a value from the client certificate.
fn of_client<R: OnConnection>(
    request: &R,
    out: &mut Vec<u8>,
    get: impl FnOnce(&Certificate) -> Option<String>,
) -> bool {
    put(request, out, |secured| get(secured.client.as_ref()?.parsed()?).map(String::into_bytes))
}

fn not_empty(bytes: &[u8]) -> Option<Vec<u8>> {
    if bytes.is_empty() { None } else { Some(bytes.to_vec()) }
}

fn joined(names: impl Iterator<Item = String>) -> Option<Vec<u8>> {
    not_empty(names.collect::<Vec<_>>().join(":").as_bytes())
}

fn suites(secured: &Secured) -> Option<Vec<u8>> {
    joined(secured.offer.suites().map(ciphers::names_of_offer))
}

fn offered_groups(secured: &Secured) -> Option<Vec<u8>> {
    joined(secured.offer.groups().map(groups::name_of_offer))
}

fn schemes(secured: &Secured) -> Option<Vec<u8>> {
    joined(secured.offer.schemes().map(|scheme| format!("0x{:04x}", u16::from(scheme))))
}

/// Returns OpenSSL's name of a signature scheme, as nginx shows it: the name in RFC 8446.
fn scheme(scheme: Option<SignatureScheme>) -> Option<Vec<u8>> {
    not_empty(seen::scheme_name(scheme?).as_bytes())
}

fn early(secured: &Secured) -> Option<Vec<u8>> {
    let is_early = secured.early.as_ref().is_some_and(|progress| progress.is_handshaking());
    is_early.then(|| b"1".to_vec())
}

fn session_id(secured: &Secured) -> Option<Vec<u8>> {
    let digits = secured.seen.session_id?.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    Some(digits.into_bytes())
}

fn pem_of(secured: &Secured) -> Option<String> {
    secured.client.as_ref().map(|client| to_pem(&client.der))
}

/// Returns the certificate for a header field: every line except the first is preceded by a tab.
fn tabbed(secured: &Secured) -> Option<Vec<u8>> {
    let pem = pem_of(secured)?;
    Some(pem.trim_end().replace('\n', "\n\t").into_bytes())
}

fn escaped(secured: &Secured) -> Option<Vec<u8>> {
    let pem = pem_of(secured)?;
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
        _ if secured.client.is_none() => "NONE".to_owned(),
        Some(Err(distrust)) => format!("FAILED:{distrust}"),
        _ => "SUCCESS".to_owned(),
    }
}
