//! What certificate authorities ask this server for (ACME), and certificates that come from them while it runs.
//!
//! [`Slots`] belongs to a configuration: a certificate for each order, the placeholder first. The challenges belong to the
//! process, because a reload must not remove one that an authority is about to request: [`http_challenge`] and
//! [`tls_challenge`] find them, in any thread.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use ::tls::Server;
use ::tls::server::Slot;

use crate::config::Settings;

/// Challenges that may be in place at once: an order has at most a few hundred names.
const CHALLENGES_MAX: usize = 1000;

/// The certificate of a server block that comes from an authority (`acme_certificate`).
#[derive(Clone, Debug, Default)]
pub struct Acme {
    /// The slot of the order.
    pub slot: Option<Arc<Slot>>,
}

impl Settings for Acme {}

/// The slots of a configuration by the names of their orders.
#[derive(Debug, Default)]
pub struct Slots(pub HashMap<String, Arc<Slot>>);

/// Challenges that are in place.
#[derive(Debug, Default)]
struct Challenges {
    http: HashMap<String, String>,
    tls: HashMap<String, Server>,
}

static CHALLENGES: LazyLock<Mutex<Challenges>> = LazyLock::new(Mutex::default);

/// How many there are: most of the time none, which costs a request no lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn change<T>(change: impl FnOnce(&mut Challenges) -> T) -> T {
    let mut challenges = CHALLENGES.lock().unwrap_or_else(PoisonError::into_inner);
    let changed = change(&mut challenges);
    COUNT.store(challenges.http.len() + challenges.tls.len(), Ordering::Release);
    changed
}

/// Puts a file in place, by its name below `/.well-known/acme-challenge/`. False where there are too many.
pub fn install_http(token: String, text: String) -> bool {
    change(|challenges| {
        let has_room = challenges.http.len() < CHALLENGES_MAX;
        has_room.then(|| challenges.http.insert(token, text)).is_some()
    })
}

/// Selects the handshake by the name in the hello. False where there are too many.
pub fn install_tls(name: String, server: Server) -> bool {
    change(|challenges| {
        let has_room = challenges.tls.len() < CHALLENGES_MAX;
        has_room.then(|| challenges.tls.insert(name, server)).is_some()
    })
}

/// Takes a file away.
pub fn remove_http(token: &str) {
    change(|challenges| challenges.http.remove(token));
}

/// Takes a handshake away.
pub fn remove_tls(name: &str) {
    change(|challenges| challenges.tls.remove(name));
}

/// The content of a file that is in place.
pub fn http_challenge(token: &str) -> Option<String> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    CHALLENGES.lock().unwrap_or_else(PoisonError::into_inner).http.get(token).cloned()
}

/// The server of a handshake that is in place.
pub fn tls_challenge(name: &str) -> Option<Server> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    CHALLENGES.lock().unwrap_or_else(PoisonError::into_inner).tls.get(name).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_there_until_it_is_taken_away() {
        assert_eq!(http_challenge("a"), None);
        assert!(install_http("a".to_owned(), "a.b".to_owned()));
        assert_eq!(http_challenge("a").as_deref(), Some("a.b"));
        assert_eq!(http_challenge("b"), None);
        remove_http("a");
        assert_eq!(http_challenge("a"), None);
    }
}
