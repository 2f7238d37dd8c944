//! Session tickets (RFC 5077, RFC 8446 section 4.6.1): sessions that the client keeps, sealed by keys of ours.
//!
//! A ticket is `name of the key, 16 bytes | nonce, 12 bytes | sealed session`. What a server block sealed opens only for
//! that block: its name is authenticated with the ticket. Else a client without a certificate could go on with a session
//! of another server that needs none (CVE-2025-23419 in nginx).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::{digest, rand};
use rustls::server::ProducesTickets;

/// Bytes of a ticket that name its key.
const NAME_BYTES: usize = 16;

/// Sizes of nginx's key files: of AES-128 and of AES-256. Their parts are name, HMAC key and AES key; here all of the
/// secret is hashed to one key.
pub const FILE_BYTES: [usize; 2] = [48, 80];

/// Random keys that were replaced and still open tickets: so a ticket lives for two to three of their lifetimes.
const REPLACED_KEYS_MAX: usize = 2;

/// A key that seals tickets.
struct Key {
    name: [u8; NAME_BYTES],
    key: LessSafeKey,
}

impl Key {
    /// The key of a file of nginx's.
    fn from_file(bytes: &[u8]) -> Option<Key> {
        if !FILE_BYTES.contains(&bytes.len()) {
            return None;
        }
        let (name, secret) = bytes.split_at(NAME_BYTES);
        Key::new(name.try_into().ok()?, digest::digest(&digest::SHA256, secret).as_ref())
    }

    fn random() -> Option<Key> {
        let (mut name, mut secret) = ([0; NAME_BYTES], [0; 32]);
        rand::fill(&mut name).ok()?;
        rand::fill(&mut secret).ok()?;
        Key::new(name, &secret)
    }

    fn new(name: [u8; NAME_BYTES], secret: &[u8]) -> Option<Key> {
        let key = UnboundKey::new(&AES_256_GCM, secret).ok()?;
        Some(Key { name, key: LessSafeKey::new(key) })
    }
}

/// The keys of a worker: those of files, or random ones that are replaced in turn.
pub struct TicketKeys {
    keys: Mutex<Keys>,
    /// How long a random key seals; `None` for keys of files, which the operator replaces.
    lifetime: Option<Duration>,
}

struct Keys {
    /// The first seals, all open.
    keys: Vec<Arc<Key>>,
    made: Instant,
}

impl TicketKeys {
    /// The keys of files, the one that seals first. `None` where a file has another size.
    pub fn from_files(files: &[Vec<u8>]) -> Option<Arc<TicketKeys>> {
        let keys: Option<Vec<Arc<Key>>> =
            files.iter().map(|file| Key::from_file(file).map(Arc::new)).collect();
        let keys = keys.filter(|keys| !keys.is_empty())?;
        Some(Arc::new(TicketKeys { keys: Mutex::new(Keys { keys, made: Instant::now() }), lifetime: None }))
    }

    /// Random keys, each of which seals for so long. `None` where the machine has no random numbers.
    pub fn random(lifetime: Duration) -> Option<Arc<TicketKeys>> {
        let keys = vec![Arc::new(Key::random()?)];
        Some(Arc::new(TicketKeys {
            keys: Mutex::new(Keys { keys, made: Instant::now() }),
            lifetime: Some(lifetime),
        }))
    }

    /// The key that seals now.
    fn sealing(&self) -> Option<Arc<Key>> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if self.lifetime.is_some_and(|lifetime| keys.made.elapsed() >= lifetime)
            && let Some(key) = Key::random()
        {
            keys.keys.insert(0, Arc::new(key));
            keys.keys.truncate(1 + REPLACED_KEYS_MAX);
            keys.made = Instant::now();
        }
        keys.keys.first().cloned()
    }

    fn named(&self, name: &[u8]) -> Option<Arc<Key>> {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.keys.iter().find(|key| key.name == name).cloned()
    }
}

impl std::fmt::Debug for TicketKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TicketKeys").field("lifetime", &self.lifetime).finish_non_exhaustive()
    }
}

/// The random keys of this process, by their lifetime: a reload in place keeps them, so that tickets hold.
pub fn random_of_process(lifetime: Duration) -> Option<Arc<TicketKeys>> {
    static KEYS: Mutex<Vec<(Duration, Arc<TicketKeys>)>> = Mutex::new(Vec::new());
    let mut keys = KEYS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, known)) = keys.iter().find(|(known, _)| *known == lifetime) {
        return Some(Arc::clone(known));
    }
    let made = TicketKeys::random(lifetime)?;
    keys.push((lifetime, Arc::clone(&made)));
    Some(made)
}

/// Tickets of one server block.
#[derive(Debug)]
pub(crate) struct Tickets {
    pub(crate) keys: Arc<TicketKeys>,
    /// Which server block: tickets of another one do not open.
    pub(crate) scope: Vec<u8>,
    /// `ssl_session_timeout`
    pub(crate) lifetime: Duration,
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        u32::try_from(self.lifetime.as_secs()).unwrap_or(u32::MAX)
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let key = self.keys.sealing()?;
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).ok()?;
        let mut sealed = plain.to_vec();
        let (nonce_used, aad) = (Nonce::assume_unique_for_key(nonce), Aad::from(&self.scope));
        key.key.seal_in_place_append_tag(nonce_used, aad, &mut sealed).ok()?;
        Some([&key.name[..], &nonce, &sealed].concat())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_at_checked(NAME_BYTES)?;
        let (nonce, sealed) = rest.split_at_checked(NONCE_LEN)?;
        let key = self.keys.named(name)?;
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let len = key.key.open_in_place(nonce, Aad::from(&self.scope), &mut sealed).ok()?.len();
        sealed.truncate(len);
        Some(sealed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tickets(keys: &Arc<TicketKeys>, scope: &str) -> Tickets {
        Tickets { keys: Arc::clone(keys), scope: scope.into(), lifetime: Duration::from_secs(300) }
    }

    #[test]
    fn a_ticket_opens_for_the_server_that_made_it_alone() {
        let keys = TicketKeys::random(Duration::from_secs(300)).unwrap();
        let ticket = tickets(&keys, "a").encrypt(b"session").unwrap();
        assert_eq!(tickets(&keys, "a").decrypt(&ticket).unwrap(), b"session");
        assert_eq!(tickets(&keys, "b").decrypt(&ticket), None);
    }

    #[test]
    fn a_changed_ticket_does_not_open() {
        let keys = TicketKeys::random(Duration::from_secs(300)).unwrap();
        let ticket = tickets(&keys, "a").encrypt(b"session").unwrap();
        for index in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[index] ^= 1;
            assert_eq!(tickets(&keys, "a").decrypt(&changed), None, "byte {index}");
            assert_eq!(tickets(&keys, "a").decrypt(&ticket[..index]), None, "{index} bytes");
        }
    }

    #[test]
    fn keys_of_files_open_what_each_of_them_sealed() {
        let (old, new) = (vec![1; 48], vec![2; 80]);
        let before = TicketKeys::from_files(std::slice::from_ref(&old)).unwrap();
        let after = TicketKeys::from_files(&[new.clone(), old]).unwrap();
        let ticket = tickets(&before, "a").encrypt(b"session").unwrap();
        assert_eq!(tickets(&after, "a").decrypt(&ticket).unwrap(), b"session");
        assert_eq!(&tickets(&after, "a").encrypt(b"x").unwrap()[..NAME_BYTES], &new[..NAME_BYTES]);
        assert!(TicketKeys::from_files(&[vec![0; 47]]).is_none());
    }

    #[test]
    fn random_keys_are_replaced_and_open_for_a_while() {
        let keys = TicketKeys::random(Duration::ZERO).unwrap();
        let sealed = tickets(&keys, "a");
        let ticket = sealed.encrypt(b"session").unwrap();
        assert!(sealed.decrypt(&ticket).is_some());
        sealed.encrypt(b"x").unwrap();
        sealed.encrypt(b"x").unwrap();
        assert!(sealed.decrypt(&ticket).is_some(), "two keys ago");
        sealed.encrypt(b"x").unwrap();
        assert!(sealed.decrypt(&ticket).is_none(), "three keys ago");
    }
}
