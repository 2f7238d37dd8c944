//! Settings of OCSP requests: `ssl_stapling` without `ssl_stapling_file`, and `ssl_ocsp`.
//!
//! As in nginx, a certificate without a known issuer or responder is served without an OCSP response, and a warning is logged.
//! A directive in `http` may apply to a hundred servers, so all warnings of one directive are merged into one warning.

use std::path::Path;
use std::sync::Arc;

use ::tls::Identity;
use ::tls::certificate::certificates;
use ::tls::ocsp::{Subject, Verification};
use ::tls::x509::Certificate;
use conf::{Error, Level, Span, value};
use exchange::ocsp::client::ClientChecks;
use exchange::ocsp::{Responder, Staple, StapleSettings, StatusCache, named_cache};
use exchange::secured::VerifyClient;
use exchange::tls::Tls;
use exchange::tls_arguments::value_or_cancel;
use site::config::{Cx, Http, Requirements, Scope};

use super::conf::{Conf, readable};

/// Certificates of a server, as far as they are prepared for stapling.
#[derive(Default)]
pub(super) struct Stapled {
    /// Certificates whose OCSP responses are fetched.
    pub(super) staples: Vec<Arc<Staple>>,
    /// nginx's messages about certificates whose OCSP responses cannot be fetched.
    pub(super) faults: Vec<String>,
    /// Messages about certificates that are not used.
    pub(super) unused: Vec<String>,
}

impl Conf {
    /// Prepares a certificate for stapling; returns whether its OCSP response can be fetched.
    pub(super) fn staple(
        &self,
        identity: &Identity,
        path: &Path,
        stapled: &mut Stapled,
    ) -> Result<bool, String> {
        let name = path.display().to_string();
        let mut ignored = |why: String| {
            stapled.faults.push(format!("\"ssl_stapling\" ignored, {why}"));
            Ok(false)
        };
        let mut chain = identity.chain().iter().filter_map(|der| Certificate::from_der(der));
        let Some(own) = chain.next() else { return Ok(false) };
        let others: Vec<Certificate> = chain.collect();
        let mut trusted = Vec::new();
        for file in self.trusted_files() {
            // `roots` below returns the error of a damaged file.
            let found = certificates(&file.bytes).unwrap_or_default();
            trusted.extend(found.iter().filter_map(|der| Certificate::from_der(der)));
        }
        let issuer = others.iter().chain(&trusted).find(|other| other.is_issuer_of(&own)).cloned();
        let Some(issuer) = issuer else {
            return ignored(format!("issuer certificate not found for certificate \"{name}\""));
        };
        let Some(url) = self.stapling_responder.clone().or_else(|| own.ocsp_url()) else {
            return ignored(format!("no OCSP responder URL in the certificate \"{name}\""));
        };
        let responder = match Responder::parse(&url) {
            Ok(responder) => responder,
            Err(fault) => return ignored(format!("{fault} in the certificate \"{name}\"")),
        };
        let verification = match self.verifies_stapling {
            true => Verification::KnownIssuer,
            false => Verification::SignatureAlone,
        };
        let mut key = format!("{url}\0{verification:?}\0").into_bytes();
        let files = self.trusted_files().chain(readable(&self.crl)).map(|file| file.bytes.as_slice());
        for bytes in identity.chain().iter().map(|der| der.as_ref()).chain(files) {
            key.extend_from_slice(&bytes.len().to_le_bytes());
            key.extend_from_slice(bytes);
        }
        let subject = Subject::new(own, issuer, others);
        let (identity, roots) = (identity.clone(), self.roots()?);
        let settings = StapleSettings { identity, subject, responder, roots, verification, name };
        stapled.staples.push(Staple::named(&key, settings));
        Ok(true)
    }

    /// Returns how client certificates are checked by OCSP, if they are checked.
    pub(super) fn checks(&self) -> Result<Option<ClientChecks>, String> {
        match self.ocsp {
            Some(_) if self.verify == VerifyClient::OptionalNoCa => {
                Err("\"ssl_ocsp\" is incompatible with \"ssl_verify_client optional_no_ca\"".to_owned())
            }
            Some(depth) if self.verify != VerifyClient::Off => {
                let (responder, cache) = (self.ocsp_responder.clone(), self.ocsp_cache.clone());
                Ok(Some(ClientChecks { depth, responder, cache }))
            }
            _ => Ok(None),
        }
    }
}

/// Adds the ports of the OCSP responders of a server.
pub(super) fn add_ports(_: &Http, scope: &Scope, requirements: &mut Requirements) {
    let (tls, uses) = (scope.of::<Tls>(), &mut requirements.uses);
    tls.staples.iter().for_each(|staple| uses.connects(staple.responder().port));
    match tls.checks.as_ref().map(|checks| &checks.responder) {
        None => {}
        Some(Some(responder)) => uses.connects(responder.port),
        // The certificates of clients name their responders. Authorities use the port of HTTP, and `sandbox strict` permits only this one.
        Some(None) => {
            uses.connects(80);
            uses.connects_to_any_port("ssl_ocsp", None, "on");
        }
    }
}

/// Returns the warnings of all servers, at most one for each directive.
pub(super) fn warnings(http: &Http) -> Vec<Error> {
    let mut found: Vec<(&Span, &str, usize)> = Vec::new();
    for server in &http.servers {
        let conf = http.locations[server.root.0 as usize].scope.of::<Conf>();
        let Some(span) = &conf.stapling_span else { continue };
        for fault in &conf.notes.faults {
            match found.iter_mut().find(|(known, ..)| *known == span) {
                Some((_, first, more)) => *more += usize::from(*first != fault),
                None => found.push((span, fault, 0)),
            }
        }
    }
    let warning = |(span, fault, more): (&Span, &str, usize)| {
        let more = if more == 0 { String::new() } else { format!(", and {more} times more") };
        Error::at(span, format_args!("{fault}{more}")).with_level(Level::Warn)
    };
    found.into_iter().map(warning).collect()
}

/// Sets `ssl_ocsp_responder`.
pub(super) fn set_responder(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let responder = value_or_cancel(cx).map(Responder::parse).transpose();
    let refused = |fault| cx.error(format_args!("{fault} in \"ssl_ocsp_responder\""));
    scope.make_mut::<Conf>().ocsp_responder = responder.map_err(refused)?;
    Ok(())
}

/// Sets `ssl_ocsp_cache`: `off` or `shared:NAME:SIZE`.
pub(super) fn set_cache(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let text = cx.arg(0);
    if text == "off" {
        scope.make_mut::<Conf>().ocsp_cache = None;
        return Ok(());
    }
    let invalid = || cx.error(format_args!("invalid OCSP cache \"{text}\""));
    let named = text.strip_prefix("shared:").and_then(|rest| rest.split_once(':'));
    let (name, size) = named.filter(|(name, _)| !name.is_empty()).ok_or_else(invalid)?;
    let bytes = value::size(size).map_err(|_| invalid())?;
    if bytes < super::CACHE_BYTES_MIN {
        return Err(cx.error(format_args!("OCSP cache \"{text}\" is too small")));
    }
    super::declare_cache::<StatusCache>(name, bytes, cx)?;
    let bytes =
        usize::try_from(bytes).map_err(|_| cx.error(format_args!("invalid OCSP cache \"{text}\"")))?;
    scope.make_mut::<Conf>().ocsp_cache = Some(named_cache(name, bytes));
    Ok(())
}
