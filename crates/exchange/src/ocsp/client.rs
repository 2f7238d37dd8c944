//! Checks client certificates by OCSP before the first request of a connection is served (`ssl_ocsp`).
//!
//! As in nginx, a client is refused if no valid response arrives. The timeout of the handshake includes the check. A responder that
//! hangs delays only the connections whose certificates it is queried about.

use std::rc::Rc;
use std::sync::Arc;

use ::tls::ocsp::{Status, Subject, Verification};
use ::tls::x509::Distrust;
use ::tls::{CertificateDer, Trust};

use super::{BlockRef, Fetch, Inquiry, Responder, StatusCache, now};
use crate::thread::Thread;
use telemetry::tally::OcspVerdict;

/// The certificates of a chain that are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Only the client's own certificate (`ssl_ocsp leaf`).
    Leaf,
    /// All certificates except the root (`ssl_ocsp on`).
    Chain,
}

/// Settings of `ssl_ocsp` of a server.
#[derive(Clone, Debug)]
pub struct ClientChecks {
    /// The certificates that are checked.
    pub depth: Depth,
    /// `ssl_ocsp_responder`: replaces the responder that a certificate names.
    pub responder: Option<Responder>,
    /// `ssl_ocsp_cache`
    pub cache: Option<Arc<StatusCache>>,
}

/// Reason for refusing a client.
#[derive(Debug)]
pub struct RefusedClient {
    /// The verdict for the client's requests.
    pub verdict: Distrust,
    /// Message for the error log if no valid response was received.
    pub failure: Option<String>,
}

/// Returns the refusal of a client for whose certificate no valid response was received.
fn failed(failure: String) -> RefusedClient {
    RefusedClient {
        verdict: Distrust::by_authority("certificate status request failed"),
        failure: Some(failure),
    }
}

/// Checks the certificates that a client has sent. A chain that `trust` rejects is not checked, because its verdict is known.
///
/// # Errors
/// Returns the reason for refusing the client.
pub async fn check(
    thread: &Rc<Thread>,
    at: &BlockRef,
    checks: &ClientChecks,
    trust: &Trust,
    shown: &[CertificateDer<'_>],
) -> Result<(), RefusedClient> {
    let chain = trust.chain(shown).unwrap_or_default();
    let count = match checks.depth {
        Depth::Leaf => 1,
        Depth::Chain => chain.len(),
    };
    let mut counted = Counted { thread, verdict: None };
    for pair in chain.windows(2).take(count) {
        let [certificate, issuer] = pair else { continue };
        let subject = Subject::new(certificate.clone(), issuer.clone(), chain[1..].to_vec());
        counted.verdict = Some(OcspVerdict::Failed);
        let (verdict, words) = match status(thread, at, checks, trust, &subject).await? {
            Status::Good => (OcspVerdict::Good, None),
            Status::Revoked => (OcspVerdict::Revoked, Some("certificate revoked")),
            Status::Unknown => (OcspVerdict::Unknown, Some("certificate status unknown")),
        };
        counted.verdict = Some(verdict);
        if let Some(words) = words {
            return Err(RefusedClient { verdict: Distrust::by_authority(words), failure: None });
        }
    }
    Ok(())
}

/// Counts the verdict when dropped, also if the client disconnects during a check. Without a checked certificate there is no verdict.
struct Counted<'t> {
    thread: &'t Thread,
    verdict: Option<OcspVerdict>,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.verdict.into_iter().for_each(|verdict| self.thread.tally.count_ocsp_verdict(verdict));
    }
}

/// Returns the status of one certificate from the cache or from its responder.
async fn status(
    thread: &Rc<Thread>,
    at: &BlockRef,
    checks: &ClientChecks,
    trust: &Trust,
    subject: &Subject,
) -> Result<Status, RefusedClient> {
    let request = subject.request().ok_or_else(|| failed("OCSP_cert_to_id() failed".to_owned()))?;
    let key = ::tls::digest(&request);
    if let Some(status) = checks.cache.as_ref().and_then(|cache| cache.get(&key, now())) {
        return Ok(status);
    }
    let responder = match &checks.responder {
        Some(responder) => responder.clone(),
        None => {
            let url = subject.url();
            let url = url.ok_or_else(|| failed("no OCSP responder URL in certificate".to_owned()))?;
            Responder::parse(&url).map_err(|fault| failed(format!("{fault} in certificate")))?
        }
    };
    let about = |message: String| {
        failed(format!("{message} while requesting certificate status, responder: {}", responder.host))
    };
    let Fetch(fetch) = *thread.local::<Fetch>();
    let at = at.clone();
    let by_system = checks.responder.is_some();
    let inquiry = Inquiry { responder: responder.clone(), request, at, by_system };
    let response = fetch(Rc::clone(thread), inquiry).await.map_err(about)?;
    let known = subject.judge(&response, trust.roots(), Verification::Full, now()).map_err(about)?;
    if let Some(cache) = &checks.cache {
        cache.put(key, known, now());
    }
    Ok(known.status)
}
