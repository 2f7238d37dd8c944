//! OCSP responses that the server sends with its certificates (`ssl_stapling`).
//!
//! As in nginx, a handshake starts a request if the response is missing or expires soon, and does not wait for the new response.
//! All threads share a [`Staple`], and a reload retains it if its settings are unchanged. Each staple has at most one request in flight.

use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::tls::Identity;
use ::tls::in_use::InUse;
use ::tls::ocsp::{Status, Subject, ValidResponse, Verification};
use ::tls::server::Slot;
use ::tls::x509::Roots;

use super::{BlockRef, Fetch, Inquiry, Responder, now};
use crate::error_log;
use crate::thread::Thread;
use telemetry::Level;
use telemetry::tally::StaplingFetch;

/// Minimum time in seconds between two requests, as in nginx. Also the time before the expiry of a response at which the next one is
/// requested.
const PAUSE_S: i64 = 300;

/// Maximum time in seconds between a response and the next request.
const PAUSE_MAX_S: i64 = 3600;

/// Settings of a [`Staple`].
#[derive(Debug)]
pub struct StapleSettings {
    /// Chain and key of the certificate, without an OCSP response.
    pub identity: Identity,
    /// The certificate with its issuer: creates requests and judges responses.
    pub subject: Subject,
    /// Responder of the authority.
    pub responder: Responder,
    /// Roots that verify the signatures of responses.
    pub roots: Roots,
    /// How the signature of a response is verified.
    pub verification: Verification,
    /// File name of the certificate, for the log.
    pub name: String,
}

/// Certificate of the server whose OCSP response is fetched.
#[derive(Debug)]
pub struct Staple {
    slot: Arc<Slot>,
    settings: StapleSettings,
    times: Mutex<Times>,
}

/// Times in seconds since 1970, and whether a request is in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    /// Expiry time of the response in the slot; `None` if the slot has no response.
    until: Option<i64>,
    /// Earliest time of the next request.
    refresh: i64,
    is_loading: bool,
}

/// Guard that marks the request in flight as ended, also if its task is dropped.
struct Loading<'s>(&'s Staple);

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.0.times().is_loading = false;
    }
}

impl Staple {
    /// Returns the responder.
    pub fn responder(&self) -> &Responder {
        &self.settings.responder
    }

    /// Returns the staple with these settings. `key` contains the bytes of all settings, so that a reload finds the staple in use.
    pub fn named(key: &[u8], settings: StapleSettings) -> Arc<Staple> {
        static STAPLES: InUse<Vec<u8>, Staple> = InUse::empty();
        STAPLES.get_or_add(::tls::digest(key), || {
            let slot = Slot::with(settings.identity.clone());
            Arc::new(Staple { slot, settings, times: Mutex::default() })
        })
    }

    /// Returns the slot from which handshakes read the certificate and its response.
    pub fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes an expired response, and starts the next request when it is due. Each handshake calls this function. `at` returns the
    /// block that has the certificate.
    pub fn tend(self: &Arc<Self>, thread: &Rc<Thread>, at: impl Fn() -> BlockRef) {
        let now = now();
        let mut times = self.times();
        if times.until.is_some_and(|until| until < now) {
            times.until = None;
            self.slot.set(self.settings.identity.clone());
        }
        if times.is_loading || times.refresh >= now {
            return;
        }
        times.is_loading = true;
        drop(times);
        let (staple, thread, at) = (Arc::clone(self), Rc::clone(thread), at());
        rt::spawn(async move { staple.load(&thread, at).await });
    }

    /// Fetches a response. A failure is logged and changes only the time of the next request.
    async fn load(&self, thread: &Rc<Thread>, at: BlockRef) {
        let _loading = Loading(self);
        // Set before the fetch: if this task is dropped, the next request is made after `PAUSE_S`, not immediately.
        self.times().refresh = now() + PAUSE_S;
        let fetched = self.fetch(thread, at).await;
        thread.tally.count_stapling_fetch(match &fetched {
            Ok(_) => StaplingFetch::Good,
            Err((fetch, _)) => *fetch,
        });
        match fetched {
            Ok((response, known)) => {
                let (now, until) = (now(), known.until.unwrap_or(i64::MAX));
                self.slot.set(self.settings.identity.with_ocsp(response));
                let mut times = self.times();
                times.until = Some(until);
                times.refresh = until.saturating_sub(PAUSE_S).min(now + PAUSE_MAX_S).max(now + PAUSE_S);
            }
            Err((_, message)) => {
                let StapleSettings { responder, name, .. } = &self.settings;
                let what = format_args!(
                    "{message} while requesting certificate status, responder: {}, certificate: \"{name}\"",
                    responder.host
                );
                error_log::write(thread, Level::Error, what);
            }
        }
    }

    /// Returns a response that may be sent, or the result of the request with a message for the log.
    async fn fetch(
        &self,
        thread: &Rc<Thread>,
        at: BlockRef,
    ) -> Result<(Vec<u8>, ValidResponse), (StaplingFetch, String)> {
        let StapleSettings { subject, responder, roots, verification, .. } = &self.settings;
        let failed = |message| (StaplingFetch::Failed, message);
        let rejected = |message| (StaplingFetch::Rejected, message);
        let request = subject.request().ok_or_else(|| failed("OCSP_cert_to_id() failed".to_owned()))?;
        let Fetch(fetch) = *thread.local::<Fetch>();
        let inquiry = Inquiry { responder: responder.clone(), request, at, by_system: true };
        let response = fetch(Rc::clone(thread), inquiry).await.map_err(failed)?;
        let known = subject.judge(&response, roots, *verification, now()).map_err(rejected)?;
        match known.status {
            Status::Good => Ok((response, known)),
            other => Err(rejected(format!("certificate status \"{}\" in the OCSP response", other.name()))),
        }
    }
}
