//! Session tickets (RFC 5077, RFC 8446 section 4.6.1): sessions that the client stores, encrypted with keys of the
//! server.
//!
//! A ticket is `key name, 16 bytes | nonce, 12 bytes | encrypted session`. The session contains the time of issue,
//! because rustls does not limit the age of TLS 1.2 tickets. A ticket is valid only for the server block that issued
//! it, because the name of the block is authenticated with the ticket. Otherwise a client without a certificate could
//! use a session of another server block that requires no certificate (CVE-2025-23419 in nginx).
//!
//! Random keys are derived from a [`Chain`]. The master stores a chain and passes it to each worker. Thus all workers
//! have the same keys without exchanging messages, and tickets remain valid when a worker exits.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hmac::{self, HMAC_SHA256};
use aws_lc_rs::{digest, rand};
use rustls::server::ProducesTickets;

use crate::in_use::InUse;
use crate::seen::{self, SESSION_ID_BYTES};

/// Length in bytes of the key name in a ticket.
const NAME_BYTES: usize = 16;

/// Sizes in bytes of nginx's key files, for AES-128 and AES-256. nginx splits the file into name, HMAC key and AES key.
/// This server derives one key from all bytes after the name.
pub const FILE_BYTES: [usize; 2] = [48, 80];

/// Number of replaced random keys that still decrypt tickets. One is needed, because a key encrypts tickets until the
/// end of its lifetime; the second one permits a clock that is set.
const REPLACED_KEYS_MAX: u64 = 2;

/// Maximum time in seconds for which a random key encrypts tickets. Tickets of TLS 1.3 are valid for at most a week
/// (RFC 8446 section 4.6.1).
const LIFETIME_S_MAX: u64 = 7 * 24 * 60 * 60;

/// Time in seconds after which the next secret of a [`Chain`] follows.
const STEP_S: u64 = 60;

/// Maximum number of secrets that are computed one after another to reach a time. If the clock jumps further, as at the
/// boot of a machine without a hardware clock, the secret is computed in one step. Older tickets are then invalid.
const STEPS_MAX: u64 = 100_000;

/// Length of a secret in bytes.
const SECRET_BYTES: usize = 32;

/// A chain of secrets: each secret is derived from its predecessor, and no secret can be derived from a later one.
/// Discarded keys cannot be computed again, so old tickets remain secret if a process is compromised.
#[derive(Clone, PartialEq, Eq)]
pub struct Chain {
    /// Number of the secret, which depends on the time.
    step: u64,
    secret: [u8; SECRET_BYTES],
    /// The longest lifetime in seconds of keys that this process derives from the chain.
    longest_s: u64,
}

impl Chain {
    /// Creates a random chain at the time `now_s`, in seconds since 1970. Returns `None` if the machine has no random
    /// numbers.
    pub fn random(now_s: u64) -> Option<Chain> {
        let mut secret = [0; SECRET_BYTES];
        rand::fill(&mut secret).ok()?;
        Some(Chain { step: now_s / STEP_S, secret, longest_s: 0 })
    }

    /// Encodes the chain for another process.
    pub fn to_bytes(&self) -> Vec<u8> {
        [&self.step.to_le_bytes()[..], &self.secret].concat()
    }

    /// Decodes the output of [`Chain::to_bytes`].
    pub fn from_bytes(bytes: &[u8]) -> Option<Chain> {
        let (step, secret) = bytes.split_first_chunk()?;
        let step = u64::from_le_bytes(*step);
        Some(Chain { step, secret: secret.try_into().ok()?, longest_s: 0 })
    }

    /// Discards all secrets that are not needed by keys with this or a shorter lifetime.
    pub fn forget(&mut self, now_s: u64, lifetime: Duration) {
        let kept_s = lifetime_s(lifetime) * (1 + REPLACED_KEYS_MAX);
        *self = self.at(now_s.saturating_sub(kept_s) / STEP_S);
    }

    /// Returns the chain at a step, or unchanged if it is already at a later step.
    fn at(&self, step: u64) -> Chain {
        let mut chain = self.clone();
        if step.saturating_sub(self.step) > STEPS_MAX {
            chain.secret = self.derive(b"jump", &step.to_le_bytes());
            chain.step = step;
        }
        while chain.step < step {
            chain.secret = chain.derive(b"next", b"");
            chain.step += 1;
        }
        chain
    }

    fn derive(&self, what: &[u8], of: &[u8]) -> [u8; SECRET_BYTES] {
        let tag = hmac::sign(&hmac::Key::new(HMAC_SHA256, &self.secret), &[what, of].concat());
        let mut out = [0; SECRET_BYTES];
        out.copy_from_slice(tag.as_ref());
        out
    }

    /// Derives the keys with these numbers and this lifetime. The steps of the chain are computed only once for all
    /// keys.
    fn keys(mut self, lifetime_s: u64, numbers: RangeInclusive<u64>) -> Vec<Arc<Key>> {
        let key = |number: u64| {
            self = self.at(number.saturating_mul(lifetime_s) / STEP_S);
            let label = [lifetime_s.to_le_bytes(), number.to_le_bytes()].concat();
            let name = *self.derive(b"name", &label).first_chunk()?;
            Key::new(name, &self.derive(b"key", &label)).map(Arc::new)
        };
        numbers.filter_map(key).collect()
    }
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chain").field("step", &self.step).finish_non_exhaustive()
    }
}

fn lifetime_s(lifetime: Duration) -> u64 {
    lifetime.as_secs().clamp(1, LIFETIME_S_MAX)
}

/// Returns the time in seconds since 1970.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A key that encrypts tickets.
struct Key {
    name: [u8; NAME_BYTES],
    key: LessSafeKey,
}

impl Key {
    /// Derives the key from an nginx key file. Returns `None` if the size is wrong.
    fn from_file(bytes: &[u8]) -> Option<Key> {
        if !FILE_BYTES.contains(&bytes.len()) {
            return None;
        }
        let (name, secret) = bytes.split_at(NAME_BYTES);
        Key::new(name.try_into().ok()?, digest::digest(&digest::SHA256, secret).as_ref())
    }

    fn new(name: [u8; NAME_BYTES], secret: &[u8]) -> Option<Key> {
        let key = UnboundKey::new(&AES_256_GCM, secret).ok()?;
        Some(Key { name, key: LessSafeKey::new(key) })
    }
}

/// The ticket keys of a worker: keys from files, or random keys that are replaced periodically.
pub struct TicketKeys {
    keys: Mutex<Keys>,
    random: Option<Random>,
}

/// The source of random keys.
struct Random {
    chain: Arc<Mutex<Chain>>,
    /// Time in seconds for which each key encrypts tickets.
    lifetime_s: u64,
}

#[derive(Default)]
struct Keys {
    /// The first key encrypts, all keys decrypt.
    keys: Vec<Arc<Key>>,
    /// The number of the first key, if the keys are random.
    number: Option<u64>,
}

impl TicketKeys {
    /// Reads keys from files; the first key encrypts. Returns `None` if a file has a wrong size.
    pub fn from_files(files: &[Vec<u8>]) -> Option<Arc<TicketKeys>> {
        let keys: Option<Vec<Arc<Key>>> =
            files.iter().map(|file| Key::from_file(file).map(Arc::new)).collect();
        let keys = keys.filter(|keys| !keys.is_empty())?;
        Some(Arc::new(TicketKeys { keys: Mutex::new(Keys { keys, number: None }), random: None }))
    }

    /// Derives keys from a chain. Each key encrypts tickets for `lifetime`.
    pub fn of_chain(chain: Arc<Mutex<Chain>>, lifetime: Duration) -> Arc<TicketKeys> {
        let lifetime_s = lifetime_s(lifetime);
        let mut known = chain.lock().unwrap_or_else(PoisonError::into_inner);
        known.longest_s = lifetime_s.max(known.longest_s);
        drop(known);
        Arc::new(TicketKeys { keys: Mutex::default(), random: Some(Random { chain, lifetime_s }) })
    }

    /// Creates random keys. Each key encrypts tickets for `lifetime`. Returns `None` if the machine has no random
    /// numbers.
    pub fn random(lifetime: Duration) -> Option<Arc<TicketKeys>> {
        let chain = Chain::random(now_s())?;
        Some(TicketKeys::of_chain(Arc::new(Mutex::new(chain)), lifetime))
    }

    /// Returns the keys of this time.
    fn at(&self, now_s: u64) -> MutexGuard<'_, Keys> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(random) = &self.random else { return keys };
        let number = now_s / random.lifetime_s;
        // If the clock was set back, the present key remains in use until the clock reaches its number again.
        if keys.number.is_none_or(|known| known < number) {
            let mut chain = random.chain.lock().unwrap_or_else(PoisonError::into_inner);
            let longest = Duration::from_secs(chain.longest_s);
            chain.forget(now_s, longest);
            let numbers = number.saturating_sub(REPLACED_KEYS_MAX)..=number;
            let mut made = chain.clone().keys(random.lifetime_s, numbers);
            made.reverse();
            *keys = Keys { keys: made, number: Some(number) };
        }
        keys
    }
}

impl std::fmt::Debug for TicketKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lifetime_s = self.random.as_ref().map(|random| random.lifetime_s);
        f.debug_struct("TicketKeys").field("lifetime_s", &lifetime_s).finish_non_exhaustive()
    }
}

/// The chain of this process.
static CHAIN: Mutex<Option<Arc<Mutex<Chain>>>> = Mutex::new(None);

/// Sets the chain received from the master. A worker calls this once, before it reads a configuration.
pub fn set_chain(chain: Chain) {
    let mut own = CHAIN.lock().unwrap_or_else(PoisonError::into_inner);
    *own = Some(Arc::new(Mutex::new(chain)));
}

/// Returns a copy of the chain for another process. The master has a chain as soon as it has read a configuration that
/// needs one.
pub fn chain_for_worker() -> Option<Chain> {
    let own = CHAIN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut chain = own.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
    let longest = Duration::from_secs(chain.longest_s);
    chain.forget(now_s(), longest);
    Some(chain.clone())
}

/// The random keys of this process by lifetime in seconds. Server blocks share them, so that each key is derived once.
static RANDOM: InUse<u64, TicketKeys> = InUse::empty();

/// Returns the random keys of this process with this lifetime. A reload in place uses the same chain, so that tickets
/// remain valid. Returns `None` if the machine has no random numbers.
pub fn random_of_process(lifetime: Duration) -> Option<Arc<TicketKeys>> {
    let mut own = CHAIN.lock().unwrap_or_else(PoisonError::into_inner);
    if own.is_none() {
        *own = Some(Arc::new(Mutex::new(Chain::random(now_s())?)));
    }
    let chain = own.as_ref()?;
    let make = || TicketKeys::of_chain(Arc::clone(chain), lifetime);
    Some(RANDOM.get_or_add(lifetime_s(lifetime), make))
}

/// The tickets of one server block.
#[derive(Debug)]
pub struct Tickets {
    /// The keys of the tickets.
    pub keys: Arc<TicketKeys>,
    /// The name of the server block. Tickets of other server blocks are invalid.
    pub scope: Vec<u8>,
    /// `ssl_session_timeout`
    pub lifetime: Duration,
}

impl Tickets {
    /// Encrypts a ticket, which contains the session ID and the time before rustls' data. Returns `None` if the machine has no
    /// random numbers.
    pub fn seal(&self, session: &[u8], now_s: u64) -> Option<Vec<u8>> {
        let key = self.keys.at(now_s).keys.first().cloned()?;
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).ok()?;
        let mut sealed = [&seen::session_id()?[..], &now_s.to_le_bytes(), session].concat();
        let (nonce_used, aad) = (Nonce::assume_unique_for_key(nonce), Aad::from(&self.scope));
        key.key.seal_in_place_append_tag(nonce_used, aad, &mut sealed).ok()?;
        Some([&key.name[..], &nonce, &sealed].concat())
    }

    /// Decrypts a ticket. Returns the session that was passed to [`Tickets::seal`], if this server block issued the
    /// ticket within `ssl_session_timeout` and its key still exists.
    pub fn open(&self, ticket: &[u8], now_s: u64) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_at_checked(NAME_BYTES)?;
        let (nonce, sealed) = rest.split_at_checked(NONCE_LEN)?;
        let key = self.keys.at(now_s).keys.iter().find(|key| key.name == name).cloned()?;
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let opened = key.key.open_in_place(nonce, Aad::from(&self.scope), &mut sealed).ok()?;
        let (session_id, rest) = opened.split_first_chunk::<SESSION_ID_BYTES>()?;
        let (issued_s, session) = rest.split_first_chunk()?;
        if now_s.saturating_sub(u64::from_le_bytes(*issued_s)) > self.lifetime.as_secs() {
            return None;
        }
        seen::note(|seen| seen.session_id = Some(*session_id));
        Some(session.to_vec())
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        // TLS 1.3 forbids a longer lifetime.
        u32::try_from(self.lifetime.as_secs().min(LIFETIME_S_MAX)).unwrap_or(u32::MAX)
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.seal(plain, now_s())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.open(ticket, now_s())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tickets(keys: &Arc<TicketKeys>, scope: &str) -> Tickets {
        Tickets { keys: Arc::clone(keys), scope: scope.into(), lifetime: Duration::from_secs(300) }
    }

    fn keys() -> Arc<TicketKeys> {
        TicketKeys::random(Duration::from_secs(300)).unwrap()
    }

    #[test]
    fn a_ticket_is_decrypted_only_for_its_own_server() {
        let keys = keys();
        let ticket = tickets(&keys, "a").encrypt(b"session").unwrap();
        assert_eq!(tickets(&keys, "a").decrypt(&ticket).unwrap(), b"session");
        assert_eq!(tickets(&keys, "b").decrypt(&ticket), None);
    }

    #[test]
    fn a_modified_ticket_is_refused() {
        let keys = keys();
        let ticket = tickets(&keys, "a").encrypt(b"session").unwrap();
        for index in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[index] ^= 1;
            assert_eq!(tickets(&keys, "a").decrypt(&changed), None, "byte {index}");
            assert_eq!(tickets(&keys, "a").decrypt(&ticket[..index]), None, "{index} bytes");
        }
    }

    #[test]
    fn tickets_of_each_key_file_are_decrypted() {
        let (old, new) = (vec![1; 48], vec![2; 80]);
        let before = TicketKeys::from_files(std::slice::from_ref(&old)).unwrap();
        let after = TicketKeys::from_files(&[new.clone(), old]).unwrap();
        let ticket = tickets(&before, "a").encrypt(b"session").unwrap();
        assert_eq!(tickets(&after, "a").decrypt(&ticket).unwrap(), b"session");
        assert_eq!(&tickets(&after, "a").encrypt(b"x").unwrap()[..NAME_BYTES], &new[..NAME_BYTES]);
        assert!(TicketKeys::from_files(&[vec![0; 47]]).is_none());
    }

    #[test]
    fn random_keys_are_rotated_and_decrypt_for_some_time() {
        for lifetime_s in [1, 7, 60, 300, 86_400] {
            let chain = Chain::random(1_000_000_000).unwrap();
            let keys = TicketKeys::of_chain(Arc::new(Mutex::new(chain)), Duration::from_secs(lifetime_s));
            let sealed = Tickets { lifetime: Duration::MAX, ..tickets(&keys, "a") };
            let begin = 1_000_000_000 / lifetime_s * lifetime_s;
            let ticket = sealed.seal(b"session", begin).unwrap();
            let name = |at| sealed.seal(b"x", at).unwrap()[..NAME_BYTES].to_vec();
            assert_eq!(name(begin + lifetime_s - 1), ticket[..NAME_BYTES]);
            assert_ne!(name(begin + lifetime_s), ticket[..NAME_BYTES]);
            assert_eq!(name(begin), name(begin + lifetime_s), "the clock was set back");
            assert!(sealed.open(&ticket, begin + 3 * lifetime_s - 1).is_some(), "two keys ago");
            assert!(sealed.open(&ticket, begin + 3 * lifetime_s).is_none(), "three keys ago");
        }
    }

    #[test]
    fn a_ticket_is_valid_for_the_session_timeout() {
        let (sealed, now) = (tickets(&keys(), "a"), now_s());
        let ticket = sealed.seal(b"session", now).unwrap();
        for (at, is_valid) in [(now, true), (now + 300, true), (now + 301, false), (now - 5, true)] {
            assert_eq!(sealed.open(&ticket, at).is_some(), is_valid, "{at}, issued at {now}");
        }
    }

    #[test]
    fn server_blocks_with_the_same_timeout_share_their_keys() {
        let keys = |lifetime_s| random_of_process(Duration::from_secs(lifetime_s)).unwrap();
        let (one, two) = (keys(4711), keys(4711));
        assert!(Arc::ptr_eq(&one, &two));
        assert!(!Arc::ptr_eq(&one, &keys(4712)));
    }

    #[test]
    fn a_ticket_of_tls_1_3_lasts_at_most_a_week() {
        let mut tickets = tickets(&keys(), "a");
        assert_eq!(tickets.lifetime(), 300);
        tickets.lifetime = Duration::from_secs(30 * 86_400);
        assert_eq!(tickets.lifetime(), 7 * 86_400);
    }

    #[test]
    fn processes_with_the_same_chain_share_keys_and_drop_old_ones() {
        let start = 1_000_000_000;
        for lifetime_s in [1, 59, 60, 61, 300, 3600, 86_400, 30 * 86_400] {
            let lifetime = Duration::from_secs(lifetime_s);
            let mut master = Chain::random(start).unwrap();
            let keys_of = |chain: &Chain| TicketKeys::of_chain(Arc::new(Mutex::new(chain.clone())), lifetime);
            let first = keys_of(&Chain::from_bytes(&master.to_bytes()).unwrap());
            for elapsed in [0, 1, lifetime_s, 2 * lifetime_s + 1, 9 * lifetime_s + 5] {
                let now = start + elapsed;
                let ticket = tickets(&first, "a").seal(b"session", now).unwrap();
                master.forget(now, lifetime);
                let second = keys_of(&Chain::from_bytes(&master.to_bytes()).unwrap());
                let opened = tickets(&second, "a").open(&ticket, now);
                assert_eq!(opened.as_deref(), Some(&b"session"[..]), "{lifetime_s} s, {elapsed} later");
            }
            let forgotten = Chain::from_bytes(&master.to_bytes()).unwrap();
            assert!(forgotten.step > start / STEP_S || lifetime_s < STEP_S);
        }
    }

    #[test]
    fn a_clock_jump_is_handled() {
        let mut chain = Chain::random(0).unwrap();
        chain.forget(u64::MAX, Duration::from_secs(1));
        assert_eq!((chain.clone().keys(1, 0..=0).len(), chain.keys(1, u64::MAX..=u64::MAX).len()), (1, 1));
        assert!(Chain::from_bytes(b"short").is_none());
    }
}
