//! Responses that are sent along with the server's certificates (`ssl_stapling`).
//!
//! As in nginx, a handshake that finds a response missing or near its end starts the request for one, and does not wait for it. All
//! threads share a [`Staple`], and a reload keeps it where nothing of it has changed. There is one request in flight for each.

use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ::tls::Identity;
use ::tls::ocsp::{Known, Status, Subject, Verification};
use ::tls::server::Slot;
use ::tls::x509::Roots;

use super::{Fetch, Inquiry, Responder, now};
use crate::config::{Config, LocationId};
use crate::error_log;
use crate::thread::Thread;
use telemetry::Level;

/// Seconds between two requests at least, and from a new response to the end of the old one, as in nginx.
const PAUSE_S: i64 = 300;

/// Seconds between two requests at most.
const PAUSE_MAX_S: i64 = 3600;

/// The parts of a [`Staple`].
#[derive(Debug)]
pub struct StapleSettings {
    /// The certificate without a response.
    pub identity: Identity,
    /// The certificate with its issuer, for requests and verdicts.
    pub subject: Subject,
    /// The authority's responder.
    pub responder: Responder,
    /// Roots for the signature of responses.
    pub roots: Roots,
    /// How it is verified.
    pub verification: Verification,
    /// The certificate's file, for the log.
    pub name: String,
}

/// A certificate whose response is fetched.
#[derive(Debug)]
pub struct Staple {
    slot: Arc<Slot>,
    settings: StapleSettings,
    times: Mutex<Times>,
}

/// In seconds since 1970.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    /// When the response in the slot ends, if there is one.
    until: Option<i64>,
    /// The next request is not before this.
    refresh: i64,
    is_loading: bool,
}

/// Ends the request in flight, also where its task is dropped.
struct Loading<'s>(&'s Staple);

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.0.times().is_loading = false;
    }
}

impl Staple {
    /// The one with these settings; `key` has the bytes of all of them. A reload finds the one that is in use.
    pub fn named(key: &[u8], settings: StapleSettings) -> Arc<Staple> {
        type Named = (Vec<u8>, Weak<Staple>);
        static STAPLES: Mutex<Vec<Named>> = Mutex::new(Vec::new());
        let key = ::tls::digest(key);
        let mut staples = STAPLES.lock().unwrap_or_else(PoisonError::into_inner);
        staples.retain(|(_, staple)| staple.strong_count() > 0);
        let known = staples.iter().find(|(known, _)| *known == key);
        if let Some(staple) = known.and_then(|(_, staple)| staple.upgrade()) {
            return staple;
        }
        let slot = Slot::with(settings.identity.clone());
        let staple = Arc::new(Staple { slot, settings, times: Mutex::default() });
        staples.push((key, Arc::downgrade(&staple)));
        staple
    }

    /// The certificate that handshakes show, with its response.
    pub fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called by each handshake: takes a response away that has ended, and starts the request for the next one when it is due.
    pub fn tend(self: &Arc<Self>, thread: &Rc<Thread>, config: &Arc<Config>, location: LocationId) {
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
        let (staple, thread, at) = (Arc::clone(self), Rc::clone(thread), (Arc::clone(config), location));
        rt::spawn(async move { staple.load(&thread, at).await });
    }

    /// Fetches a response; its failure changes nothing but the time of the next request.
    async fn load(&self, thread: &Rc<Thread>, at: (Arc<Config>, LocationId)) {
        let _loading = Loading(self);
        // A task that is dropped is tried again soon, not at once.
        self.times().refresh = now() + PAUSE_S;
        match self.fetch(thread, at).await {
            Ok((response, known)) => {
                let (now, until) = (now(), known.until.unwrap_or(i64::MAX));
                self.slot.set(self.settings.identity.with_ocsp(response));
                let mut times = self.times();
                times.until = Some(until);
                times.refresh = until.saturating_sub(PAUSE_S).min(now + PAUSE_MAX_S).max(now + PAUSE_S);
            }
            Err(message) => {
                let StapleSettings { responder, name, .. } = &self.settings;
                let what = format_args!(
                    "{message} while requesting certificate status, responder: {}, certificate: \"{name}\"",
                    responder.host
                );
                error_log::write(thread, Level::Error, what);
            }
        }
    }

    async fn fetch(
        &self,
        thread: &Rc<Thread>,
        at: (Arc<Config>, LocationId),
    ) -> Result<(Vec<u8>, Known), String> {
        let StapleSettings { subject, responder, roots, verification, .. } = &self.settings;
        let request = subject.request().ok_or("OCSP_cert_to_id() failed")?;
        let Fetch(fetch) = *thread.local::<Fetch>();
        let inquiry = Inquiry { responder: responder.clone(), request, at, by_system: true };
        let response = fetch(Rc::clone(thread), inquiry).await?;
        let known = subject.judge(&response, roots, *verification, now())?;
        match known.status {
            Status::Good => Ok((response, known)),
            other => Err(format!("certificate status \"{}\" in the OCSP response", other.word())),
        }
    }
}
