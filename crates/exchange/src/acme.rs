//! ACME challenges that certificate authorities request from this server, and certificates that they issue while it
//! runs.
//!
//! [`Slots`] belongs to a configuration: it holds a certificate for each order, initially a placeholder. The challenges
//! belong to the process, because a reload must not remove a challenge that an authority is about to request.
//! [`http_challenge`] and [`tls_challenge`] find them from any thread.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use ::tls::Server;
use ::tls::server::Slot;

use site::config::Settings;

/// Maximum number of challenges at a time; an order has at most a few hundred names.
const CHALLENGES_MAX: usize = 1000;

/// The certificate of a server block that an authority issues (`acme_certificate`).
#[derive(Clone, Debug, Default)]
pub struct Acme {
    /// The slot of the order.
    pub slot: Option<Arc<Slot>>,
}

impl Settings for Acme {}

/// The slots of a configuration, by order name.
#[derive(Debug, Default)]
pub struct Slots(pub HashMap<String, Arc<Slot>>);

/// The challenges that are currently installed.
#[derive(Debug, Default)]
struct Challenges {
    http: HashMap<String, String>,
    tls: HashMap<String, Server>,
}

static CHALLENGES: LazyLock<Mutex<Challenges>> = LazyLock::new(Mutex::default);

/// Number of installed challenges. It is mostly zero, and then a request takes no lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn change<T>(change: impl FnOnce(&mut Challenges) -> T) -> T {
    let mut challenges = CHALLENGES.lock().unwrap_or_else(PoisonError::into_inner);
    let changed = change(&mut challenges);
    COUNT.store(challenges.http.len() + challenges.tls.len(), Ordering::Release);
    changed
}

/// Installs a challenge file, by its name below `/.well-known/acme-challenge/`. Returns false if there are too many
/// challenges.
pub fn install_http(token: String, text: String) -> bool {
    change(|challenges| {
        let has_space = challenges.http.len() < CHALLENGES_MAX;
        has_space.then(|| challenges.http.insert(token, text)).is_some()
    })
}

/// Installs a TLS server configuration for handshakes with this SNI name. Returns false if there are too many
/// challenges.
pub fn install_tls(name: String, server: Server) -> bool {
    change(|challenges| {
        let has_space = challenges.tls.len() < CHALLENGES_MAX;
        has_space.then(|| challenges.tls.insert(name, server)).is_some()
    })
}

/// Removes a challenge file.
pub fn remove_http(token: &str) {
    change(|challenges| challenges.http.remove(token));
}

/// Removes the TLS server configuration of a name.
pub fn remove_tls(name: &str) {
    change(|challenges| challenges.tls.remove(name));
}

/// Returns the content of an installed challenge file.
pub fn http_challenge(token: &str) -> Option<String> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    CHALLENGES.lock().unwrap_or_else(PoisonError::into_inner).http.get(token).cloned()
}

/// Returns the installed TLS server configuration of a name.
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
    fn a_challenge_file_exists_until_it_is_removed() {
        assert_eq!(http_challenge("a"), None);
        assert!(install_http("a".to_owned(), "a.b".to_owned()));
        assert_eq!(http_challenge("a").as_deref(), Some("a.b"));
        assert_eq!(http_challenge("b"), None);
        remove_http("a");
        assert_eq!(http_challenge("a"), None);
    }
}
